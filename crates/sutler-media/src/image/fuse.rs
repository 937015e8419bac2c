//! From decisions to the least work.
//!
//! Think of a photograph under a mount: cropping only moves the mount, mirroring only turns the whole, and neither
//! touches the paper. So crops and mirrors are written down rather than done. They are settled when something
//! needs the pixels in place: a resize takes the mount as its window, and a crop that follows the resize shrinks what the
//! resize computes. What the first step needs of the source is all that gets decoded; what is still written
//! down at the end is folded into the copy to the batch.

use super::draw::{Drawn, Erasure};
use super::geometry::Flips;
use super::op::{Interpolation, Op};
use super::pipeline::Pipeline;
use super::weights::support;
use super::{Rect, Size};
use crate::decode::Scale;

/// What there is to decode from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// The size of the whole image.
    pub size: Size,
    /// The coarsest scale that the decoder can produce at less cost than the full size.
    pub coarsest: Scale,
}

/// A resize of `from` to `to`, of which only `keep` is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Resample {
    pub from: Rect,
    pub to: Size,
    pub keep: Rect,
    pub interpolation: Interpolation,
    pub antialias: bool,
    /// The mirrors written down before it: which way a tie goes is decided behind them.
    pub flips: Flips,
}

/// One pass over the pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stage {
    Resample(Resample),
    /// Cut this window out.
    Crop(Rect),
    Flip(Flips),
    /// Run the operation of this index.
    Apply(usize),
}

/// A rectangle overwritten after the values have become floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Patch {
    pub op: usize,
    pub erasure: Erasure,
    /// The mirrors between the operation and the output.
    pub flips: Flips,
}

/// How a sample is run.
#[derive(Clone, Debug)]
pub(crate) struct Fused {
    /// The part of the source that the first stage reads, in full-size coordinates, and the scale to decode it at.
    pub region: Rect,
    pub scale: Scale,
    pub stages: Vec<Stage>,
    /// The part of the last stage's pixels that comes out, and the mirrors it comes out through.
    pub window: Rect,
    pub flips: Flips,
    pub patches: Vec<Patch>,
}

impl Default for Fused {
    fn default() -> Self {
        Self {
            region: Rect::default(),
            scale: Scale::Full,
            stages: Vec::new(),
            window: Rect::default(),
            flips: Flips::NONE,
            patches: Vec::new(),
        }
    }
}

/// Works out the stages for what was drawn; `fused` is overwritten and its memory reused.
pub(crate) fn fuse(pipeline: &Pipeline, source: &Source, drawn: &[Drawn], fused: &mut Fused) {
    fused.stages.clear();
    fused.patches.clear();
    let mut mount = Mount { paper: source.size, window: whole(source.size), flips: Flips::NONE };
    for (index, (op, drawn)) in pipeline.ops().iter().zip(drawn).enumerate() {
        match (op, drawn) {
            (Op::Resize { interpolation, antialias, .. }, Drawn::Resize(to)) => {
                mount.resize(*to, *interpolation, *antialias, &mut fused.stages);
            }
            (Op::RandomResizedCrop { interpolation, antialias, .. }, Drawn::ResizedCrop { window, to }) => {
                mount.crop(*window, &mut fused.stages);
                mount.resize(*to, *interpolation, *antialias, &mut fused.stages);
            }
            (_, Drawn::Crop { padding: [0, 0, 0, 0], window }) => mount.crop(*window, &mut fused.stages),
            (_, Drawn::Crop { window, .. }) => {
                mount.settle(true, &mut fused.stages);
                mount.apply(index, window.size(), &mut fused.stages);
            }
            (Op::RandomHorizontalFlip { .. }, Drawn::Applied(applied)) => mount.flips.horizontal ^= applied,
            (Op::RandomVerticalFlip { .. }, Drawn::Applied(applied)) => mount.flips.vertical ^= applied,
            (Op::RandomGrayscale { .. }, Drawn::Applied(true)) | (Op::ColorJitter { .. }, _) => {
                // A pixel's new colour does not depend on where it stands, so the mirrors can wait.
                mount.settle(false, &mut fused.stages);
                mount.apply(index, mount.size(), &mut fused.stages);
            }
            (Op::RandomErasing { .. }, Drawn::Erase(Some(erasure))) => {
                if pipeline.is_float_at(index) {
                    fused.patches.push(Patch { op: index, erasure: *erasure, flips: mount.flips });
                } else {
                    mount.settle(true, &mut fused.stages);
                    mount.apply(index, mount.size(), &mut fused.stages);
                }
            }
            (Op::Pad { padding: [left, top, right, bottom], .. }, _) => {
                mount.settle(true, &mut fused.stages);
                let Size { width, height } = mount.size();
                let after = Size { width: width + left + right, height: height + top + bottom };
                mount.apply(index, after, &mut fused.stages);
            }
            (Op::GaussianBlur { .. } | Op::RandAugment { .. } | Op::TrivialAugmentWide { .. }, _) => {
                mount.settle(true, &mut fused.stages);
                mount.apply(index, mount.size(), &mut fused.stages);
            }
            _ => {} // decided against, or a change of values that the copy to the batch makes
        }
    }
    fused.window = mount.window;
    fused.flips = mount.flips;
    for patch in &mut fused.patches {
        patch.flips = mount.flips.without(patch.flips);
    }
    let needed = match fused.stages.first() {
        Some(Stage::Resample(resample)) => {
            fused.scale = coarsest_scale(resample, source, pipeline.options().dct_scaling);
            region_needed(resample, fused.scale)
        }
        first => {
            fused.scale = Scale::Full;
            match first {
                Some(Stage::Crop(window)) => *window,
                Some(_) => whole(source.size),
                None => fused.window,
            }
        }
    };
    fused.region = needed;
}

fn whole(size: Size) -> Rect {
    Rect::whole(size.width, size.height)
}

/// The image as it stands while the operations are followed: pixels in memory, the window on them, the mirrors.
struct Mount {
    paper: Size,
    window: Rect,
    flips: Flips,
}

impl Mount {
    fn size(&self) -> Size {
        self.window.size()
    }

    fn crop(&mut self, rect: Rect, stages: &mut [Stage]) {
        let behind = self.flips.apply(rect, self.size());
        if let Some(Stage::Resample(resample)) = stages.last_mut() {
            // Nothing has read the resized pixels yet: compute fewer of them.
            resample.keep = behind.moved_by(resample.keep.x, resample.keep.y);
            self.paper = resample.keep.size();
            self.window = whole(self.paper);
        } else {
            self.window = behind.moved_by(self.window.x, self.window.y);
        }
    }

    fn resize(&mut self, to: Size, interpolation: Interpolation, antialias: bool, stages: &mut Vec<Stage>) {
        if to == self.size() {
            return;
        }
        let (from, keep, flips) = (self.window, whole(to), self.flips);
        stages.push(Stage::Resample(Resample { from, to, keep, interpolation, antialias, flips }));
        self.paper = to;
        self.window = whole(to);
    }

    /// Makes the window all there is, and with `mirrors` also does the mirroring.
    fn settle(&mut self, mirrors: bool, stages: &mut Vec<Stage>) {
        if self.window != whole(self.paper) {
            stages.push(Stage::Crop(self.window));
            self.paper = self.window.size();
            self.window = whole(self.paper);
        }
        if mirrors && self.flips != Flips::NONE {
            stages.push(Stage::Flip(self.flips));
            self.flips = Flips::NONE;
        }
    }

    fn apply(&mut self, op: usize, after: Size, stages: &mut Vec<Stage>) {
        stages.push(Stage::Apply(op));
        self.paper = after;
        self.window = whole(after);
    }
}

/// Whether a resize averages, so that it may start from a smaller image; the others are meant to alias.
pub(crate) fn averages(interpolation: Interpolation, antialias: bool) -> bool {
    let always = matches!(interpolation, Interpolation::Box | Interpolation::Hamming);
    (antialias || always) && interpolation != Interpolation::Nearest
}

/// The coarsest scale that leaves the window at least as large as its target in both directions. Only a resize that
/// [`averages`] can take it.
fn coarsest_scale(resample: &Resample, source: &Source, allowed: bool) -> Scale {
    if !allowed || !averages(resample.interpolation, resample.antialias) {
        return Scale::Full;
    }
    let fits = |scale: Scale| {
        let denominator = scale.denominator();
        denominator <= source.coarsest.denominator()
            && resample.from.width / denominator >= resample.to.width
            && resample.from.height / denominator >= resample.to.height
    };
    [Scale::Eighth, Scale::Quarter, Scale::Half].into_iter().find(|scale| fits(*scale)).unwrap_or(Scale::Full)
}

/// The source pixels that the kept part of a resize is made of.
fn region_needed(resample: &Resample, scale: Scale) -> Rect {
    let Resample { from, to, keep, .. } = resample;
    let along = |from: u32, length: u32, to: u32, keep: u32, kept: u32| {
        if kept == to {
            return (from, length);
        }
        let step = f64::from(length) / f64::from(to);
        let reach = support(resample.interpolation) * step.max(1.0) + f64::from(scale.denominator()) + 1.0;
        let start = (f64::from(keep) * step - reach).floor().max(0.0) as u32;
        let end = ((f64::from(keep + kept) * step + reach).ceil() as u32).min(length);
        (from + start, end - start)
    };
    let (x, width) = along(from.x, from.width, to.width, keep.x, keep.width);
    let (y, height) = along(from.y, from.height, to.height, keep.y, keep.height);
    Rect { x, y, width, height }
}
