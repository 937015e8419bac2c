//! Pictures with boxes: prepared as pictures are, while their boxes are taken the same way.

use std::sync::Arc;

use sutler_core::{Draw, Form, Hints, SampleId, SampleRng};
use sutler_media::{MovedBox, PipelineError, Plan};
use sutler_store::Annotations;

use crate::image::ImagePreparer;
use crate::preparation::{Boundary, NoBoundary, Progress, Unfinished};
use crate::{
    Exchange, Failure, Framing, ImagePreparation, Likeness, OwnSample, Place, Preparation, Preparer, RowSpec,
    SampleRecord, Target,
};

/// What a box takes behind the values of its picture: its place among the sample's, and its edges.
const BOX_BYTES: usize = 4 + 4 * 4;

/// How the pictures of a job and their boxes are prepared.
#[derive(Clone)]
pub struct DetectionPreparation {
    /// How the pictures are.
    pub images: ImagePreparation,
    /// Their boxes.
    pub annotations: Arc<Annotations>,
    /// How the pictures of a batch become one block, if they do.
    pub framing: Option<Framing>,
}

impl DetectionPreparation {
    /// How these pictures are prepared with their boxes, in frames whose sides are multiples of `frame` if it is given;
    /// `None` where they have no boxes.
    ///
    /// # Errors
    /// When boxes cannot follow what is done to the pictures.
    pub fn of(images: &ImagePreparation, frame: Option<u32>) -> Result<Option<Self>, PipelineError> {
        let Some(annotations) = images.source.annotations() else { return Ok(None) };
        if let Some((index, op)) = images.pipeline.loses_boxes() {
            let reason =
                "it turns and shears pictures, and boxes cannot follow it there; leave it out".to_owned();
            return Err(PipelineError::Refused { index, op, reason });
        }
        let (dtype, layout) = (images.pipeline.output().dtype, images.layout);
        let framing = frame.map(|multiple| Framing { multiple, dtype, layout });
        Ok(Some(Self { images: images.clone(), annotations: Arc::clone(annotations), framing }))
    }
}

impl Preparation for DetectionPreparation {
    fn row(&self) -> RowSpec {
        RowSpec::Varies
    }

    fn framing(&self) -> Option<Framing> {
        self.framing
    }

    fn kept_as(&self, sample: SampleId) -> Form {
        self.images.kept_as(sample)
    }

    fn likeness(&self) -> Likeness {
        self.images.likeness()
    }

    fn hints(&self, sample: SampleId, draw: Draw) -> Hints {
        self.images.hints(sample, draw)
    }

    fn steps(&self) -> Vec<String> {
        self.images.steps()
    }

    fn label(&self, sample: SampleId) -> i64 {
        self.images.label(sample)
    }

    fn describe(&self, sample: SampleId) -> String {
        self.images.describe(sample)
    }

    fn preparer(&self) -> Box<dyn Preparer> {
        Box::new(DetectionPreparer {
            images: ImagePreparer::new(&self.images),
            preparation: self.clone(),
            plan: Plan::default(),
            moved: Vec::new(),
        })
    }
}

struct DetectionPreparer {
    preparation: DetectionPreparation,
    images: ImagePreparer,
    /// What is drawn for a picture of the size that its annotations say it has.
    plan: Plan,
    moved: Vec<MovedBox>,
}

/// A picture that was put aside, and the draw that its boxes are for.
struct Standing {
    picture: Unfinished,
    draw: Draw,
}

impl Preparer for DetectionPreparer {
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
        // A buffer of its own is no row, so that it can be asked for before the picture is there.
        let Some(mut target) = place.target() else { return Ok(Progress::Finished) };
        let progress = self.images.prepare_in_steps(sample, draw, &mut target, record, boundary)?;
        self.follow(progress, sample, draw, target)
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
            let reason = "what was put aside of it is no picture with boxes; report this".to_owned();
            return Err(self.failure(sample, "internal", reason));
        };
        let Standing { picture, draw } = *standing;
        let Some(mut target) = place.target() else { return Ok(Progress::Finished) };
        let progress = self.images.go_on(picture, sample, &mut target, record, boundary)?;
        self.follow(progress, sample, draw, target)
    }

    fn prepare_with(
        &mut self,
        exchange: Exchange<'_>,
        sample: SampleId,
        draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        let Some(mut target) = place.target() else { return Ok(()) };
        self.images.prepare_with(exchange, sample, draw, &mut target, record)?;
        self.follow(Progress::Finished, sample, draw, target).map(|_| ())
    }
}

impl DetectionPreparer {
    /// Puts the boxes of a finished picture behind it.
    fn follow(
        &mut self,
        progress: Progress,
        sample: SampleId,
        draw: Draw,
        target: Target<'_>,
    ) -> Result<Progress, Failure> {
        if let Progress::Parked(picture) = progress {
            return Ok(Progress::Parked(Box::new(Standing { picture, draw })));
        }
        let Target::Own(own) = target else {
            let reason = "there is no room for its boxes; report this".to_owned();
            return Err(self.failure(sample, "internal", reason));
        };
        let annotations = &self.preparation.annotations;
        let picture = annotations.picture(sample);
        let size = self.images.source_size();
        picture
            .check(size.width, size.height)
            .map_err(|reason| self.failure(sample, "annotation", reason))?;
        let (pipeline, seed) = (&self.preparation.images.pipeline, self.preparation.images.seed);
        // Drawn again for the whole pipeline: a picture that comes from a copy was drawn the rest alone.
        let drawn = pipeline.draw_decoded(size, &mut SampleRng::for_draw(seed, draw, sample), &mut self.plan);
        drawn.map_err(|error| self.failure(sample, "transform", error.to_string()))?;
        let boxes = annotations.objects(sample).iter().map(|object| object.edges);
        self.plan.move_boxes(pipeline, size, boxes, &mut self.moved);
        own.data.reserve(self.moved.len() * BOX_BYTES);
        for MovedBox { index, edges } in &self.moved {
            own.data.extend(index.to_le_bytes());
            edges.iter().for_each(|edge| own.data.extend(edge.to_le_bytes()));
        }
        Ok(Progress::Finished)
    }

    fn failure(&self, sample: SampleId, kind: &'static str, reason: String) -> Failure {
        Failure::new(sample, self.preparation.describe(sample), kind, reason)
    }
}

/// The boxes of a sample, from what it has besides its picture.
#[must_use]
pub fn read_boxes(beside: &[u8]) -> Vec<MovedBox> {
    let (boxes, _) = beside.as_chunks::<BOX_BYTES>();
    let number = |bytes: &[u8; BOX_BYTES], index: usize| {
        u32::from_le_bytes(std::array::from_fn(|byte| bytes[index * 4 + byte]))
    };
    let read = |bytes: &[u8; BOX_BYTES]| MovedBox {
        index: number(bytes, 0),
        edges: std::array::from_fn(|edge| f32::from_bits(number(bytes, edge + 1))),
    };
    boxes.iter().map(read).collect()
}

/// A sample that came alone: its boxes, which are taken from behind the values of its picture.
#[must_use]
pub fn take_boxes(sample: &mut OwnSample, value_bytes: usize) -> Vec<MovedBox> {
    let [height, width, channels] = sample.shape.map(|side| side as usize);
    let picture_bytes = (height * width * channels * value_bytes).min(sample.data.len());
    let boxes = read_boxes(&sample.data[picture_bytes..]);
    sample.data.truncate(picture_bytes);
    boxes
}
