//! Volumes: draw, read just the block that a crop wants of image and labels, transform; or a shorter way from a copy that was kept.

mod copies;
mod known;
mod pair;
mod reading;

use std::sync::Arc;
use std::time::Instant;

use sutler_core::{Draw, Form, Hints, SampleId, SampleRng};
use sutler_media::volume::{Block, DecodedForm, DecodedLayout, Foreground, Limits, Pipeline, Plan, Volume};
use sutler_store::Source;
use sutler_store::cache::{Cache, Corrupt, Offer, Reservation};

use crate::copies::{give_back_giant, kept_as};
use crate::preparation::Laps;
use crate::{
    Boundary, Failure, Likeness, NoBoundary, Place, Preparation, Preparer, Progress, RowSpec, SampleRecord,
    Target, Unfinished,
};
use copies::{Copied, CopiedFile, DecodedCopy};
use known::Known;
pub use pair::read_volume;
use pair::{Counted, Headers, Pair, VolumeReader};
use reading::Refusal;

/// How the volumes of a job are prepared.
#[derive(Clone)]
pub struct VolumePreparation {
    source: Arc<dyn Source>,
    labels: Arc<dyn Source>,
    pipeline: Arc<Pipeline>,
    limits: Limits,
    channels: usize,
    seed: u64,
    known: Arc<Known>,
    cache: Option<Arc<Cache>>,
}

impl VolumePreparation {
    /// For images of so many channels, whose labels are their partners; with the epoch and the sample, `seed` decides everything. `None`
    /// where the source has no partners.
    #[must_use]
    pub fn new(
        source: Arc<dyn Source>,
        pipeline: Arc<Pipeline>,
        limits: Limits,
        channels: usize,
        seed: u64,
    ) -> Option<Self> {
        let labels = source.partners()?;
        let known = Arc::default();
        Some(Self { source, labels, pipeline, limits, channels, seed, known, cache: None })
    }

    /// The same with a place where copies of samples are kept, if there is one.
    #[must_use]
    pub fn keeping(self, cache: Option<Arc<Cache>>) -> Self {
        Self { cache, ..self }
    }

    /// The values of a sample's image and of its labels, where samples have one size.
    fn values(&self) -> Option<(usize, usize)> {
        let places = self.pipeline.output()?.iter().product::<usize>();
        Some((self.channels * places, places))
    }
}

impl VolumePreparation {
    /// The size of the image's file, and again where the crop that was drawn looks for foreground, which means to read all labels.
    fn hints_of(&self, sample: SampleId, plan: &Plan) -> Hints {
        let size = self.source.encoded_bytes(sample).map(|bytes| bytes as f64);
        let crop = self.pipeline.crop_at_reading();
        let looks = crop.is_some_and(|crop| self.pipeline.wants_foreground(crop, plan));
        Hints { size, drawn: size.map(|size| if looks { size } else { 0.0 }), values: None }
    }
}

impl Preparation for VolumePreparation {
    fn row(&self) -> RowSpec {
        match self.values() {
            Some((image, _)) => RowSpec::Fixed { bytes: image * size_of::<f32>() },
            None => RowSpec::Varies,
        }
    }

    fn beside(&self) -> usize {
        self.values().map_or(0, |(_, labels)| labels)
    }

    fn kept_as(&self, sample: SampleId) -> Form {
        kept_as(self.cache.as_deref(), sample)
    }

    /// Only jobs that do the same share a window: for others nothing is left there but what the cache keeps.
    fn likeness(&self) -> Likeness {
        let finished = format!("{:?}", self.pipeline);
        Likeness { decoded: finished.clone(), finished, decoded_on_the_way: false }
    }

    fn hints(&self, sample: SampleId, draw: Draw) -> Hints {
        if self.kept_as(sample) == Form::Decoded {
            return Hints::default();
        }
        let mut plan = Plan::default();
        self.pipeline.draw(&mut SampleRng::for_draw(self.seed, draw, sample), &mut plan);
        self.hints_of(sample, &plan)
    }

    /// A crop that is done at reading is part of the first step.
    fn steps(&self) -> Vec<String> {
        let at_reading = self.pipeline.crop_at_reading();
        let names = (0..self.pipeline.steps()).filter(|&index| at_reading != Some(index));
        let names = names.map(|index| self.pipeline.ops()[index].name().to_owned());
        std::iter::once("read".to_owned()).chain(names).collect()
    }

    fn label(&self, sample: SampleId) -> i64 {
        self.source.label(sample)
    }

    fn describe(&self, sample: SampleId) -> String {
        self.source.describe(sample)
    }

    fn preparer(&self) -> Box<dyn Preparer> {
        Box::new(VolumePreparer {
            preparation: self.clone(),
            form: DecodedForm::new(&self.pipeline),
            reader: VolumeReader::default(),
            volume: Volume::default(),
            plan: Plan::default(),
            copy: Vec::new(),
        })
    }
}

struct VolumePreparer {
    preparation: VolumePreparation,
    form: DecodedForm,
    reader: VolumeReader,
    volume: Volume,
    plan: Plan,
    /// The copy that is made, or a part of one that is read.
    copy: Vec<u8>,
}

impl Preparer for VolumePreparer {
    fn prepare(
        &mut self,
        sample: SampleId,
        draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        self.prepare_in_steps(sample, draw, place, record, &mut NoBoundary).map(|_| ())
    }

    fn prepare_in_steps(
        &mut self,
        sample: SampleId,
        draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
        boundary: &mut dyn Boundary,
    ) -> Result<Progress, Failure> {
        let mut laps = Laps::start();
        let seed = self.preparation.seed;
        self.preparation.pipeline.draw(&mut SampleRng::for_draw(seed, draw, sample), &mut self.plan);
        let loaded = self.load(sample, record);
        record.hints = match record.served {
            Form::Decoded => Hints::default(),
            _ => self.preparation.hints_of(sample, &self.plan),
        };
        let first = loaded.map_err(|refusal| self.failure(sample, refusal))?;
        record.decode = record.started.elapsed().saturating_sub(record.fetch);
        laps.end(0, record);
        self.transform(first, true, (sample, place, record, boundary))
    }

    fn go_on(
        &mut self,
        unfinished: Unfinished,
        sample: SampleId,
        place: &mut dyn Place,
        record: &mut SampleRecord,
        boundary: &mut dyn Boundary,
    ) -> Result<Progress, Failure> {
        let Ok(standing) = unfinished.downcast::<Standing>() else {
            let reason = "what was put aside of it is no volume".to_owned();
            return Err(self.failure(sample, Refusal::internal(reason)));
        };
        let Standing { volume, plan, next } = *standing;
        (self.volume, self.plan) = (volume, plan);
        self.transform(next, false, (sample, place, record, boundary))
    }
}

/// A volume that stands before operation `next`.
struct Standing {
    volume: Volume,
    plan: Plan,
    next: usize,
}

/// A sample and all that concerns it on its way.
type Part<'a> = (SampleId, &'a mut dyn Place, &'a mut SampleRecord, &'a mut dyn Boundary);

/// What became of an attempt to use a copy.
enum Recalled {
    /// The volume is loaded from it.
    Yes,
    /// There is one that was kept for other operations.
    Foreign,
    No,
}

impl VolumePreparer {
    /// Loads what the plan wants of a sample from where it is nearest, sees to it that what came from storage is kept if it may be, and
    /// tells which operation is next.
    fn load(&mut self, sample: SampleId, record: &mut SampleRecord) -> Result<usize, Refusal> {
        let Some(cache) = self.preparation.cache.clone() else {
            return self.read_stored(None, sample, record);
        };
        let recalled = self.recall(&cache, sample)?;
        if let Recalled::Yes = recalled {
            record.served = Form::Decoded;
            return Ok(self.form.prefix());
        }
        if self.read_kept(&cache, sample, record)? {
            record.served = Form::Encoded;
            return Ok(0);
        }
        self.read_stored(Some((&cache, matches!(recalled, Recalled::Foreign))), sample, record)
    }

    /// Loads a sample from its decoded copy.
    fn recall(&mut self, cache: &Cache, sample: SampleId) -> Result<Recalled, Refusal> {
        let Self { preparation, form, reader, volume, plan, copy } = self;
        let VolumePreparation { pipeline, known, .. } = &*preparation;
        let Some(held) = cache.get(sample, Form::Decoded) else { return Ok(Recalled::No) };
        let mut read = || -> Result<Result<Recalled, Refusal>, Corrupt> {
            let Some(decoded) = DecodedCopy::open(form, &held)? else { return Ok(Ok(Recalled::Foreign)) };
            let block = match pipeline.crop_at_reading() {
                None => Ok(Block::whole(decoded.layout.shape)),
                Some(crop) => {
                    let parts = match pipeline.wants_foreground(crop, plan) {
                        true => Some(known.get_or(sample, || decoded.foreground(&mut reader.all))?),
                        false => None,
                    };
                    pipeline.block(crop, plan, decoded.layout.shape, parts.as_deref())
                }
            };
            match block {
                Ok(block) => decoded.read(&block, volume, copy).map(|()| Ok(Recalled::Yes)),
                Err(error) => Ok(Err(error.into())),
            }
        };
        let answer = read();
        drop(held);
        answer.unwrap_or_else(|Corrupt| {
            cache.discard(sample, Form::Decoded);
            Ok(Recalled::No)
        })
    }

    /// Loads a sample from its encoded copy; false when there is none, or none that is whole.
    fn read_kept(
        &mut self,
        cache: &Cache,
        sample: SampleId,
        record: &mut SampleRecord,
    ) -> Result<bool, Refusal> {
        let Some(held) = cache.get(sample, Form::Encoded) else { return Ok(false) };
        let VolumePreparation { source, labels, .. } = self.preparation.clone();
        let Ok([image, label]) = CopiedFile::both(Copied::Kept(&held), &*source, &*labels) else {
            drop(held);
            cache.discard(sample, Form::Encoded);
            return Ok(false);
        };
        let taken = self.take(sample, (&image, &label), None);
        record.fetch += self.reader.fetch();
        let corrupt = image.is_corrupt() || label.is_corrupt();
        drop(held);
        if corrupt {
            cache.discard(sample, Form::Encoded);
            return Ok(false);
        }
        taken.map(|()| true)
    }

    /// Loads a sample from storage: just what the plan wants of it, or all of it where a copy of it may be kept. Tells which operation is
    /// next.
    fn read_stored(
        &mut self,
        cache: Option<(&Cache, bool)>,
        sample: SampleId,
        record: &mut SampleRecord,
    ) -> Result<usize, Refusal> {
        let VolumePreparation { source, labels, limits, channels, .. } = self.preparation.clone();
        let pair = Pair { source: &*source, labels: &*labels, limits, channels: Some(channels) };
        self.reader.start();
        let loaded = self.reader.open(&pair, sample).and_then(|headers| {
            let seat = cache.and_then(|(cache, foreign)| self.seat(cache, sample, &headers, foreign));
            match seat {
                None => self.take_opened(&pair, sample, &headers).map(|()| 0),
                Some(seat) if seat.form() == Form::Decoded => {
                    self.keep_decoded(&pair, sample, &headers, seat)
                }
                Some(seat) => self.keep_encoded(&pair, sample, seat).map(|()| 0),
            }
        });
        self.reader.note(record);
        loaded
    }

    /// A seat for a sample of which the headers were read, if it may stay.
    fn seat<'c>(
        &self,
        cache: &'c Cache,
        sample: SampleId,
        headers: &Headers,
        foreign: bool,
    ) -> Option<Reservation<'c>> {
        let (channels, shape, spacing) = (headers.image.channels, headers.image.shape, headers.image.spacing);
        let decoded =
            self.form.foresee(&self.preparation.pipeline, DecodedLayout { channels, shape, spacing });
        let files = usize::try_from(headers.bytes).ok().map(|bytes| copies::HEAD_BYTES + bytes);
        let decoded_bytes = cache.keeps(Form::Decoded).then(|| decoded.bytes());
        let offer = Offer { encoded_bytes: files, decoded_bytes, decoded_is_foreign: foreign };
        cache.reserve(sample, &offer)
    }

    /// Reads all of a sample, keeps what the operations that draw nothing make of it, and cuts out what the plan wants.
    fn keep_decoded(
        &mut self,
        pair: &Pair<'_>,
        sample: SampleId,
        headers: &Headers,
        seat: Reservation<'_>,
    ) -> Result<usize, Refusal> {
        let block = Block::whole(headers.image.shape);
        self.reader.take(pair, sample, headers, &block, &mut self.volume)?;
        let pipeline = Arc::clone(&self.preparation.pipeline);
        for index in 0..self.form.prefix() {
            self.step(index, sample)?;
        }
        self.form.make(&self.volume, &mut self.copy);
        seat.commit(&[&self.copy]);
        give_back_giant(&mut self.copy);
        if let Some(crop) = pipeline.crop_at_reading() {
            self.step(crop, sample)?;
        }
        Ok(self.form.prefix())
    }

    /// Reads both files of a sample, loads what the plan wants from there, and keeps them if they are good.
    fn keep_encoded(
        &mut self,
        pair: &Pair<'_>,
        sample: SampleId,
        seat: Reservation<'_>,
    ) -> Result<(), Refusal> {
        let mut copy = std::mem::take(&mut self.copy);
        copy.clear();
        copy.resize(copies::HEAD_BYTES, 0);
        self.reader.image.append(pair.source, sample, &mut copy)?;
        let image_bytes = (copy.len() - copies::HEAD_BYTES) as u64;
        copy[..copies::HEAD_BYTES].copy_from_slice(&image_bytes.to_le_bytes());
        let of_labels = |refusal: Refusal| refusal.of_labels(pair.labels.describe(sample));
        self.reader.labels.append(pair.labels, sample, &mut copy).map_err(of_labels)?;
        let both = CopiedFile::both(Copied::Read(&copy), pair.source, pair.labels);
        let [image, label] =
            both.map_err(|Corrupt| Refusal::internal("its copy has no length".to_owned()))?;
        let storage = self.reader.counted();
        self.take(sample, (&image, &label), Some(storage))?;
        seat.commit(&[&copy]);
        self.copy = copy;
        give_back_giant(&mut self.copy);
        Ok(())
    }

    /// Loads what the plan wants of a sample from these files. Reading them is no reading of storage: what was counted of that stays as
    /// it was.
    fn take(
        &mut self,
        sample: SampleId,
        (image, labels): (&CopiedFile<'_>, &CopiedFile<'_>),
        storage: Option<Counted>,
    ) -> Result<(), Refusal> {
        let VolumePreparation { limits, channels, .. } = self.preparation;
        let pair = Pair { source: image, labels, limits, channels: Some(channels) };
        self.reader.start();
        let taken =
            self.reader.open(&pair, sample).and_then(|headers| self.take_opened(&pair, sample, &headers));
        if let Some(storage) = storage {
            self.reader.restore(storage);
        }
        taken
    }

    /// Loads what the plan wants of a sample of which the headers were read last.
    fn take_opened(&mut self, pair: &Pair<'_>, sample: SampleId, headers: &Headers) -> Result<(), Refusal> {
        let Self { preparation, reader, volume, plan, .. } = self;
        let VolumePreparation { pipeline, known, .. } = &*preparation;
        let block = match pipeline.crop_at_reading() {
            None => Block::whole(headers.labels.shape),
            Some(crop) => {
                let parts = if pipeline.wants_foreground(crop, plan) {
                    Some(known.get_or(sample, || reader.foreground(pair, sample, &headers.labels))?)
                } else {
                    None
                };
                pipeline.block(crop, plan, headers.labels.shape, parts.as_deref())?
            }
        };
        reader.take(pair, sample, headers, &block, volume)
    }

    /// Runs one operation.
    fn step(&mut self, index: usize, sample: SampleId) -> Result<(), Refusal> {
        let Self { preparation: VolumePreparation { pipeline, known, .. }, plan, volume, .. } = self;
        let find = |labels: &[u8], shape| {
            let found: Result<_, std::convert::Infallible> =
                known.get_or(sample, || Ok(Foreground::find(labels, shape)));
            match found {
                Ok(found) => found,
                Err(never) => match never {},
            }
        };
        Ok(pipeline.step(index, plan, volume, find)?)
    }

    fn failure(&self, sample: SampleId, refusal: Refusal) -> Failure {
        Failure::new(sample, self.preparation.source.describe(sample), refusal.kind, refusal.reason)
    }

    /// Runs the operations from `first` on and writes the result, unless others are to go first. One that was taken up again, and
    /// is not `fresh`, has work to do before it may be put aside once more.
    fn transform(
        &mut self,
        first: usize,
        fresh: bool,
        (sample, place, record, boundary): Part<'_>,
    ) -> Result<Progress, Failure> {
        let begun = Instant::now();
        let mut laps = Laps::start();
        let pipeline = Arc::clone(&self.preparation.pipeline);
        let at_reading = pipeline.crop_at_reading();
        let step_of = |index: usize| 1 + index - usize::from(at_reading.is_some_and(|crop| crop < index));
        for next in (first..pipeline.steps()).filter(|&index| at_reading != Some(index)) {
            if (fresh || next > first) && boundary.parks(step_of(next)) {
                record.augment += begun.elapsed();
                let (volume, plan) = (std::mem::take(&mut self.volume), std::mem::take(&mut self.plan));
                return Ok(Progress::Parked(Box::new(Standing { volume, plan, next })));
            }
            self.step(next, sample).map_err(|refusal| self.failure(sample, refusal))?;
            laps.end(step_of(next), record);
        }
        let volume = &self.volume;
        let (image, label) = volume.bytes();
        match place.target() {
            None => return Ok(Progress::Finished),
            Some(Target::Row(row)) => {
                volume.write(row, &mut []);
                if let Some(beside) = place.beside() {
                    volume.write(&mut [], beside);
                }
            }
            Some(Target::Own(own)) => {
                // Whoever allowed more than a shape can say has no memory for it either.
                own.shape = volume.shape.map(|side| u32::try_from(side).unwrap_or(u32::MAX));
                own.data.resize(image + label, 0);
                let (image, label) = own.data.split_at_mut(image);
                volume.write(image, label);
            }
        }
        laps.end(step_of(pipeline.steps()) - 1, record);
        record.augment += begun.elapsed();
        Ok(Progress::Finished)
    }
}
