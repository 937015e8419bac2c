//! One worker's way to the cache: copies out of it, and samples into it.

use std::sync::Arc;

use sutler_core::{Form, SampleId, SampleRng};
use sutler_media::{DecodedForm, DecodedLayout, Header, Pipeline, Plan, Rows, Worker};
use sutler_store::cache::{Cache, Held, Pieces, Reservation};

/// A buffer beyond this is given back after its sample, as the buffer for reading is: one giant among the samples should
/// not cost every thread its size for the rest of the run.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// A worker's tools for a cache.
pub(super) struct Cached {
    cache: Arc<Cache>,
    form: DecodedForm,
    /// The decoded form being made.
    decoded: Vec<u8>,
    /// For the transforms that draw nothing, so that the sample's own plan stays as it was drawn.
    scratch: Plan,
}

/// What became of a sample that was just read.
pub(super) enum Admitted<'a> {
    /// It is kept decoded, and loaded from there.
    Decoded(DecodedLayout),
    /// It may stay as it is, once it has proved to be good.
    Encoded(Reservation<'a>),
    /// It may not stay.
    No,
}

impl Cached {
    pub fn new(cache: Arc<Cache>, pipeline: &Pipeline) -> Self {
        Self { cache, form: DecodedForm::new(pipeline), decoded: Vec::new(), scratch: Plan::default() }
    }

    /// What is still to be done to a sample that was loaded from its decoded form.
    pub fn rest(&self, layout: &DecodedLayout) -> &Pipeline {
        self.form.rest(layout)
    }

    /// Draws for a sample whose decoded form is kept and loads what it needs of it; `None` when there is no such copy, or
    /// none that can be used.
    pub fn recall(
        &mut self,
        sample: SampleId,
        rng: &mut SampleRng,
        tools: (&mut Worker, &mut Plan),
    ) -> Option<DecodedLayout> {
        let held = self.cache.get(sample, Form::Decoded)?;
        let loaded = load(&self.form, &held, rng, tools);
        drop(held);
        match loaded {
            Ok(layout) => layout,
            Err(Unreadable) => {
                self.cache.discard(sample, Form::Decoded);
                None
            }
        }
    }

    /// Copies the encoded copy of a sample over whatever `out` held; false when none is kept.
    pub fn read_encoded(&self, sample: SampleId, out: &mut Vec<u8>) -> bool {
        let Some(held) = self.cache.get(sample, Form::Encoded) else { return false };
        if held.len() <= KEPT_BYTES_MAX {
            give_back_giant(out);
        }
        let read = held.read_into(out);
        drop(held);
        if read.is_err() {
            self.cache.discard(sample, Form::Encoded);
        }
        read.is_ok()
    }

    /// Whether a sample that came from its encoded copy may be offered, to be kept decoded instead.
    pub fn may_change_seats(&self) -> bool {
        self.cache.may_change_seats()
    }

    /// Offers a sample to the cache that was just read, or, unless it was `stored`, loaded from its encoded copy. Where it is kept decoded, that form is made and loaded at once:
    /// it is decoded as a whole, but only once.
    pub fn admit(
        &mut self,
        sample: SampleId,
        header: &Header,
        (bytes, stored): (&[u8], bool),
        rng: &mut SampleRng,
        tools: (&mut Worker, &mut Plan),
    ) -> Admitted<'_> {
        let (worker, plan) = tools;
        let Self { cache, form, decoded, scratch, .. } = self;
        let layout = if cache.keeps(Form::Decoded) { form.layout(header, scratch).ok() } else { None };
        let decoded_bytes = layout.as_ref().map(DecodedLayout::bytes);
        let encoded_bytes = stored.then_some(bytes.len());
        let Some(seat) = cache.reserve(sample, encoded_bytes, decoded_bytes) else { return Admitted::No };
        let Some(layout) = layout.filter(|_| seat.form() == Form::Decoded) else {
            return Admitted::Encoded(seat);
        };
        // Where the decoder has something to say, nothing is kept, and the usual way will say it.
        if !form.make(&layout, header, bytes, (&mut *worker, &mut *scratch), decoded) {
            return Admitted::No;
        }
        if form.draw(&layout, rng, scratch).is_err() {
            return Admitted::No;
        }
        let copy = |rows: Rows, out: &mut [u8]| {
            let lines = decoded[rows.start..].chunks(rows.stride);
            for (line, out) in lines.zip(out.chunks_exact_mut(rows.bytes)) {
                out.copy_from_slice(&line[..rows.bytes]);
            }
            true
        };
        if worker.recall(&layout, scratch, copy).is_err() {
            return Admitted::No;
        }
        std::mem::swap(plan, scratch);
        seat.commit(&[decoded]);
        give_back_giant(decoded);
        Admitted::Decoded(layout)
    }
}

fn give_back_giant(buffer: &mut Vec<u8>) {
    if buffer.capacity() > KEPT_BYTES_MAX {
        *buffer = Vec::new();
    }
}

/// A copy that is not what was kept.
struct Unreadable;

/// Draws and loads from a copy; `Ok(None)` when the copy is good but the sample cannot be made from it.
fn load(
    form: &DecodedForm,
    held: &Held<'_>,
    rng: &mut SampleRng,
    (worker, plan): (&mut Worker, &mut Plan),
) -> Result<Option<DecodedLayout>, Unreadable> {
    let mut head = [0; DecodedLayout::HEAD_BYTES];
    let first = Pieces { start: 0, piece: head.len(), stride: head.len(), count: 1 };
    held.read(first, &mut head).map_err(|_| Unreadable)?;
    let layout = DecodedLayout::from_head(&head).ok_or(Unreadable)?;
    if form.draw(&layout, rng, plan).is_err() {
        return Ok(None);
    }
    let mut readable = true;
    let loaded = worker.recall(&layout, plan, |rows, out| {
        let Rows { start, bytes, stride, count } = rows;
        readable = held.read(Pieces { start, piece: bytes, stride, count }, out).is_ok();
        readable
    });
    if readable { Ok(loaded.ok().map(|()| layout)) } else { Err(Unreadable) }
}
