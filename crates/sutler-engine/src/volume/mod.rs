//! Volumes: draw, read just the block that a crop wants of image and labels, transform.

mod known;
mod reading;

use std::sync::Arc;
use std::time::Instant;

use sutler_core::{Hints, SampleId, SampleRng};
use sutler_media::volume::{Block, Foreground, Header, Limits, Pipeline, Plan, Volume, VolumeError};
use sutler_store::Source;

use crate::preparation::Laps;
use crate::{
    Boundary, Failure, Likeness, NoBoundary, Place, Preparation, Preparer, Progress, RowSpec, SampleRecord,
    Target, Unfinished,
};
use known::Known;
use reading::{FileReader, Refusal};

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
        Some(Self { source, labels, pipeline, limits, channels, seed, known: Arc::default() })
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

    /// Only jobs that do the same share anything: volumes have no form between the file and the finished sample that is kept.
    fn likeness(&self) -> Likeness {
        let finished = format!("{:?}", self.pipeline);
        Likeness { decoded: finished.clone(), finished, decoded_on_the_way: false }
    }

    fn hints(&self, sample: SampleId, epoch: u32) -> Hints {
        let mut plan = Plan::default();
        self.pipeline.draw(&mut SampleRng::new(self.seed, epoch, sample), &mut plan);
        self.hints_of(sample, &plan)
    }

    /// A crop that is done at reading is part of the first step.
    fn steps(&self) -> Vec<String> {
        let at_reading = self.pipeline.crop_at_reading();
        let names = (0..self.pipeline.steps()).filter(|&index| at_reading != Some(index));
        let names = names.map(|index| self.pipeline.name(index).to_owned());
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
            reader: VolumeReader::default(),
            volume: Volume::default(),
            plan: Plan::default(),
        })
    }
}

struct VolumePreparer {
    preparation: VolumePreparation,
    reader: VolumeReader,
    volume: Volume,
    plan: Plan,
}

impl Preparer for VolumePreparer {
    fn prepare(
        &mut self,
        sample: SampleId,
        epoch: u32,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        self.prepare_in_steps(sample, epoch, place, record, &mut NoBoundary).map(|_| ())
    }

    fn prepare_in_steps(
        &mut self,
        sample: SampleId,
        epoch: u32,
        place: &mut dyn Place,
        record: &mut SampleRecord,
        boundary: &mut dyn Boundary,
    ) -> Result<Progress, Failure> {
        let mut laps = Laps::start();
        record.hints = self.preparation.hints(sample, epoch);
        let Self { preparation, reader, volume, plan } = self;
        let VolumePreparation { source, labels, pipeline, limits, channels, seed, known } = &*preparation;

        pipeline.draw(&mut SampleRng::new(*seed, epoch, sample), plan);
        reader.start();
        let channels = Some(*channels);
        let pair = Pair { source: &**source, labels: &**labels, limits: *limits, channels };
        let at_reading = pipeline.crop_at_reading();
        let read = reader.read(&pair, sample, volume, |reader, labels| {
            let Some(crop) = at_reading else { return Ok(Block::whole(labels.shape)) };
            let parts = if pipeline.wants_foreground(crop, plan) {
                Some(known.get_or(sample, || reader.foreground(&pair, sample, labels))?)
            } else {
                None
            };
            Ok(pipeline.block(crop, plan, labels.shape, parts.as_deref())?)
        });
        reader.note(record);
        record.hints = preparation.hints_of(sample, plan);
        read.map_err(|refusal| self.failure(sample, refusal))?;
        record.decode = record.started.elapsed().saturating_sub(record.fetch);
        laps.end(0, record);
        self.transform(0, true, (sample, place, record, boundary))
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

impl VolumePreparer {
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
        let known = Arc::clone(&self.preparation.known);
        let find = |labels: &[u8], shape| {
            let found: Result<_, std::convert::Infallible> =
                known.get_or(sample, || Ok(Foreground::find(labels, shape)));
            match found {
                Ok(found) => found,
                Err(never) => match never {},
            }
        };
        let at_reading = pipeline.crop_at_reading();
        let step_of = |index: usize| 1 + index - usize::from(at_reading.is_some_and(|crop| crop < index));
        for next in (first..pipeline.steps()).filter(|&index| at_reading != Some(index)) {
            if (fresh || next > first) && boundary.parks(step_of(next)) {
                record.augment += begun.elapsed();
                let (volume, plan) = (std::mem::take(&mut self.volume), std::mem::take(&mut self.plan));
                return Ok(Progress::Parked(Box::new(Standing { volume, plan, next })));
            }
            let stepped = pipeline.step(next, &self.plan, &mut self.volume, find);
            stepped.map_err(|error| self.failure(sample, error.into()))?;
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

/// Where image and labels come from, and what is refused.
struct Pair<'a> {
    source: &'a dyn Source,
    labels: &'a dyn Source,
    limits: Limits,
    /// How many channels an image must have, if that matters.
    channels: Option<usize>,
}

/// A worker's memory for reading volumes.
#[derive(Default)]
struct VolumeReader {
    image: FileReader,
    labels: FileReader,
    /// All labels of a sample, where its parts are looked for.
    all: Vec<u8>,
}

impl VolumeReader {
    fn start(&mut self) {
        self.image.start();
        self.labels.start();
    }

    /// Notes what reading took.
    fn note(&self, record: &mut SampleRecord) {
        for file in [&self.image, &self.labels] {
            record.fetch += file.fetch;
            record.storage_reads += file.reads;
            record.storage_bytes += file.bytes();
        }
    }

    /// Reads the block that `choose` chooses when it knows the header of the labels, which have the image's shape.
    fn read(
        &mut self,
        pair: &Pair<'_>,
        sample: SampleId,
        volume: &mut Volume,
        choose: impl FnOnce(&mut Self, &Header) -> Result<Block, Refusal>,
    ) -> Result<(), Refusal> {
        let header = self.image.open(pair.source, sample, pair.limits)?;
        if let Some(expected) = pair.channels.filter(|&expected| expected != header.channels) {
            return Err(VolumeError::Channels { channels: header.channels, expected }.into());
        }
        let of_labels = |refusal: Refusal| refusal.of_labels(pair.labels.describe(sample));
        let labels = self.labels.open(pair.labels, sample, pair.limits).map_err(of_labels)?;
        if labels.channels != 1 {
            return Err(of_labels(VolumeError::Channels { channels: labels.channels, expected: 1 }.into()));
        }
        if labels.shape != header.shape {
            let labels_path = pair.labels.describe(sample);
            return Err(
                VolumeError::Mismatch { image: header.shape, labels_path, labels: labels.shape }.into()
            );
        }
        let block = choose(self, &labels)?;
        volume.reset(header.channels, block.sides(), header.spacing);
        let places = volume.places();
        let slabs = self.image.slabs(pair.source, sample, &header, &block)?;
        for (channel, out) in volume.image.chunks_exact_mut(places).enumerate() {
            header.channel(channel).floats(&block, slabs.of_channel(&header, &block, channel), out);
        }
        self.labels
            .slabs(pair.labels, sample, &labels, &block)
            .and_then(|slabs| {
                Ok(labels.labels(&block, slabs.of_channel(&labels, &block, 0), &mut volume.label)?)
            })
            .map_err(of_labels)
    }

    /// Looks for the labelled parts of a sample in all of its labels.
    fn foreground(
        &mut self,
        pair: &Pair<'_>,
        sample: SampleId,
        header: &Header,
    ) -> Result<Foreground, Refusal> {
        let block = Block::whole(header.shape);
        let of_labels = |refusal: Refusal| refusal.of_labels(pair.labels.describe(sample));
        let slabs = self.labels.slabs(pair.labels, sample, header, &block).map_err(of_labels)?;
        self.all.resize(block.values(), 0);
        header
            .labels(&block, slabs.of_channel(header, &block, 0), &mut self.all)
            .map_err(|error| of_labels(error.into()))?;
        Ok(Foreground::find(&self.all, header.shape))
    }
}

/// All of a sample's image and labels, as its files have them: of so many channels, or of any number.
///
/// # Errors
/// When one of them cannot be read, or they do not belong together.
pub fn read_volume(
    source: &dyn Source,
    sample: SampleId,
    limits: Limits,
    channels: Option<usize>,
) -> Result<Volume, Failure> {
    let failure = |kind, reason| Failure::new(sample, source.describe(sample), kind, reason);
    let Some(labels) = source.partners() else {
        return Err(failure("labels", "the dataset has no labels".to_owned()));
    };
    let pair = Pair { source, labels: &*labels, limits, channels };
    let mut volume = Volume::default();
    VolumeReader::default()
        .read(&pair, sample, &mut volume, |_, labels| Ok(Block::whole(labels.shape)))
        .map_err(|refusal| failure(refusal.kind, refusal.reason))?;
    Ok(volume)
}
