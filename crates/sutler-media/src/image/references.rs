//! The kernels against torchvision and Pillow. `tests/make_transform_references.py` wrote what they should give.
//!
//! Each kernel states how many of its values may differ and by how much; most differ in none.

use serde::Deserialize;
use serde_json::Value;
use sutler_core::{SampleId, SampleRng};

use super::filter::{BlurScratch, blur, sharpness};
use super::geometry::{Flips, centred, crop_padded};
use super::op::{Interpolation, Op, PaddingMode};
use super::pipeline::{Layout, Pipeline, PipelineOptions, Plan, Worker};
use super::policy::{KINDS, Kind, Policy};
use super::resample::{Area, Job, Resampler};
use super::warp::warp;
use super::{Pixels, Rect, Size, colour};
use crate::decode::Limits;

const PIXELS: &[u8] = include_bytes!("../../tests/data/transforms/references.bin");
const FILL: [u8; 3] = [10, 200, 90];

#[derive(Deserialize)]
struct References {
    cases: Vec<Case>,
    magnitudes: Vec<Magnitudes>,
    distributions: Vec<Distribution>,
    trials: u32,
}

#[derive(Deserialize)]
struct Case {
    kernel: String,
    width: u32,
    height: u32,
    offset: usize,
    #[serde(flatten)]
    parameters: Value,
}

#[derive(Deserialize)]
struct Magnitudes {
    policy: String,
    bins: u32,
    name: String,
    signed: bool,
    values: Vec<f64>,
}

#[derive(Deserialize)]
struct Distribution {
    op: String,
    image: [u32; 2],
    #[serde(default)]
    applied: Option<f64>,
    shares: std::collections::BTreeMap<String, Vec<(f64, f64)>>,
}

fn references() -> References {
    serde_json::from_str(include_str!("../../tests/data/transforms/references.json"))
        .expect("references.json")
}

impl Case {
    fn pixels(&self) -> Pixels {
        let length = (self.width * self.height * 3) as usize;
        Pixels { width: self.width, height: self.height, data: PIXELS[self.offset..][..length].to_vec() }
    }

    fn get<'a, T: Deserialize<'a>>(&'a self, name: &str) -> T {
        T::deserialize(&self.parameters[name])
            .unwrap_or_else(|error| panic!("{}.{name}: {error}", self.kernel))
    }

    fn source(&self, cases: &[Case]) -> Pixels {
        let wanted = self.parameters["source"].as_str().unwrap_or("photo");
        let found = cases.iter().find(|case| case.kernel == "source" && case.parameters["source"] == wanted);
        found.expect("every source is listed").pixels()
    }
}

/// How far a kernel may be from its reference.
struct Tolerance {
    levels: u8,
    /// Of all values, those that may differ at all.
    share: f64,
}

const EXACT: Tolerance = Tolerance { levels: 0, share: 0.0 };

/// Runs `kernel` on every case of that name and compares.
fn compare(
    name: &str,
    tolerance: &Tolerance,
    only: impl Fn(&Case) -> bool,
    kernel: impl Fn(&Case, Pixels) -> Pixels,
) {
    let cases = references().cases;
    let mut compared = 0;
    for case in cases.iter().filter(|case| case.kernel == name && only(case)) {
        let (want, got) = (case.pixels(), kernel(case, case.source(&cases)));
        assert_eq!(got.size(), want.size(), "{name} {}", case.parameters);
        let differences = || want.data.iter().zip(&got.data).map(|(want, got)| want.abs_diff(*got));
        let worst = differences().max().unwrap_or(0);
        let share =
            differences().filter(|difference| *difference > 0).count() as f64 / want.data.len() as f64;
        println!("{name} {}: worst {worst}, {:.2} % differ", case.parameters, share * 100.0);
        assert!(worst <= tolerance.levels, "{name} {}: off by {worst}", case.parameters);
        assert!(share <= tolerance.share, "{name} {}: {:.2} % differ", case.parameters, share * 100.0);
        compared += 1;
    }
    assert!(compared > 0, "no case of {name}");
}

/// As [`compare`], for kernels that work in place and take one number.
fn compare_in_place(name: &str, parameter: &str, tolerance: &Tolerance, kernel: impl Fn(&mut Pixels, f64)) {
    compare(
        name,
        tolerance,
        |_| true,
        |case, mut pixels| {
            kernel(&mut pixels, case.parameters[parameter].as_f64().unwrap_or(0.0));
            pixels
        },
    );
}

fn resize(case: &Case, source: &Pixels) -> Pixels {
    let to = Size::from_height_width(case.get("size"));
    let job = Job {
        from: Area { x: 0.0, y: 0.0, width: f64::from(source.width), height: f64::from(source.height) },
        to,
        keep: Rect::whole(to.width, to.height),
        interpolation: case.get("interpolation"),
        antialias: case.get("antialias"),
        flips: Flips::NONE,
    };
    let mut out = Pixels::default();
    Resampler::default().run(source, &job, &mut out);
    out
}

#[test]
fn resizes_are_torchs_to_the_bit() {
    compare(
        "resize",
        &EXACT,
        |case| case.get::<&str>("like") == "torch",
        |case, source| resize(case, &source),
    );
}

#[test]
fn resizes_are_within_a_level_of_pillows() {
    // Pillow's weights have 22 binary places, torch's (and ours) 14 to 15.
    let pillow = |case: &Case| case.get::<&str>("like") == "pillow";
    compare("resize", &Tolerance { levels: 1, share: 0.01 }, pillow, |case, source| resize(case, &source));
}

#[test]
fn colour_changes_are_torchvisions() {
    compare_in_place("brightness", "factor", &EXACT, colour::brightness);
    compare_in_place("contrast", "factor", &EXACT, colour::contrast);
    compare_in_place("saturation", "factor", &EXACT, colour::saturation);
    compare_in_place("hue", "factor", &EXACT, colour::hue);
    compare_in_place("greyscale", "", &EXACT, |pixels, _| colour::greyscale(pixels));
    compare_in_place("posterize", "bits", &EXACT, |pixels, bits| colour::posterize(pixels, bits as u32));
    compare_in_place("solarize", "threshold", &EXACT, colour::solarize);
    compare_in_place("autocontrast", "", &EXACT, |pixels, _| colour::autocontrast(pixels));
    compare_in_place("equalize", "", &EXACT, |pixels, _| colour::equalize(pixels));
}

#[test]
fn filters_are_torchvisions() {
    compare(
        "sharpness",
        &EXACT,
        |_| true,
        |case, source| {
            let mut out = Pixels::default();
            sharpness(&source, case.get("factor"), &mut out);
            out
        },
    );
    // Blurred along one axis after the other in single precision, where torchvision adds up both at once: a sum that lies
    // half way between two levels may fall on the other side.
    compare(
        "blur",
        &Tolerance { levels: 1, share: 0.001 },
        |_| true,
        |case, source| {
            let mut out = Pixels::default();
            blur(&source, case.get("kernel_size"), case.get("sigma"), &mut BlurScratch::default(), &mut out);
            out
        },
    );
}

#[test]
fn borders_and_centre_crops_are_torchvisions() {
    compare(
        "pad",
        &EXACT,
        |_| true,
        |case, source| {
            let padding: [u32; 4] = case.get("padding");
            let window =
                Rect::whole(source.width + padding[0] + padding[2], source.height + padding[1] + padding[3]);
            let mut out = Pixels::default();
            crop_padded(&source, padding, window, case.get::<PaddingMode>("padding_mode"), FILL, &mut out);
            out
        },
    );
    compare(
        "center_crop",
        &EXACT,
        |_| true,
        |case, source| {
            let (padding, window) = centred(Size::from_height_width(case.get("size")), source.size());
            let mut out = Pixels::default();
            crop_padded(&source, padding, window, PaddingMode::Constant, [0; 3], &mut out);
            out
        },
    );
}

#[test]
fn warps_are_torchvisions() {
    // A mixture of four pixels that lies half way between two levels may fall on the other side.
    compare(
        "warp",
        &Tolerance { levels: 1, share: 0.015 },
        |_| true,
        |case, source| {
            let name: &str = case.get("name");
            let kind = KINDS.into_iter().find(|kind: &Kind| kind.name() == name).expect("a known name");
            let (fill, interpolation): (Option<[u8; 3]>, Interpolation) =
                (case.get("fill"), case.get("interpolation"));
            let mut out = Pixels::default();
            warp(&source, kind, case.get("magnitude"), interpolation, fill, &mut out);
            out
        },
    );
}

#[test]
fn normalized_values_are_torchvisions_to_the_bit() {
    let cases = references().cases;
    let case = cases.iter().find(|case| case.kernel == "normalize").expect("a case");
    let source = case.source(&cases);
    let ops = vec![Op::Normalize { mean: case.get("mean"), std: case.get("std") }];
    let pipeline = Pipeline::new(ops, PipelineOptions::default()).expect("valid");
    let mut plan = Plan::default();
    let mut rng = SampleRng::new(0, 0, SampleId(0));
    pipeline.draw_decoded(source.size(), &mut rng, &mut plan).expect("drawn");
    let mut worker = Worker::new(Limits::default());
    worker.load(&plan, &source).expect("loaded");
    let mut out = vec![0_f32; source.data.len()];
    let bytes = super::simd::bytes_mut(&mut out);
    worker.augment(&pipeline, &plan, Layout::Nchw, bytes).expect("augmented");
    assert_eq!(bytes, &PIXELS[case.offset..][..bytes.len()]);
}

#[test]
fn magnitudes_are_torchvisions() {
    let image = Size { width: 500, height: 375 };
    for table in references().magnitudes {
        let policy = if table.policy == "rand_augment" { Policy::RandAugment } else { Policy::TrivialWide };
        let kind = KINDS.into_iter().find(|kind| kind.name() == table.name).expect("a known name");
        assert_eq!(kind.is_signed(), table.signed, "{}", table.name);
        let ours: Vec<f64> =
            (0..table.bins).map(|index| kind.magnitude(policy, index, table.bins, image)).collect();
        let close = |(ours, theirs): (&f64, &f64)| (ours - theirs).abs() <= 1e-6 * theirs.abs();
        assert!(ours.iter().zip(&table.values).all(close), "{} {}: {ours:?}", table.policy, table.name);
    }
}

/// Both samples are finite, so the shares differ by chance: by less than 3.9 deviations, or one comparison in ten
/// thousand would fail.
#[test]
fn rectangles_are_drawn_as_torchvision_draws_them() {
    const DRAWS: u32 = 40_000;
    let References { distributions, trials, .. } = references();
    let deviations = |share: f64| {
        3.9 * (share.max(1e-4) * (1.0 - share).max(1e-4) * (1.0 / f64::from(DRAWS) + 1.0 / f64::from(trials)))
            .sqrt()
    };
    for distribution in distributions {
        let parameters = match distribution.op.as_str() {
            "random_resized_crop" => {
                r#""size":[224,224],"scale":[0.08,1],"ratio":[0.75,1.3333333333333333],"interpolation":"bilinear","antialias":true"#
            }
            _ => r#""p":1,"scale":[0.02,0.33],"ratio":[0.3,3.3],"value":[0]"#,
        };
        let text = format!(r#"[{{"op":"{}",{parameters}}}]"#, distribution.op);
        let pipeline = Pipeline::from_json(&text, PipelineOptions::default()).expect("valid");
        let mut plan = Plan::default();
        let drawn: Vec<Value> = (0..DRAWS)
            .map(|index| {
                let size = Size::from_height_width(distribution.image);
                let mut rng = SampleRng::new(1, 0, SampleId(index));
                pipeline.draw_decoded(size, &mut rng, &mut plan).expect("drawn");
                plan.describe(&pipeline)[0].clone()
            })
            .filter(|drawn| drawn["applied"] != false)
            .collect();
        if let Some(applied) = distribution.applied {
            let share = drawn.len() as f64 / f64::from(DRAWS);
            assert!(
                (share - applied).abs() <= deviations(applied),
                "{} applied: {share} {applied}",
                distribution.op
            );
        }
        for (key, shares) in &distribution.shares {
            for (threshold, theirs) in shares {
                let below = drawn.iter().filter(|drawn| drawn[key].as_f64() <= Some(*threshold)).count();
                let ours = below as f64 / drawn.len() as f64;
                let context =
                    format!("{} of {:?}: {key} <= {threshold}", distribution.op, distribution.image);
                assert!(
                    (ours - theirs).abs() <= deviations(*theirs),
                    "{context}: {ours:.4}, theirs {theirs:.4}"
                );
            }
        }
    }
}
