//! Boxes go where their pictures' pixels go.
//!
//! Every decision about a picture is drawn before a pixel is touched, so the way of its boxes is known as well: they are taken through
//! the same operations in the same order. Numbers are 32-bit floats and each step is rounded as torchvision rounds it,
//! so that the boxes are those of `torchvision.transforms.v2` to the last bit.

use super::draw::{Drawn, Plan};
use super::op::Op;
use super::pipeline::Pipeline;
use super::{Rect, Size};

/// A box after the transforms, and which one it was before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MovedBox {
    /// Its place among the boxes that went in.
    pub index: u32,
    /// Left, top, right and bottom edge.
    pub edges: [f32; 4],
}

impl Pipeline {
    /// The place and name of the first operation that moves pixels in a way that boxes cannot follow.
    #[must_use]
    pub fn loses_boxes(&self) -> Option<(usize, &'static str)> {
        let turns = |op: &&Op| matches!(op, Op::RandAugment { .. } | Op::TrivialAugmentWide { .. });
        let index = self.ops().iter().position(|op| turns(&op))?;
        Some((index, super::validate::name(&self.ops()[index])))
    }
}

impl Plan {
    /// Where boxes on a picture of this size are after what was drawn for it; those of which crops leave nothing are left
    /// out. The plan must be that of the whole pipeline, drawn for this size.
    pub fn move_boxes(
        &self,
        pipeline: &Pipeline,
        size: Size,
        boxes: impl IntoIterator<Item = [f32; 4]>,
        moved: &mut Vec<MovedBox>,
    ) {
        moved.clear();
        let way = self.way(pipeline, size);
        for (index, edges) in (0..).zip(boxes) {
            let edges = way.iter().try_fold(edges, |edges, step| step.apply(edges));
            moved.extend(edges.map(|edges| MovedBox { index, edges }));
        }
    }

    /// What happens to places in a picture of this size, step by step.
    fn way(&self, pipeline: &Pipeline, size: Size) -> Vec<Step> {
        let mut way = Vec::with_capacity(self.drawn.len());
        let mut size = size;
        for (op, drawn) in pipeline.ops().iter().zip(&self.drawn) {
            match (op, drawn) {
                (_, Drawn::Resize(to)) => {
                    way.extend(Step::scale(size, *to));
                    size = *to;
                }
                (_, Drawn::ResizedCrop { window, to }) => {
                    way.push(Step::Window { border: [0.0; 2], window: *window });
                    way.extend(Step::scale(window.size(), *to));
                    size = *to;
                }
                (_, Drawn::Crop { padding: [left, top, ..], window }) => {
                    way.push(Step::Window { border: [*left as f32, *top as f32], window: *window });
                    size = window.size();
                }
                (Op::Pad { padding: [left, top, right, bottom], .. }, _) => {
                    way.push(Step::Shift([*left as f32, *top as f32]));
                    size = Size { width: size.width + left + right, height: size.height + top + bottom };
                }
                (Op::RandomHorizontalFlip { .. }, Drawn::Applied(true)) => {
                    way.push(Step::MirrorAcross { width: size.width as f32 });
                }
                (Op::RandomVerticalFlip { .. }, Drawn::Applied(true)) => {
                    way.push(Step::MirrorUpright { height: size.height as f32 });
                }
                _ => {} // decided against, or a change of values
            }
        }
        way
    }
}

/// What happens to places in a picture.
enum Step {
    /// All places move right and down.
    Shift([f32; 2]),
    /// The same by a border, and then what a window shows of it.
    Window {
        border: [f32; 2],
        window: Rect,
    },
    Scale([f32; 2]),
    MirrorAcross {
        width: f32,
    },
    MirrorUpright {
        height: f32,
    },
}

impl Step {
    fn scale(from: Size, to: Size) -> Option<Self> {
        let ratio = |to: u32, from: u32| (f64::from(to) / f64::from(from)) as f32;
        (from != to).then(|| Self::Scale([ratio(to.width, from.width), ratio(to.height, from.height)]))
    }

    /// The edges after it; `None` when nothing is left of the box.
    fn apply(&self, [left, top, right, bottom]: [f32; 4]) -> Option<[f32; 4]> {
        Some(match self {
            Self::Shift([x, y]) => [left + x, top + y, right + x, bottom + y],
            Self::Scale([x, y]) => [left * x, top * y, right * x, bottom * y],
            Self::MirrorAcross { width } => [width - right, top, width - left, bottom],
            Self::MirrorUpright { height } => [left, height - bottom, right, height - top],
            Self::Window { border: [x, y], window } => {
                let across = |edge: f32| (edge + x - window.x as f32).clamp(0.0, window.width as f32);
                let down = |edge: f32| (edge + y - window.y as f32).clamp(0.0, window.height as f32);
                let cut = [across(left), down(top), across(right), down(bottom)];
                return (cut[2] > cut[0] && cut[3] > cut[1]).then_some(cut);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use sutler_core::{SampleId, SampleRng};

    use super::*;
    use crate::image::Pixels;
    use crate::image::pipeline::{Layout, PipelineOptions, Worker};

    fn pipeline(ops: &Value) -> Pipeline {
        Pipeline::from_json(&ops.to_string(), PipelineOptions { dct_scaling: false }).unwrap()
    }

    fn moved(ops: &Value, size: Size, edges: [f32; 4]) -> Vec<[f32; 4]> {
        let (pipeline, mut plan, mut moved) = (pipeline(ops), Plan::default(), Vec::new());
        pipeline.draw_decoded(size, &mut SampleRng::new(0, 0, SampleId(0)), &mut plan).unwrap();
        plan.move_boxes(&pipeline, size, [edges], &mut moved);
        moved.iter().map(|moved| moved.edges).collect()
    }

    #[test]
    fn resize_mirror_and_border_move_boxes_exactly() {
        let size = Size { width: 100, height: 50 };
        let resize = json!({"op": "resize", "size": 25, "max_size": null, "interpolation": "bilinear", "antialias": true});
        let mirror = json!({"op": "random_horizontal_flip", "p": 1.0});
        assert_eq!(moved(&json!([resize]), size, [10.0, 4.0, 30.0, 8.0]), [[5.0, 2.0, 15.0, 4.0]]);
        assert_eq!(moved(&json!([mirror, resize]), size, [10.0, 4.0, 30.0, 8.0]), [[35.0, 2.0, 45.0, 4.0]]);
        assert_eq!(moved(&json!([resize, mirror]), size, [10.0, 4.0, 30.0, 8.0]), [[35.0, 2.0, 45.0, 4.0]]);
        let upright = json!({"op": "random_vertical_flip", "p": 1.0});
        let border =
            json!({"op": "pad", "padding": [1, 2, 3, 4], "fill": [0, 0, 0], "padding_mode": "constant"});
        assert_eq!(
            moved(&json!([border, upright]), size, [10.0, 4.0, 30.0, 8.0]),
            [[11.0, 46.0, 31.0, 50.0]]
        );
    }

    #[test]
    fn crops_cut_boxes_and_drop_what_is_outside() {
        let size = Size { width: 100, height: 50 };
        let crop = json!([{"op": "center_crop", "size": [20, 20]}]);
        assert_eq!(moved(&crop, size, [10.0, 4.0, 50.0, 25.0]), [[0.0, 0.0, 10.0, 10.0]]);
        assert_eq!(moved(&crop, size, [0.0, 0.0, 40.0, 15.0]), Vec::<[f32; 4]>::new());
        let larger = json!([{"op": "center_crop", "size": [60, 110]}]);
        assert_eq!(moved(&larger, size, [0.0, 0.0, 40.0, 15.0]), [[5.0, 5.0, 45.0, 20.0]]);
    }

    #[test]
    fn what_turns_pictures_is_named() {
        let policy = json!({"op": "trivial_augment_wide", "num_magnitude_bins": 31, "interpolation": "nearest", "fill": null});
        let mirror = json!({"op": "random_horizontal_flip", "p": 1.0});
        assert_eq!(pipeline(&json!([mirror, policy])).loses_boxes(), Some((1, "TrivialAugmentWide")));
        assert_eq!(pipeline(&json!([mirror])).loses_boxes(), None);
    }

    fn geometry() -> impl Strategy<Value = Value> {
        prop_oneof![
            (8u32..90, any::<bool>()).prop_map(|(size, limited)| json!({
                "op": "resize", "size": size, "max_size": limited.then_some(size + 20),
                "interpolation": "bilinear", "antialias": true
            })),
            (8u32..60, 8u32..60).prop_map(|(height, width)| json!({
                "op": "random_resized_crop", "size": [height, width], "scale": [0.3, 1.0], "ratio": [0.75, 1.33],
                "interpolation": "bilinear", "antialias": true
            })),
            (8u32..60, 8u32..60).prop_map(|(height, width)| json!({"op": "center_crop", "size": [height, width]})),
            Just(json!({"op": "random_horizontal_flip", "p": 0.5})),
            Just(json!({"op": "random_vertical_flip", "p": 0.5})),
            (0u32..9, 0u32..9).prop_map(|(x, y)| json!({
                "op": "pad", "padding": [x, y, 2, 3], "fill": [0, 0, 0], "padding_mode": "constant"
            })),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

        /// A white rectangle on black: whatever is white after the transforms lies inside its box, and the box reaches no
        /// further than a blurred edge does.
        #[test]
        fn a_rectangle_stays_inside_its_box(
            ops in prop::collection::vec(geometry(), 1..5),
            (width, height) in (24u32..80, 24u32..80),
            (x, y, right, bottom) in (0.0..0.6, 0.0..0.6, 0.3..1.0, 0.3..1.0f64),
            seed in any::<u64>(),
        ) {
            let size = Size { width, height };
            let along = |start: f64, share: f64, length: u32| {
                let first = (start * f64::from(length)) as u32;
                (first, (first + 1 + (share * f64::from(length)) as u32).min(length))
            };
            let ((left, right), (top, bottom)) = (along(x, right, width), along(y, bottom, height));
            let mut pixels = Pixels::default();
            pixels.resize(width, height);
            for row in 0..height {
                for column in 0..width {
                    let inside = (left..right).contains(&column) && (top..bottom).contains(&row);
                    let at = ((row * width + column) * 3) as usize;
                    pixels.data[at..at + 3].fill(if inside { 255 } else { 0 });
                }
            }
            let drawn = |ops: &[Value]| {
                let pipeline = pipeline(&Value::Array(ops.to_vec()));
                let mut plan = Plan::default();
                pipeline.draw_decoded(size, &mut SampleRng::new(seed, 0, SampleId(0)), &mut plan).unwrap();
                (pipeline, plan)
            };
            let (pipeline, plan) = drawn(&ops);
            // A pixel of blur where the picture was smallest on the way is several when it is enlarged afterwards.
            let blur = (1..=ops.len()).map(|count| drawn(&ops[..count]).1.output_size()).fold([1.0f32; 2], |blur, on_the_way| {
                [0, 1].map(|axis| blur[axis].max(plan.output_size()[axis] as f32 / on_the_way[axis] as f32))
            });
            let mut worker = Worker::new(crate::Limits::default());
            worker.load(&plan, &pixels).unwrap();
            let [out_height, out_width] = plan.output_size();
            let mut out = vec![0; (out_height * out_width * 3) as usize];
            worker.augment(&pipeline, &plan, Layout::Nhwc, &mut out).unwrap();

            let mut moved = Vec::new();
            let edges = [left, top, right, bottom].map(|edge| edge as f32);
            plan.move_boxes(&pipeline, size, [edges], &mut moved);
            for row in 0..out_height {
                for column in 0..out_width {
                    // More than half white: the middle of the pixel is inside, but for rounding to whole pixels on the way.
                    if out[((row * out_width + column) * 3) as usize] <= 160 {
                        continue;
                    }
                    prop_assert!(!moved.is_empty(), "white at {column}, {row} without a box");
                    let [left, top, right, bottom] = moved[0].edges;
                    let (x, y) = (column as f32 + 0.5, row as f32 + 0.5);
                    prop_assert!(
                        left - blur[1] <= x && x <= right + blur[1] && top - blur[0] <= y && y <= bottom + blur[0],
                        "white at {x}, {y} outside {:?}", moved[0].edges
                    );
                }
            }
            // And the middle of a box of some size is white.
            if let Some(MovedBox { edges: [left, top, right, bottom], .. }) = moved.first()
                && right - left > 6.0 && bottom - top > 6.0
            {
                let at = |low: f32, high: f32, most: u32| (((low + high) / 2.0) as u32).min(most - 1);
                let (column, row) = (at(*left, *right, out_width), at(*top, *bottom, out_height));
                prop_assert!(out[((row * out_width + column) * 3) as usize] > 95, "the middle of {:?} is dark", moved[0].edges);
            }
        }
    }
}
