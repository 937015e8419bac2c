//! One worker's way to copies of samples: out of the cache and into it, and those that jobs leave for each other.

use sutler_core::{Form, SampleId, SampleRng};
use sutler_media::{DecodedForm, DecodedLayout, Header, Pipeline, Plan, Rows, Worker};
use sutler_store::cache::{Cache, Held, Pieces, Reservation};

use crate::copies::{Fetched, give_back_giant, seat};
use crate::{Common, Request};

/// A worker's tools for copies.
pub(super) struct Copies {
    form: DecodedForm,
    /// The decoded form being made.
    decoded: Vec<u8>,
    /// For the transforms that draw nothing, so that the sample's own plan stays as it was drawn.
    scratch: Plan,
    /// Whether the cache has a decoded copy of the sample at hand that was kept for other transforms.
    foreign: bool,
}

/// A sample that was just read.
pub(super) struct Read<'a> {
    pub sample: SampleId,
    pub header: &'a Header,
    pub fetched: Fetched<'a>,
}

/// What became of a sample that was offered to the cache.
pub(super) enum Admitted<'a> {
    /// It is kept decoded, and loaded from there.
    Decoded(DecodedLayout),
    /// It may stay as it is, once it has proved to be good.
    Encoded(Reservation<'a>),
    /// It may not stay.
    No,
}

impl Copies {
    pub fn new(pipeline: &Pipeline) -> Self {
        let form = DecodedForm::new(pipeline);
        Self { form, decoded: Vec::new(), scratch: Plan::default(), foreign: false }
    }

    /// What is still to be done to a sample that was loaded from its decoded form.
    pub fn rest(&self, layout: &DecodedLayout) -> &Pipeline {
        self.form.rest(layout)
    }

    /// Draws for a sample whose decoded form is kept and loads what it needs of it; `None` when there is no such copy, or
    /// none that can be used.
    pub fn recall(
        &mut self,
        cache: &Cache,
        sample: SampleId,
        rng: &mut SampleRng,
        tools: (&mut Worker, &mut Plan),
    ) -> Option<DecodedLayout> {
        self.foreign = false;
        let held = cache.get(sample, Form::Decoded)?;
        let loaded = load_held(&self.form, &held, rng, tools);
        drop(held);
        match loaded {
            Ok(layout) => {
                self.foreign = layout.is_none();
                layout
            }
            Err(Unreadable) => {
                cache.discard(sample, Form::Decoded);
                None
            }
        }
    }

    /// The same from a decoded form that another job has left.
    pub fn load(
        &self,
        data: &[u8],
        rng: &mut SampleRng,
        (worker, plan): (&mut Worker, &mut Plan),
    ) -> Option<DecodedLayout> {
        let layout = DecodedLayout::from_head(data.first_chunk()?)?;
        self.form.draw(&layout, rng, plan).ok()?;
        worker.recall(&layout, plan, |rows, out| copy_rows(data, rows, out)).ok()?;
        Some(layout)
    }

    /// Offers a sample to the cache. Where it is kept decoded, that form is made and loaded at once: it is decoded as a whole, but only
    /// once.
    pub fn admit<'c>(
        &mut self,
        cache: &'c Cache,
        read: &Read<'_>,
        rng: &mut SampleRng,
        tools: (&mut Worker, &mut Plan),
    ) -> Admitted<'c> {
        let mut layout = None;
        let decoded_bytes = || {
            layout = self.form.layout(read.header, &mut self.scratch).ok();
            layout.as_ref().map(DecodedLayout::bytes)
        };
        let Some(seat) = seat(cache, read.sample, read.fetched, decoded_bytes, self.foreign) else {
            return Admitted::No;
        };
        let Some(layout) = layout.filter(|_| seat.form() == Form::Decoded) else {
            return Admitted::Encoded(seat);
        };
        if !self.decode_whole(&layout, read, rng, tools) {
            return Admitted::No;
        }
        seat.commit(&[&self.decoded]);
        give_back_giant(&mut self.decoded);
        Admitted::Decoded(layout)
    }

    /// Leaves a sample for jobs with other transforms. Where it is left decoded, it is loaded from there.
    pub fn leave(
        &mut self,
        read: &Read<'_>,
        request: &mut Request,
        rng: &mut SampleRng,
        tools: (&mut Worker, &mut Plan),
    ) -> Option<DecodedLayout> {
        let layout = match request.form {
            Form::Decoded => self.form.layout(read.header, &mut self.scratch).ok(),
            _ => None,
        };
        let layout = layout
            .filter(|layout| layout.bytes() as u64 <= request.bytes_max)
            .filter(|layout| self.decode_whole(layout, read, rng, tools));
        request.left = Some(match layout {
            Some(_) => Common { form: Form::Decoded, data: std::mem::take(&mut self.decoded) },
            None => Common { form: Form::Encoded, data: read.fetched.bytes.to_vec() },
        });
        layout
    }

    /// Makes the decoded form, draws and loads from it; false when the usual way has to say why not.
    fn decode_whole(
        &mut self,
        layout: &DecodedLayout,
        read: &Read<'_>,
        rng: &mut SampleRng,
        (worker, plan): (&mut Worker, &mut Plan),
    ) -> bool {
        let Self { form, decoded, scratch, .. } = self;
        // Where the decoder has something to say, nothing is kept, and the usual way will say it.
        let made = form.make(layout, read.header, read.fetched.bytes, (&mut *worker, &mut *scratch), decoded)
            && form.draw(layout, rng, scratch).is_ok()
            && worker.recall(layout, scratch, |rows, out| copy_rows(decoded, rows, out)).is_ok();
        if made {
            std::mem::swap(plan, scratch);
        }
        made
    }
}

/// Copies rows of a picture, one after another; false where they do not lie inside.
fn copy_rows(decoded: &[u8], rows: Rows, out: &mut [u8]) -> bool {
    let lines = decoded.get(rows.start..).unwrap_or_default().chunks(rows.stride);
    let mut copied = 0;
    for (line, out) in lines.zip(out.chunks_exact_mut(rows.bytes)) {
        let Some(line) = line.get(..rows.bytes) else { return false };
        out.copy_from_slice(line);
        copied += 1;
    }
    copied == rows.count
}

/// A copy that is not what was kept.
struct Unreadable;

/// Draws and loads from a copy; `Ok(None)` when the copy is good but the sample cannot be made from it.
fn load_held(
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
