//! The decoded form of a sample: what of its preparation is the same in every epoch, as bytes that can be kept.
//!
//! The promise is that a sample comes out the same whether it starts from its file or from here, to the last bit.
//! So what is kept depends on what the pipeline does first:
//!
//! * It begins with transforms that draw nothing and touch pixels, such as a resize: their result is kept, and every epoch
//!   goes on from there. For an evaluation pipeline that is everything but the conversion to floats.
//! * It begins with something random, such as a random crop: the picture is kept as it was decoded.
//! * As before, but the file is a JPEG that the decoder may shrink on the way because a resize follows. How far, depends on
//!   the crop that an epoch draws, and a picture shrunk by the decoder is not the same as one shrunk from full size. So
//!   the picture is kept at each size that a crop could ask for: at 1/2, 1/4 and 1/8 it adds a third to the bytes at most.
//!   Without `dct_scaling` one size is enough.
//!
//! Several pipelines may use one decoded form. A picture as it was decoded serves any of them, at the scales it is kept at;
//! what transforms have made of it serves those that begin with the very same transforms, which is why it carries their name.

use sutler_core::{Fingerprint, SampleId, SampleRng};

use super::draw::{Plan, draw};
use super::fuse::{Source, averages};
use super::geometry::resized;
use super::op::Op;
use super::pipeline::{Layout, Pipeline, PipelineError};
use super::worker::Worker;
use super::{Rect, Size};
use crate::decode::{Header, Request, Scale};
use crate::kept::{self, Rows, name_of};

/// What leads the pixels: the name of the transforms that were done, a word for what follows, and two sizes.
type Head = kept::Head<5>;

const HEAD_BYTES: usize = Head::BYTES;

/// Beside the coarsest scale in the word of a head: the decoder can shrink the file on the way.
const SCALABLE: u32 = 16;

/// All scales, from the finest.
const SCALES: [Scale; 4] = [Scale::Full, Scale::Half, Scale::Quarter, Scale::Eighth];

/// A pipeline, cut where randomness begins.
#[derive(Clone, Debug)]
pub struct DecodedForm {
    whole: Pipeline,
    before: Pipeline,
    after: Pipeline,
    /// Names the transforms of `before` and how they are run.
    name: Fingerprint,
}

/// How a sample's decoded form is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedLayout {
    /// The size of the image in its file.
    source: Size,
    kept: Kept,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// One picture, after the transforms of this name, which draw nothing.
    Finished(Size, Fingerprint),
    /// The decoded image at its full size and at every scale down to the coarsest that is kept.
    Scales {
        coarsest: Scale,
        /// Whether the file is one that the decoder can shrink, so that a crop may ask for another scale.
        scalable: bool,
    },
}

impl DecodedForm {
    /// Cuts a pipeline where randomness begins.
    #[must_use]
    pub fn new(pipeline: &Pipeline) -> Self {
        let (before, after) = pipeline.split(pipeline.static_prefix());
        let name = name_of(format!("{:?}", before.options()), before.ops());
        Self { whole: pipeline.clone(), before, after, name }
    }

    /// What decides how samples are kept: two pipelines that agree in this make the same of every file.
    #[must_use]
    pub fn likeness(&self) -> String {
        let mut scales = String::new();
        for op in self.whole.ops() {
            // The same steps as in `coarsest`.
            match op {
                Op::Resize { size, max_size, interpolation, antialias } => {
                    scales += &format!(" {size:?} {max_size:?} {}", averages(*interpolation, *antialias));
                }
                Op::RandomResizedCrop { size, interpolation, antialias, .. } => {
                    scales += &format!(" {size:?} {}", averages(*interpolation, *antialias));
                }
                Op::CenterCrop { size } | Op::RandomCrop { size, .. } => scales += &format!(" {size:?}"),
                op if needs_pixels(op) => break,
                _ => {}
            }
        }
        format!("{} {:?}{scales}", self.name, self.whole.options())
    }

    /// Whether every epoch goes on from the result of transforms, so that making the decoded form is part of the way there.
    #[must_use]
    pub fn is_on_the_way(&self) -> bool {
        !self.before.ops().is_empty()
    }

    /// How the sample with this header would be kept. `plan` is scratch.
    ///
    /// # Errors
    /// When a transform does not fit the image.
    pub fn layout(&self, header: &Header, plan: &mut Plan) -> Result<DecodedLayout, PipelineError> {
        self.draw_before(header, plan)?;
        let source = Size { width: header.width, height: header.height };
        let coarsest = self.coarsest(header);
        let untouched = plan.fused.stages.is_empty() && coarsest != Scale::Full;
        let kept = if untouched || self.before.ops().is_empty() {
            Kept::Scales { coarsest, scalable: header.can_scale(Scale::Eighth) }
        } else {
            Kept::Finished(plan.output, self.name)
        };
        Ok(DecodedLayout { source, kept })
    }

    /// Makes a sample's decoded form, over whatever `out` held. False when that cannot be done without a word from the
    /// decoder; then the sample is to be prepared from its file, which says what is wrong with it.
    pub fn make(
        &self,
        layout: &DecodedLayout,
        header: &Header,
        bytes: &[u8],
        tools: (&mut Worker, &mut Plan),
        out: &mut Vec<u8>,
    ) -> bool {
        let (worker, plan) = tools;
        out.clear();
        layout.head().write(out);
        match layout.kept {
            Kept::Finished(..) => {
                let drawn = self.draw_before(header, plan).is_ok();
                out.resize(layout.bytes(), 0);
                drawn
                    && worker.decode(&self.before, plan, header, bytes) == Ok(0)
                    && worker.augment(&self.before, plan, Layout::Nhwc, &mut out[HEAD_BYTES..]).is_ok()
            }
            Kept::Scales { coarsest, .. } => scales_to(coarsest).all(|scale| {
                let region = Rect::whole(header.width, header.height);
                worker.decode_picture(&Request { region, scale }, header, bytes, out)
            }),
        }
    }

    /// Makes every random decision for a sample that is kept like this: the same ones as from its file.
    ///
    /// # Errors
    /// When a transform does not fit the image, or the sample is kept as another pipeline needs it.
    pub fn draw(
        &self,
        layout: &DecodedLayout,
        rng: &mut SampleRng,
        plan: &mut Plan,
    ) -> Result<(), PipelineError> {
        let source = match layout.kept {
            Kept::Finished(_, name) if name != self.name => return Err(PipelineError::NotDecoded),
            Kept::Finished(size, _) => Source { size, coarsest: Scale::Full },
            Kept::Scales { scalable: true, .. } => Source { size: layout.source, coarsest: Scale::Eighth },
            Kept::Scales { scalable: false, .. } => Source { size: layout.source, coarsest: Scale::Full },
        };
        draw(self.rest(layout), &source, rng, plan)
    }

    /// What is still to be done to a sample that is kept like this.
    #[must_use]
    pub fn rest(&self, layout: &DecodedLayout) -> &Pipeline {
        match layout.kept {
            Kept::Finished(..) => &self.after,
            Kept::Scales { .. } => &self.whole,
        }
    }

    /// Draws for the transforms that draw nothing; it does not matter from what.
    fn draw_before(&self, header: &Header, plan: &mut Plan) -> Result<(), PipelineError> {
        self.before.draw(header, &mut SampleRng::new(0, 0, SampleId(0)), plan)
    }

    /// The coarsest scale that any epoch can ask the decoder for, if the transforms that draw nothing touch no pixels.
    fn coarsest(&self, header: &Header) -> Scale {
        let mut size = Size { width: header.width, height: header.height };
        let mut coarsest = Scale::Full;
        if !self.whole.options().dct_scaling || !header.can_scale(Scale::Eighth) {
            return coarsest;
        }
        let mut note = |from: Size, to: Size| {
            let fits = |scale: &Scale| {
                from.width / scale.denominator() >= to.width && from.height / scale.denominator() >= to.height
            };
            let found = SCALES.into_iter().rfind(fits).unwrap_or(Scale::Full);
            if found.denominator() > coarsest.denominator() {
                coarsest = found;
            }
        };
        for op in self.whole.ops() {
            match op {
                Op::Resize { size: to, max_size, interpolation, antialias } => {
                    let to = resized(*to, *max_size, size);
                    if to != size {
                        if averages(*interpolation, *antialias) {
                            note(size, to);
                        }
                        break;
                    }
                }
                Op::RandomResizedCrop { size: to, interpolation, antialias, .. } => {
                    let to = Size::from_height_width(*to);
                    if averages(*interpolation, *antialias) {
                        note(size, to);
                    }
                    size = to; // and on, for a crop of just this size needs no resize
                }
                Op::CenterCrop { size: to } | Op::RandomCrop { size: to, .. } => {
                    size = Size::from_height_width(*to);
                }
                op if needs_pixels(op) => break,
                _ => {}
            }
        }
        coarsest
    }
}

/// Whether an operation needs the pixels as they are, so that nothing after it has a say in the decoder's scale.
fn needs_pixels(op: &Op) -> bool {
    matches!(
        op,
        Op::Pad { .. }
            | Op::ColorJitter { .. }
            | Op::GaussianBlur { .. }
            | Op::RandAugment { .. }
            | Op::TrivialAugmentWide { .. }
    )
}

fn scales_to(coarsest: Scale) -> impl Iterator<Item = Scale> {
    SCALES.into_iter().filter(move |scale| scale.denominator() <= coarsest.denominator())
}

impl DecodedLayout {
    /// How many bytes lead the decoded form: enough to read its layout back.
    pub const HEAD_BYTES: usize = HEAD_BYTES;

    /// The size of the image in its file.
    #[must_use]
    pub fn source_size(&self) -> Size {
        self.source
    }

    /// How many bytes the decoded form has.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let pixels: usize = match self.kept {
            Kept::Finished(size, _) => pixels_of(size),
            Kept::Scales { coarsest, .. } => scales_to(coarsest).map(|scale| pixels_of(self.at(scale))).sum(),
        };
        HEAD_BYTES + pixels * 3
    }

    fn at(&self, scale: Scale) -> Size {
        let (width, height) = scale.of_size(self.source.width, self.source.height);
        Size { width, height }
    }

    fn head(&self) -> Head {
        let (word, picture, name) = match self.kept {
            Kept::Finished(size, name) => (0, size, name),
            Kept::Scales { coarsest, scalable } => {
                (coarsest.denominator() + if scalable { SCALABLE } else { 0 }, self.source, Fingerprint(0))
            }
        };
        Head { name, numbers: [word, self.source.width, self.source.height, picture.width, picture.height] }
    }

    /// Reads a layout back from the first bytes of a decoded form; `None` when they are none.
    #[must_use]
    pub fn from_head(head: &[u8; HEAD_BYTES]) -> Option<Self> {
        let Head { name, numbers: [word, width, height, picture_width, picture_height] } = Head::read(head)?;
        let source = Size { width, height };
        let kept = match word {
            0 => Kept::Finished(Size { width: picture_width, height: picture_height }, name),
            word => {
                let scalable = word >= SCALABLE;
                let denominator = if scalable { word - SCALABLE } else { word };
                let coarsest = SCALES.into_iter().find(|scale| scale.denominator() == denominator)?;
                Kept::Scales { coarsest, scalable }
            }
        };
        Some(Self { source, kept })
    }

    /// The part of a picture that a plan needs: its rows, its place in the picture, and how many source pixels a pixel
    /// stands for. `None` when the plan was not drawn for this.
    pub(crate) fn wanted(&self, plan: &Plan) -> Option<(Rows, Rect, u32)> {
        let scale = plan.fused.scale;
        let (picture, start) = match self.kept {
            Kept::Finished(size, _) => (size, HEAD_BYTES),
            Kept::Scales { coarsest, .. } if scale.denominator() <= coarsest.denominator() => {
                let finer = SCALES.into_iter().take_while(|finer| *finer != scale);
                (self.at(scale), HEAD_BYTES + finer.map(|finer| pixels_of(self.at(finer)) * 3).sum::<usize>())
            }
            Kept::Scales { .. } => return None,
        };
        let denominator = if picture == self.source { 1 } else { scale.denominator() };
        let (region, denominator) = match self.kept {
            Kept::Finished(..) => (plan.fused.region, 1),
            Kept::Scales { .. } => {
                let request = Request { region: plan.fused.region, scale };
                (request.scaled_within(self.source), denominator)
            }
        };
        if !Rect::whole(picture.width, picture.height).contains(&region) {
            return None;
        }
        let stride = picture.width as usize * 3;
        let first = region.y as usize * stride + region.x as usize * 3;
        let rows = Rows {
            start: start + first,
            bytes: region.width as usize * 3,
            stride,
            count: region.height as usize,
        };
        Some((rows, region, denominator))
    }
}

fn pixels_of(size: Size) -> usize {
    size.width as usize * size.height as usize
}
