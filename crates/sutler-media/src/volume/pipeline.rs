//! The checked list of operations on volumes, the random decisions made for one of them, and how they are carried out.

use std::sync::Arc;

use sutler_core::{SampleId, SampleRng};

use super::crop::{Foreground, place};
use super::error::sides;
use super::op::Op;
use super::{Block, Volume};
use crate::audio::PipelineError;
use crate::range::within;

/// The longest side of a crop: what a header can say of an axis.
const SIDE_MAX: f64 = 32_767.0;

/// Distances of values in millimetres, from a micrometre to a metre.
pub const SPACING_RANGE: [f64; 2] = [1e-3, 1e3];
/// What values are clipped to, or moved by; a 32-bit float holds it with room to spare.
pub const VALUE_RANGE: [f64; 2] = [-1e30, 1e30];
/// What values are divided by: nothing that makes an infinite one of an ordinary one.
pub const DIVISOR_RANGE: [f64; 2] = [1e-30, 1e30];

/// A checked list of operations.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    ops: Vec<Op>,
}

/// What was decided for one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Drawn {
    /// There was nothing to decide, or nothing is to be done.
    Nothing,
    /// Where to cut: whether over a labelled part, and where the numbers come from that need the volume's shape.
    Crop { foreground: bool, seed: u64 },
    /// Which axes are turned around.
    Flip([bool; 3]),
    /// What values are multiplied by.
    Scale(f32),
    /// The deviation of noise, and where it comes from.
    Noise { std: f64, seed: u64 },
}

/// The decisions for one volume; kept and refilled from sample to sample.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    drawn: Vec<Drawn>,
}

impl Pipeline {
    /// Checks the operations.
    ///
    /// # Errors
    /// When one of them cannot be run as written.
    pub fn new(ops: Vec<Op>) -> Result<Self, PipelineError> {
        for (index, op) in ops.iter().enumerate() {
            check_values(op).map_err(|reason| PipelineError::Refused { index, op: op.name(), reason })?;
        }
        Ok(Self { ops })
    }

    /// Reads the operations from their JSON form, a list.
    ///
    /// # Errors
    /// When the text is not such a list, or as for [`Pipeline::new`].
    pub fn from_json(text: &str) -> Result<Self, PipelineError> {
        let ops = serde_json::from_str(text)
            .map_err(|error| PipelineError::Description { reason: error.to_string() })?;
        Self::new(ops)
    }

    /// The operations in order.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// How many leading operations draw no random number.
    #[must_use]
    pub fn static_prefix(&self) -> usize {
        self.ops.iter().take_while(|op| !op.is_random()).count()
    }

    /// The shape of what comes out, where it is the same for every volume.
    #[must_use]
    pub fn output(&self) -> Option<[usize; 3]> {
        self.ops.iter().fold(None, |shape, op| match op {
            Op::RandBalancedCrop { patch_size, .. } => Some(patch_size.map(|side| side as usize)),
            Op::Resample { .. } => None,
            _ => shape,
        })
    }

    /// The crop that can be done while the file is read, so that the rest of it never is.
    #[must_use]
    pub fn crop_at_reading(&self) -> Option<usize> {
        let first = self.first_crop()?;
        self.ops[..first].iter().all(Op::is_pointwise).then_some(first)
    }

    fn first_crop(&self) -> Option<usize> {
        self.ops.iter().position(|op| matches!(op, Op::RandBalancedCrop { .. }))
    }

    /// Makes every random decision for a volume, before anything of it is read.
    pub fn draw(&self, rng: &mut SampleRng, plan: &mut Plan) {
        plan.drawn.clear();
        // All are drawn whatever becomes of them, so that one does not change what others get.
        plan.drawn.extend(self.ops.iter().map(|op| match op {
            Op::RandBalancedCrop { oversampling, .. } => {
                Drawn::Crop { foreground: rng.chance(*oversampling), seed: rng.next_u64() }
            }
            Op::RandFlip { axes, p } => {
                let turned = [0, 1, 2].map(|_| rng.chance(*p));
                Drawn::Flip([0, 1, 2].map(|axis| turned[usize::from(axis)] && axes.contains(&axis)))
            }
            Op::RandomBrightness { factor, p } => {
                let applied = rng.chance(*p);
                let scale = 1.0 + rng.uniform(1.0 - factor, 1.0 + factor);
                if applied { Drawn::Scale(scale as f32) } else { Drawn::Nothing }
            }
            Op::GaussianNoise { std, p, .. } => {
                let applied = rng.chance(*p);
                let noise = Drawn::Noise { std: rng.uniform(0.0, *std), seed: rng.next_u64() };
                if applied { noise } else { Drawn::Nothing }
            }
            Op::Cast { .. } | Op::Resample { .. } | Op::ClipNormalize { .. } => Drawn::Nothing,
        }));
    }

    /// Whether the crop at `index` is to be placed over a labelled part.
    #[must_use]
    pub fn wants_foreground(&self, index: usize, plan: &Plan) -> bool {
        matches!(plan.drawn.get(index), Some(Drawn::Crop { foreground: true, .. }))
    }

    /// The block that the crop at `index` cuts out of a volume of this shape.
    ///
    /// # Errors
    /// When the volume is smaller.
    pub fn block(
        &self,
        index: usize,
        plan: &Plan,
        shape: [usize; 3],
        foreground: Option<&Foreground>,
    ) -> Result<Block, PipelineError> {
        let (Op::RandBalancedCrop { patch_size, .. }, Drawn::Crop { seed, .. }) =
            (&self.ops[index], plan.drawn[index])
        else {
            return Ok(Block::whole(shape));
        };
        let size = patch_size.map(|side| side as usize);
        if (0..3).any(|axis| shape[axis] < size[axis]) {
            let reason = format!(
                "it cuts out {} values and the volume has {}; pad it with `sutler prepare volumes`, or pass a smaller \
                 patch_size",
                sides(size),
                sides(shape)
            );
            return Err(self.refuse(index, reason));
        }
        Ok(place(&mut SampleRng::new(seed, 0, SampleId(0)), shape, size, foreground))
    }

    /// How many operations there are.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.ops.len()
    }

    /// Runs operation `index` on a volume that those before it have been run on. `known` finds the parts of the labels it is given, or
    /// knows them already: it is asked only where they are the same each time.
    ///
    /// # Errors
    /// When it cannot be done to this volume.
    pub fn step(
        &self,
        index: usize,
        plan: &Plan,
        volume: &mut Volume,
        known: impl FnOnce(&[u8], [usize; 3]) -> Arc<Foreground>,
    ) -> Result<(), PipelineError> {
        match (&self.ops[index], plan.drawn[index]) {
            (Op::RandBalancedCrop { .. }, Drawn::Crop { foreground, .. }) => {
                let labels_kept = self.ops[..index].iter().all(Op::keeps_labels);
                let found = foreground.then(|| match labels_kept {
                    true => known(&volume.label, volume.shape),
                    false => Arc::new(Foreground::find(&volume.label, volume.shape)),
                });
                let block = self.block(index, plan, volume.shape, found.as_deref())?;
                volume.crop(&block);
            }
            (Op::RandFlip { .. }, Drawn::Flip(axes)) => volume.flip(axes),
            (Op::RandomBrightness { .. }, Drawn::Scale(scale)) => {
                volume.image.iter_mut().for_each(|value| *value *= scale);
            }
            (Op::GaussianNoise { mean, .. }, Drawn::Noise { std, seed }) => {
                volume.add_noise(*mean, std, seed);
            }
            (Op::Resample { spacing }, _) => {
                volume.resample(*spacing).map_err(|reason| self.refuse(index, reason))?;
            }
            (Op::ClipNormalize { min, max, mean, std }, _) => {
                volume.clip_normalize(*min, *max, *mean, *std);
            }
            _ => {}
        }
        Ok(())
    }

    fn refuse(&self, index: usize, reason: String) -> PipelineError {
        PipelineError::Refused { index, op: self.ops[index].name(), reason }
    }
}

/// Why the parameters make no sense, and what would.
fn check_values(op: &Op) -> Result<(), String> {
    match op {
        Op::RandBalancedCrop { patch_size, oversampling } => {
            for side in patch_size {
                within("a side of patch_size", f64::from(*side), [1.0, SIDE_MAX])?;
            }
            within("oversampling", *oversampling, [0.0, 1.0])
        }
        Op::RandFlip { axes, p } => {
            for axis in axes {
                within("an axis", f64::from(*axis), [0.0, 2.0])?;
            }
            within("p", *p, [0.0, 1.0])
        }
        Op::Cast { .. } => Ok(()),
        Op::RandomBrightness { factor, p } => {
            within("factor", *factor, [0.0, 1e6])?;
            within("p", *p, [0.0, 1.0])
        }
        Op::GaussianNoise { mean, std, p } => {
            within("mean", *mean, VALUE_RANGE)?;
            within("std", *std, [0.0, 1e30])?;
            within("p", *p, [0.0, 1.0])
        }
        Op::Resample { spacing } => {
            spacing.iter().try_for_each(|distance| within("a spacing", *distance, SPACING_RANGE))
        }
        Op::ClipNormalize { min, max, mean, std } => {
            within("min", *min, VALUE_RANGE)?;
            within("max", *max, [*min, VALUE_RANGE[1]])?;
            within("mean", *mean, VALUE_RANGE)?;
            within("std", *std, DIVISOR_RANGE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CROP: &str = r#"{"op":"rand_balanced_crop","patch_size":[2,2,2],"oversampling":0.4}"#;
    const CLIP: &str = r#"{"op":"clip_normalize","min":-79,"max":304,"mean":101,"std":76.9}"#;
    const FLIP: &str = r#"{"op":"rand_flip","axes":[0,1,2],"p":0.5}"#;
    const SPACE: &str = r#"{"op":"resample","spacing":[1.6,1.2,1.2]}"#;

    fn pipeline(ops: &[&str]) -> Pipeline {
        Pipeline::from_json(&format!("[{}]", ops.join(","))).unwrap()
    }

    #[test]
    fn a_crop_is_done_at_reading_where_nothing_before_it_minds() {
        assert_eq!(pipeline(&[CLIP, CROP, FLIP]).crop_at_reading(), Some(1));
        assert_eq!(pipeline(&[FLIP, CROP]).crop_at_reading(), None);
        assert_eq!(pipeline(&[SPACE, CROP]).crop_at_reading(), None);
        assert_eq!(pipeline(&[CLIP]).crop_at_reading(), None);
        assert_eq!(pipeline(&[CROP, FLIP]).output(), Some([2, 2, 2]));
        assert_eq!(pipeline(&[CROP, SPACE]).output(), None);
        assert_eq!(pipeline(&[CLIP, SPACE, CROP]).static_prefix(), 2);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let told = |op: &str| Pipeline::from_json(&format!("[{op}]")).unwrap_err().to_string();
        assert!(told(r#"{"op":"rand_flip","axes":[3],"p":0.5}"#).contains("from 0 to 2"));
        assert!(told(r#"{"op":"rand_flip","axes":[],"p":1.5}"#).contains("from 0 to 1"));
        assert!(
            told(r#"{"op":"rand_balanced_crop","patch_size":[0,1,1],"oversampling":0}"#).contains("side")
        );
        assert!(
            told(r#"{"op":"clip_normalize","min":2,"max":1,"mean":0,"std":1}"#)
                .contains("max=1 should be from 2 to 1e30")
        );
        assert!(told(r#"{"op":"resample","spacing":[0,1,1]}"#).contains("Transform 1 (Resample)"));
        assert!(told(r#"{"op":"cast","image":"int8","label":"uint8"}"#).contains("cannot be read"));
    }

    #[test]
    fn a_volume_that_is_too_small_is_refused() {
        let pipeline = pipeline(&[CROP]);
        let mut plan = Plan::default();
        pipeline.draw(&mut SampleRng::new(0, 0, SampleId(0)), &mut plan);
        let told = pipeline.block(0, &plan, [2, 2, 1], None).unwrap_err().to_string();
        assert!(told.contains("2 × 2 × 2") && told.contains("2 × 2 × 1"), "{told}");
        assert!(pipeline.block(0, &plan, [2, 2, 2], None).is_ok());
    }

    #[test]
    fn what_is_drawn_for_one_operation_does_not_move_the_others() {
        let drawn = |p: &str| {
            let never = format!(r#"{{"op":"random_brightness","factor":0.3,"p":{p}}}"#);
            let mut plan = Plan::default();
            pipeline(&[&never, FLIP]).draw(&mut SampleRng::new(7, 1, SampleId(3)), &mut plan);
            (plan.drawn[0], plan.drawn[1])
        };
        assert_eq!(drawn("0").1, drawn("1").1);
        assert_eq!(drawn("0").0, Drawn::Nothing);
        assert!(matches!(drawn("1").0, Drawn::Scale(scale) if (1.7..2.3).contains(&scale)));
    }

    #[test]
    fn cropping_at_reading_gives_the_same_values() {
        let pipeline = pipeline(&[CLIP, CROP, FLIP]);
        let shape = [4, 5, 6];
        let whole = Volume {
            image: (0..120).map(|value| value as f32 * 3.0 - 100.0).collect(),
            label: (0..120).map(|value| u8::from(value % 7 == 0)).collect(),
            channels: 1,
            shape,
            spacing: [1.0; 3],
        };
        for sample in 0..50 {
            let mut plan = Plan::default();
            pipeline.draw(&mut SampleRng::new(1, 0, SampleId(sample)), &mut plan);
            let find = |labels: &[u8], shape| Arc::new(Foreground::find(labels, shape));
            let mut late = whole.clone();
            (0..3).for_each(|index| pipeline.step(index, &plan, &mut late, find).unwrap());
            let found = pipeline.wants_foreground(1, &plan).then(|| find(&whole.label, shape));
            let block = pipeline.block(1, &plan, shape, found.as_deref()).unwrap();
            let mut early = whole.clone();
            early.crop(&block);
            [0, 2].iter().for_each(|&index| pipeline.step(index, &plan, &mut early, find).unwrap());
            assert_eq!(early, late);
        }
    }
}
