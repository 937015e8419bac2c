//! The decoded form: a sample that starts from it comes out as one that starts from its file, bit for bit.

mod support;

use proptest::prelude::*;
use serde_json::{Value, json};
use sutler_core::{SampleId, SampleRng};
use sutler_media::{
    DecodedForm, DecodedLayout, Layout, Limits, Pipeline, PipelineOptions, Plan, Rows, Worker, probe,
};

use support::fixture;

/// A JPEG of a smooth picture with noise, so that every coefficient counts.
fn jpeg(width: u16, height: u16, sampling: jpeg_encoder::SamplingFactor) -> Vec<u8> {
    let mut rng = SampleRng::new(3, 0, SampleId(u32::from(width) << 16 | u32::from(height)));
    let pixels: Vec<u8> = (0..usize::from(height))
        .flat_map(|y| (0..usize::from(width)).map(move |x| (x, y)))
        .flat_map(|(x, y)| {
            let grain = rng.below(40) as usize;
            [x * 3 + grain, y * 2 + grain, x + y].map(|value| (value % 256) as u8)
        })
        .collect();
    let mut bytes = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut bytes, 88);
    encoder.set_sampling_factor(sampling);
    encoder.encode(&pixels, width, height, jpeg_encoder::ColorType::Rgb).expect("encoded");
    bytes
}

fn aligned(bytes: usize) -> Vec<u32> {
    vec![0; bytes.div_ceil(4)]
}

fn as_bytes(values: &mut [u32]) -> &mut [u8] {
    // SAFETY: integers have no padding, and bytes no alignment.
    unsafe { values.align_to_mut::<u8>().1 }
}

fn finish(worker: &mut Worker, pipeline: &Pipeline, plan: &Plan) -> Vec<u8> {
    let [height, width] = plan.output_size();
    let bytes = (height * width * 3) as usize * pipeline.output().dtype.size();
    let mut room = aligned(bytes);
    worker.augment(pipeline, plan, Layout::Nchw, &mut as_bytes(&mut room)[..bytes]).expect("augmented");
    as_bytes(&mut room)[..bytes].to_vec()
}

fn from_file(pipeline: &Pipeline, bytes: &[u8], epoch: u32) -> Vec<u8> {
    let header = probe(bytes, &Limits::default()).expect("header");
    let (mut worker, mut plan) = (Worker::new(Limits::default()), Plan::default());
    pipeline.draw(&header, &mut SampleRng::new(1, epoch, SampleId(5)), &mut plan).expect("drawn");
    worker.decode(pipeline, &plan, &header, bytes).expect("decoded");
    finish(&mut worker, pipeline, &plan)
}

fn keep(form: &DecodedForm, bytes: &[u8]) -> Vec<u8> {
    let header = probe(bytes, &Limits::default()).expect("header");
    let (mut worker, mut plan, mut kept) = (Worker::new(Limits::default()), Plan::default(), Vec::new());
    let layout = form.layout(&header, &mut plan).expect("layout");
    assert!(form.make(&layout, &header, bytes, (&mut worker, &mut plan), &mut kept));
    assert_eq!(kept.len(), layout.bytes());
    kept
}

fn from_kept(form: &DecodedForm, kept: &[u8], epoch: u32) -> Vec<u8> {
    if_usable(form, kept, epoch).expect("its own copy")
}

/// The sample from a copy that may have been kept for another pipeline; `None` when it is of no use to this one.
fn if_usable(form: &DecodedForm, kept: &[u8], epoch: u32) -> Option<Vec<u8>> {
    let head = kept[..DecodedLayout::HEAD_BYTES].try_into().expect("a head");
    let layout = DecodedLayout::from_head(head).expect("layout");
    assert_eq!(layout.bytes(), kept.len());
    let (mut worker, mut plan) = (Worker::new(Limits::default()), Plan::default());
    form.draw(&layout, &mut SampleRng::new(1, epoch, SampleId(5)), &mut plan).ok()?;
    let read = |rows: Rows, out: &mut [u8]| {
        for (index, row) in out.chunks_exact_mut(rows.bytes).enumerate() {
            row.copy_from_slice(&kept[rows.start + index * rows.stride..][..rows.bytes]);
        }
        out.len() == rows.bytes * rows.count
    };
    worker.recall(&layout, &plan, read).ok()?;
    Some(finish(&mut worker, form.rest(&layout), &plan))
}

fn op() -> impl Strategy<Value = Value> {
    let side = || 5..60u32;
    prop_oneof![
        (side(), any::<bool>())
            .prop_map(|(size, antialias)| json!({"op": "resize", "size": size, "max_size": null,
            "interpolation": "bilinear", "antialias": antialias})),
        (side(), side()).prop_map(|(h, w)| json!({"op": "resize", "size": [h, w], "max_size": null,
            "interpolation": "bicubic", "antialias": true})),
        (20..160u32, 20..160u32).prop_map(|(h, w)| json!({"op": "center_crop", "size": [h, w]})),
        (side(), side(), any::<bool>()).prop_map(
            |(h, w, box_filter)| json!({"op": "random_resized_crop", "size": [h, w],
            "scale": [0.1, 1.0], "ratio": [0.6, 1.6], "antialias": true,
            "interpolation": if box_filter { "box" } else { "bilinear" }})
        ),
        (side(), side()).prop_map(|(h, w)| json!({"op": "random_crop", "size": [h, w], "padding": null,
            "pad_if_needed": true, "fill": [1, 2, 3], "padding_mode": "constant"})),
        Just(json!({"op": "random_horizontal_flip", "p": 0.5})),
        Just(json!({"op": "random_vertical_flip", "p": 0.5})),
        Just(json!({"op": "random_grayscale", "p": 0.5})),
        Just(json!({"op": "pad", "padding": [3, 0, 2, 1], "fill": [9, 8, 7], "padding_mode": "constant"})),
        Just(
            json!({"op": "color_jitter", "brightness": [0.5, 1.5], "contrast": null, "saturation": [0.5, 1.5], "hue": null})
        ),
    ]
}

/// Six epochs of a picture in two ways make a slow case, so there are few of them unless PROPTEST_CASES says otherwise.
fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { usual.cases } else { 64 };
    ProptestConfig { cases, ..usual }
}

proptest! {
    #![proptest_config(config())]
    #[test]
    fn a_kept_sample_comes_out_as_from_its_file(
        ops in prop::collection::vec(op(), 0..5),
        floats in any::<bool>(),
        dct_scaling in prop::bool::weighted(0.8),
        width in 30..260u16,
        height in 30..260u16,
        halved in any::<bool>(),
    ) {
        let mut ops = ops;
        if floats {
            ops.push(json!({"op": "normalize", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}));
        }
        let options = PipelineOptions { dct_scaling };
        let pipeline = Pipeline::from_json(&Value::from(ops).to_string(), options).expect("a pipeline");
        let sampling =
            if halved { jpeg_encoder::SamplingFactor::F_2_2 } else { jpeg_encoder::SamplingFactor::F_1_1 };
        let bytes = jpeg(width, height, sampling);
        let form = DecodedForm::new(&pipeline);
        let kept = keep(&form, &bytes);
        for epoch in 0..6 {
            prop_assert_eq!(from_file(&pipeline, &bytes, epoch), from_kept(&form, &kept, epoch), "epoch {}", epoch);
        }
    }
}

proptest! {
    #![proptest_config(config())]
    /// Whatever a copy was kept for, it gives another pipeline either nothing or what the file would.
    #[test]
    fn a_sample_kept_for_another_pipeline_is_right_or_of_no_use(
        ops in prop::collection::vec(op(), 0..4),
        others in prop::collection::vec(op(), 0..4),
        begins_alike in any::<bool>(),
        dct_scaling in any::<[bool; 2]>(),
        width in 30..260u16,
        height in 30..260u16,
    ) {
        let others = if begins_alike { [&ops[..ops.len().min(1)], &others[..]].concat() } else { others };
        let [first, second] = [(ops, dct_scaling[0]), (others, dct_scaling[1])].map(|(ops, dct_scaling)| {
            Pipeline::from_json(&Value::from(ops).to_string(), PipelineOptions { dct_scaling }).expect("a pipeline")
        });
        let bytes = jpeg(width, height, jpeg_encoder::SamplingFactor::F_2_2);
        let (first, form) = (DecodedForm::new(&first), DecodedForm::new(&second));
        let kept = keep(&first, &bytes);
        let alike = first.likeness() == form.likeness();
        for epoch in 0..6 {
            let found = if_usable(&form, &kept, epoch);
            prop_assert!(found.is_some() || !alike, "alike, and of no use: {}", form.likeness());
            if let Some(found) = found {
                prop_assert_eq!(from_file(&second, &bytes, epoch), found, "epoch {}", epoch);
            }
        }
    }
}

#[test]
fn transforms_that_decode_alike_are_known_to() {
    let form = |tail: &str| {
        let text = CROP.trim_end_matches(']').to_owned() + tail + "]";
        DecodedForm::new(&Pipeline::from_json(&text, PipelineOptions::default()).expect("a pipeline"))
    };
    let jitter =
        r#",{"op":"color_jitter","brightness":[0.5,1.5],"contrast":null,"saturation":null,"hue":null}"#;
    assert_eq!(form("").likeness(), form(jitter).likeness());
    let (one, other) = (jpeg(300, 200, jpeg_encoder::SamplingFactor::F_2_2), fixture("png_RGB.png"));
    for bytes in [one, other] {
        assert_eq!(keep(&form(""), &bytes), keep(&form(jitter), &bytes));
    }
    let resize = r#"[{"op":"resize","size":50,"max_size":null,"interpolation":"bilinear","antialias":true}]"#;
    let resized =
        DecodedForm::new(&Pipeline::from_json(resize, PipelineOptions::default()).expect("a pipeline"));
    assert_ne!(resized.likeness(), form("").likeness());
    assert!(resized.is_on_the_way() && !form("").is_on_the_way());
}

const CROP: &str = r#"[{"op":"random_resized_crop","size":[40,40],"scale":[0.08,1.0],"ratio":[0.75,1.3333],
    "interpolation":"bilinear","antialias":true},{"op":"random_horizontal_flip","p":0.5}]"#;

#[test]
fn pictures_are_kept_at_the_sizes_that_crops_can_ask_for() {
    let bytes = jpeg(400, 200, jpeg_encoder::SamplingFactor::F_2_2);
    let size = |text: &str, dct_scaling| {
        let pipeline = Pipeline::from_json(text, PipelineOptions { dct_scaling }).expect("a pipeline");
        keep(&DecodedForm::new(&pipeline), &bytes).len() - DecodedLayout::HEAD_BYTES
    };
    // 200 / 4 is at least 40, 200 / 8 is not.
    assert_eq!(size(CROP, true), 3 * (400 * 200 + 200 * 100 + 100 * 50));
    assert_eq!(size(CROP, false), 3 * 400 * 200);
    let fixed = r#"[{"op":"resize","size":50,"max_size":null,"interpolation":"bilinear","antialias":true},
        {"op":"center_crop","size":[40,40]},{"op":"normalize","mean":[0,0,0],"std":[1,1,1]}]"#;
    assert_eq!(size(fixed, true), 3 * 40 * 40);
}

#[test]
fn other_formats_are_kept_as_they_are() {
    let pipeline = Pipeline::from_json(CROP, PipelineOptions::default()).expect("a pipeline");
    let form = DecodedForm::new(&pipeline);
    for name in ["png_RGB.png", "bmp_RGB.bmp"] {
        let bytes = fixture(name);
        let kept = keep(&form, &bytes);
        for epoch in 0..4 {
            assert_eq!(from_file(&pipeline, &bytes, epoch), from_kept(&form, &kept, epoch), "{name}");
        }
    }
}

#[test]
fn a_damaged_file_is_not_kept() {
    let whole = jpeg(120, 90, jpeg_encoder::SamplingFactor::F_1_1);
    let pipeline = Pipeline::from_json(CROP, PipelineOptions::default()).expect("a pipeline");
    let form = DecodedForm::new(&pipeline);
    let header = probe(&whole, &Limits::default()).expect("header");
    let (mut worker, mut plan, mut kept) = (Worker::new(Limits::default()), Plan::default(), Vec::new());
    let layout = form.layout(&header, &mut plan).expect("layout");
    assert!(!form.make(&layout, &header, &whole[..whole.len() / 2], (&mut worker, &mut plan), &mut kept));
    assert!(form.make(&layout, &header, &whole, (&mut worker, &mut plan), &mut kept));
}

#[test]
fn a_head_that_makes_no_sense_is_none() {
    assert_eq!(DecodedLayout::from_head(&[7; DecodedLayout::HEAD_BYTES]), None);
}
