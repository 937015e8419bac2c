//! Pipelines as a whole: fused runs give what one operation after the other gives, draws do not depend on how a plan
//! is run, and what cannot be run is refused in words.

use proptest::prelude::*;
use serde_json::{Value, json};
use sutler_core::{SampleId, SampleRng};
use sutler_media::{
    DType, Layout, Limits, Pipeline, PipelineError, PipelineOptions, Pixels, Plan, Request, Size, Worker,
    probe,
};

const EXACT: PipelineOptions = PipelineOptions { dct_scaling: false };

fn pipeline(ops: &[Value]) -> Pipeline {
    try_pipeline(ops).unwrap_or_else(|error| panic!("{error}: {ops:?}"))
}

fn try_pipeline(ops: &[Value]) -> Result<Pipeline, PipelineError> {
    Pipeline::from_json(&Value::from(ops.to_vec()).to_string(), EXACT)
}

fn rng(id: u32) -> SampleRng {
    SampleRng::new(11, 0, SampleId(id))
}

fn noise(width: u32, height: u32) -> Pixels {
    let mut rng = SampleRng::new(5, 1, SampleId(width << 16 | height));
    let data = (0..width * height * 3).map(|_| rng.next_u32() as u8).collect();
    Pixels { width, height, data }
}

/// Draws, loads and runs; the bytes that come out and their size.
fn run(
    pipeline: &Pipeline,
    pixels: &Pixels,
    rng: &mut SampleRng,
    layout: Layout,
) -> Result<Pixels, PipelineError> {
    let mut plan = Plan::default();
    pipeline.draw_decoded(pixels.size(), rng, &mut plan)?;
    let mut worker = Worker::new(Limits::default());
    worker.load(&plan, pixels)?;
    finish(&mut worker, pipeline, &plan, layout)
}

fn finish(
    worker: &mut Worker,
    pipeline: &Pipeline,
    plan: &Plan,
    layout: Layout,
) -> Result<Pixels, PipelineError> {
    let [height, width] = plan.output_size();
    let bytes = (height * width * 3) as usize * pipeline.output().dtype.size();
    let mut room = vec![0_u32; bytes.div_ceil(4)]; // for the alignment that floats need
    let mut data = vec![0; bytes];
    {
        // SAFETY: integers have no padding, and bytes no alignment.
        let (_, room, _) = unsafe { room.align_to_mut::<u8>() };
        worker.augment(pipeline, plan, layout, &mut room[..bytes])?;
        data.copy_from_slice(&room[..bytes]);
    }
    Ok(Pixels { width, height, data })
}

/// One operation after the other, each on all pixels of the one before, with the same random numbers.
fn run_one_by_one(ops: &[Value], pixels: &Pixels, rng: &mut SampleRng) -> Result<Pixels, PipelineError> {
    ops.iter().try_fold(pixels.clone(), |pixels, op| {
        run(&pipeline(std::slice::from_ref(op)), &pixels, rng, Layout::Nhwc)
    })
}

fn floats(pixels: &Pixels) -> Vec<f32> {
    pixels.data.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

fn interpolation() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just("nearest"),
        Just("bilinear"),
        Just("bicubic"),
        Just("lanczos"),
        Just("box"),
        Just("hamming")
    ]
}

fn padding_mode() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("constant"), Just("edge"), Just("reflect"), Just("symmetric")]
}

/// An operation on 8-bit pixels. The crops are sometimes larger than the image.
fn op() -> impl Strategy<Value = Value> {
    let side = 4..40_u32;
    let chance = prop_oneof![Just(0.0), Just(0.5), Just(1.0)];
    prop_oneof![
        3 => (side.clone(), interpolation(), any::<bool>()).prop_map(|(side, name, antialias)| json!({
            "op": "resize", "size": side, "max_size": null, "interpolation": name,
            "antialias": antialias || name == "lanczos",
        })),
        2 => (side.clone(), side.clone(), interpolation()).prop_map(|(height, width, name)| json!({
            "op": "resize", "size": [height, width], "max_size": null, "interpolation": name, "antialias": true,
        })),
        4 => (side.clone(), side.clone()).prop_map(|(height, width)| json!({"op": "center_crop", "size": [height, width]})),
        4 => (side.clone(), side.clone(), any::<bool>(), padding_mode()).prop_map(|(height, width, pad, mode)| json!({
            "op": "random_crop", "size": [height, width], "padding": if pad { json!([1, 2, 3, 4]) } else { Value::Null },
            "pad_if_needed": true, "fill": [9, 8, 7], "padding_mode": mode,
        })),
        4 => (side.clone(), side, interpolation(), any::<bool>()).prop_map(|(height, width, name, antialias)| json!({
            "op": "random_resized_crop", "size": [height, width], "scale": [0.08, 1.0], "ratio": [0.75, 1.3333333333333333],
            "interpolation": name, "antialias": antialias || name == "lanczos",
        })),
        4 => chance.clone().prop_map(|p| json!({"op": "random_horizontal_flip", "p": p})),
        3 => chance.clone().prop_map(|p| json!({"op": "random_vertical_flip", "p": p})),
        1 => padding_mode().prop_map(|mode| json!({
            "op": "pad", "padding": [2, 0, 1, 3], "fill": [1, 2, 3], "padding_mode": mode,
        })),
        1 => Just(json!({
            "op": "color_jitter", "brightness": [0.6, 1.4], "contrast": [0.6, 1.4], "saturation": [0.6, 1.4], "hue": [-0.1, 0.1],
        })),
        1 => chance.clone().prop_map(|p| json!({"op": "random_grayscale", "p": p})),
        1 => Just(json!({"op": "gaussian_blur", "kernel_size": [3, 5], "sigma": [0.1, 2.0]})),
        1 => Just(json!({
            "op": "rand_augment", "num_ops": 2, "magnitude": 9, "num_magnitude_bins": 31, "interpolation": "nearest", "fill": null,
        })),
        1 => Just(json!({
            "op": "trivial_augment_wide", "num_magnitude_bins": 31, "interpolation": "bilinear", "fill": [4, 5, 6],
        })),
        1 => chance.prop_map(|p| json!({
            "op": "random_erasing", "p": p, "scale": [0.02, 0.33], "ratio": [0.3, 3.3], "value": "random",
        })),
        1 => Just(json!({"op": "to_dtype", "dtype": "uint8", "scale": false})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn fused_runs_give_what_one_operation_after_the_other_gives(
        ops in prop::collection::vec(op(), 0..6), width in 3..50_u32, height in 3..50_u32, id in any::<u32>(),
    ) {
        let pixels = noise(width, height);
        let fused = run(&pipeline(&ops), &pixels, &mut rng(id), Layout::Nhwc).expect("fused");
        let plain = run_one_by_one(&ops, &pixels, &mut rng(id)).expect("one by one");
        prop_assert_eq!((fused.size(), fused.data), (plain.size(), plain.data));
    }

    #[test]
    fn planes_are_the_interleaved_pixels_transposed(
        ops in prop::collection::vec(op(), 0..4), normalize in any::<bool>(), width in 3..50_u32, height in 3..50_u32, id in any::<u32>(),
    ) {
        let mut ops = ops;
        if normalize {
            ops.push(json!({"op": "normalize", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}));
            ops.push(json!({"op": "random_horizontal_flip", "p": 0.5}));
            ops.push(json!({"op": "random_erasing", "p": 0.5, "scale": [0.02, 0.33], "ratio": [0.3, 3.3], "value": "random"}));
        }
        let (pixels, pipeline) = (noise(width, height), pipeline(&ops));
        let interleaved = run(&pipeline, &pixels, &mut rng(id), Layout::Nhwc).expect("run");
        let planes = run(&pipeline, &pixels, &mut rng(id), Layout::Nchw).expect("run");
        let bytes = pipeline.output().dtype.size();
        let plane = (planes.width * planes.height) as usize;
        for index in 0..plane * 3 {
            let (position, channel) = (index / 3, index % 3);
            let from = &planes.data[(channel * plane + position) * bytes..][..bytes];
            prop_assert_eq!(&interleaved.data[index * bytes..][..bytes], from);
        }
    }

    #[test]
    fn a_decoded_part_gives_what_the_decoded_whole_gives(
        ops in prop::collection::vec(op(), 0..4), file in 0..FILES.len(), id in any::<u32>(),
    ) {
        let (pipeline, bytes) = (pipeline(&ops), FILES[file]);
        let header = probe(bytes, &Limits::default()).expect("header");
        let mut plan = Plan::default();
        pipeline.draw(&header, &mut rng(id), &mut plan).expect("drawn");
        let mut worker = Worker::new(Limits::default());
        worker.decode(&pipeline, &plan, &header, bytes).expect("decoded");
        let part = finish(&mut worker, &pipeline, &plan, Layout::Nhwc).expect("run");

        let mut whole = Pixels::default();
        let mut decoder = sutler_media::Decoder::new(Limits::default());
        decoder.decode(bytes, &header, &Request::whole(&header), &mut whole).expect("decoded");
        let plain = run_one_by_one(&ops, &whole, &mut rng(id)).expect("one by one");
        prop_assert_eq!((part.size(), part.data), (plain.size(), plain.data));
    }

    #[test]
    fn draws_do_not_depend_on_how_the_plan_is_run(ops in prop::collection::vec(op(), 0..6), id in any::<u32>()) {
        let header = probe(FILES[0], &Limits::default()).expect("header");
        let text = Value::from(ops).to_string();
        let mut seen = Vec::new();
        for dct_scaling in [false, true] {
            let pipeline = Pipeline::from_json(&text, PipelineOptions { dct_scaling }).expect("valid");
            let mut plan = Plan::default();
            let mut numbers = rng(id);
            pipeline.draw(&header, &mut numbers, &mut plan).expect("drawn");
            seen.push((plan.describe(&pipeline), plan.output_size(), numbers.next_u64()));
            numbers = rng(id);
            let size = Size { width: header.width, height: header.height };
            pipeline.draw_decoded(size, &mut numbers, &mut plan).expect("drawn");
            seen.push((plan.describe(&pipeline), plan.output_size(), numbers.next_u64()));
        }
        prop_assert!(seen.iter().all(|draws| *draws == seen[0]));
    }
}

const FILES: [&[u8]; 5] = [
    include_bytes!("data/crop_420.jpg"),
    include_bytes!("data/crop_422.jpg"),
    include_bytes!("data/crop_444.jpg"),
    include_bytes!("data/crop_grey.jpg"),
    include_bytes!("data/crop_progressive.jpg"),
];

/// A reduced decode is another way to average, so it is close and not equal; black against white at every fifth pixel, as in
/// these files, is the worst it can meet.
#[test]
fn a_reduced_decode_is_close_to_the_full_one() {
    for bytes in FILES {
        let header = probe(bytes, &Limits::default()).expect("header");
        let to = [header.height / 5, header.width / 5];
        let ops = json!([{"op": "resize", "size": to, "max_size": null, "interpolation": "bilinear", "antialias": true}]);
        let outputs = [false, true].map(|dct_scaling| {
            let pipeline =
                Pipeline::from_json(&ops.to_string(), PipelineOptions { dct_scaling }).expect("valid");
            let mut plan = Plan::default();
            pipeline.draw(&header, &mut rng(0), &mut plan).expect("drawn");
            let mut worker = Worker::new(Limits::default());
            worker.decode(&pipeline, &plan, &header, bytes).expect("decoded");
            finish(&mut worker, &pipeline, &plan, Layout::Nhwc).expect("run")
        });
        assert_ne!(outputs[0].data, outputs[1].data, "the reduced decode was not used");
        let differences = outputs[0]
            .data
            .iter()
            .zip(&outputs[1].data)
            .map(|(full, reduced)| u64::from(full.abs_diff(*reduced)));
        let mean = differences.sum::<u64>() as f64 / outputs[0].data.len() as f64;
        assert!(mean < 12.0, "off by {mean:.2} on average");
    }
}

/// The operations after the floats begin, done one by one on floats.
#[test]
fn what_follows_normalize_is_done_in_order() {
    let ops = [
        json!({"op": "to_dtype", "dtype": "float32", "scale": true}),
        json!({"op": "random_erasing", "p": 1.0, "scale": [0.1, 0.3], "ratio": [0.5, 2.0], "value": [0.25, 0.5, 0.75]}),
        json!({"op": "random_horizontal_flip", "p": 0.5}),
        json!({"op": "normalize", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}),
        json!({"op": "random_vertical_flip", "p": 0.5}),
        json!({"op": "random_erasing", "p": 0.7, "scale": [0.1, 0.3], "ratio": [0.5, 2.0], "value": [3.0]}),
        json!({"op": "random_horizontal_flip", "p": 0.5}),
    ];
    let (pixels, pipeline) = (noise(13, 9), pipeline(&ops));
    for id in 0..50 {
        let mut plan = Plan::default();
        pipeline.draw_decoded(pixels.size(), &mut rng(id), &mut plan).expect("drawn");
        let got = floats(&run(&pipeline, &pixels, &mut rng(id), Layout::Nhwc).expect("run"));
        let mut want: Vec<f32> = pixels.data.iter().map(|level| f32::from(*level) * (1.0 / 255.0)).collect();
        for (op, drawn) in ops.iter().zip(plan.describe(&pipeline).as_array().expect("a list")) {
            naive(op, drawn, &mut want);
        }
        assert_eq!(got, want, "sample {id}");
    }

    fn naive(op: &Value, drawn: &Value, values: &mut [f32]) {
        let before = values.to_vec();
        let at = |x: usize, y: usize, channel: usize| (y * 13 + x) * 3 + channel;
        for (x, y, channel) in (0..13 * 9 * 3).map(|index| (index / 3 % 13, index / 39, index % 3)) {
            let number = |name: &str| drawn[name].as_u64().unwrap_or(0) as usize;
            let parameter =
                |name: &str| op[name][channel].as_f64().or(op[name][0].as_f64()).unwrap_or(0.0) as f32;
            let value = &mut values[at(x, y, channel)];
            match op["op"].as_str().expect("a name") {
                "random_horizontal_flip" if drawn["applied"] == true => {
                    *value = before[at(12 - x, y, channel)]
                }
                "random_vertical_flip" if drawn["applied"] == true => *value = before[at(x, 8 - y, channel)],
                "normalize" => *value = (*value - parameter("mean")) / parameter("std"),
                "random_erasing" if drawn["applied"] == true => {
                    let inside = (number("left")..number("left") + number("width")).contains(&x)
                        && (number("top")..number("top") + number("height")).contains(&y);
                    if inside {
                        *value = parameter("value");
                    }
                }
                _ => {}
            }
        }
    }
}

#[test]
fn noise_comes_from_the_sample_and_is_normal() {
    let ops = [
        json!({"op": "normalize", "mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0]}),
        json!({"op": "random_erasing", "p": 1.0, "scale": [0.9, 0.9], "ratio": [1.0, 1.0], "value": "random"}),
    ];
    let (pixels, pipeline) = (Pixels { width: 100, height: 100, data: vec![0; 30_000] }, pipeline(&ops));
    let draw = |id| floats(&run(&pipeline, &pixels, &mut rng(id), Layout::Nchw).expect("run"));
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    let values: Vec<f64> = draw(1).into_iter().filter(|value| *value != 0.0).map(f64::from).collect();
    assert!(values.len() > 26_000, "{} values", values.len());
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64;
    assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "mean {mean}, variance {variance}");
}

/// Chi-square of counts against an even spread.
fn chi_square(counts: &[u32]) -> f64 {
    let expected = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
    counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum()
}

fn describe(op: &Value, size: Size, id: u32, plan: &mut Plan, pipeline: &Pipeline) -> Value {
    pipeline.draw_decoded(size, &mut rng(id), plan).unwrap_or_else(|error| panic!("{error}: {op}"));
    plan.describe(pipeline)[0].clone()
}

/// The limits are the chi-square that one seed in a thousand passes.
#[test]
fn positions_orders_and_choices_are_even() {
    let size = Size { width: 40, height: 32 };
    let mut plan = Plan::default();
    let crop = json!({"op": "random_crop", "size": [24, 20], "padding": null, "pad_if_needed": false, "fill": [0, 0, 0], "padding_mode": "constant"});
    let jitter = json!({"op": "color_jitter", "brightness": [0.5, 1.5], "contrast": null, "saturation": null, "hue": [-0.1, 0.3]});
    let augment = json!({"op": "rand_augment", "num_ops": 1, "magnitude": 9, "num_magnitude_bins": 31, "interpolation": "nearest", "fill": null});
    let flip = json!({"op": "random_vertical_flip", "p": 0.3});
    let pipelines = [&crop, &jitter, &augment, &flip].map(|op| pipeline(std::slice::from_ref(op)));
    let (mut tops, mut lefts, mut orders, mut flips) = ([0; 9], [0; 21], [0; 24], 0);
    let mut factors = [0; 10];
    let mut chosen = std::collections::BTreeMap::<String, u32>::new();
    let (mut signed, mut negative) = (0, 0);
    for id in 0..20_000 {
        let drawn = describe(&crop, size, id, &mut plan, &pipelines[0]);
        tops[drawn["top"].as_u64().expect("top") as usize] += 1;
        lefts[drawn["left"].as_u64().expect("left") as usize] += 1;
        let drawn = describe(&jitter, size, id, &mut plan, &pipelines[1]);
        let order: Vec<usize> =
            drawn["order"].as_array().expect("order").iter().map(|n| n.as_u64().unwrap() as usize).collect();
        let rank = |at: usize| order[at + 1..].iter().filter(|later| **later < order[at]).count();
        orders[rank(0) * 6 + rank(1) * 2 + rank(2)] += 1;
        factors[((drawn["brightness"].as_f64().expect("brightness") - 0.5) * 10.0) as usize] += 1;
        assert!(drawn["contrast"].is_null());
        let drawn = describe(&augment, size, id, &mut plan, &pipelines[2]);
        let choice = &drawn["chosen"][0];
        let name = choice["name"].as_str().expect("name").to_owned();
        if name == "Rotate" {
            signed += 1;
            negative += u32::from(choice["magnitude"] == -9.0);
        }
        *chosen.entry(name).or_default() += 1;
        flips += u32::from(describe(&flip, size, id, &mut plan, &pipelines[3])["applied"] == true);
    }
    let chosen: Vec<u32> = chosen.into_values().collect();
    assert_eq!(chosen.len(), 14);
    for (name, found, limit) in [
        ("tops", chi_square(&tops), 26.1),
        ("lefts", chi_square(&lefts), 45.3),
        ("orders", chi_square(&orders), 49.7),
        ("factors", chi_square(&factors), 27.9),
        ("choices", chi_square(&chosen), 34.5),
        ("signs", chi_square(&[negative, signed - negative]), 10.8),
        ("flips", (f64::from(flips) - 6_000.0).powi(2) / 4_200.0, 10.8),
    ] {
        assert!(found < limit, "{name}: chi-square {found:.1}");
    }
}

#[test]
fn what_comes_out_is_known_beforehand_where_it_can_be() {
    let crop = json!({"op": "random_resized_crop", "size": [7, 9], "scale": [0.1, 1.0], "ratio": [0.5, 2.0], "interpolation": "bilinear", "antialias": true});
    let resize =
        json!({"op": "resize", "size": 20, "max_size": null, "interpolation": "bilinear", "antialias": true});
    let pad = json!({"op": "pad", "padding": [1, 2, 3, 4], "fill": [0, 0, 0], "padding_mode": "edge"});
    let normalize = json!({"op": "normalize", "mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0]});
    let flip = json!({"op": "random_horizontal_flip", "p": 0.5});
    let spec = |ops: &[&Value]| {
        let pipeline = pipeline(&ops.iter().map(|op| (*op).clone()).collect::<Vec<_>>());
        (pipeline.output().dtype, pipeline.output().size, pipeline.static_prefix())
    };
    assert_eq!(spec(&[]), (DType::U8, None, 0));
    assert_eq!(spec(&[&resize, &flip]), (DType::U8, None, 1));
    assert_eq!(spec(&[&crop, &pad, &normalize]), (DType::F32, Some([13, 13]), 0));
    assert_eq!(spec(&[&crop, &resize]), (DType::U8, Some([20, 25]), 0));
    assert_eq!(spec(&[&resize, &pad, &normalize, &flip]), (DType::F32, None, 3));
}

#[test]
fn a_split_pipeline_gives_what_the_whole_gives() {
    let ops = [
        json!({"op": "resize", "size": 30, "max_size": null, "interpolation": "bicubic", "antialias": true}),
        json!({"op": "random_resized_crop", "size": [12, 14], "scale": [0.3, 1.0], "ratio": [0.5, 2.0], "interpolation": "bilinear", "antialias": true}),
        json!({"op": "random_horizontal_flip", "p": 0.5}),
        json!({"op": "normalize", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}),
    ];
    let (pixels, pipeline) = (noise(50, 40), pipeline(&ops));
    let (first, second) = pipeline.split(pipeline.static_prefix());
    assert_eq!((first.ops().len(), second.ops().len()), (1, 3));
    let kept = run(&first, &pixels, &mut rng(0), Layout::Nhwc).expect("first");
    for id in 0..20 {
        let whole = run(&pipeline, &pixels, &mut rng(id), Layout::Nchw).expect("whole");
        let rest = run(&second, &kept, &mut rng(id), Layout::Nchw).expect("second");
        assert_eq!(whole.data, rest.data);
    }
}

#[test]
fn refusals_name_the_transform_the_reason_and_the_remedy() {
    let normalize = json!({"op": "normalize", "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]});
    let refusal = |ops: &[Value]| try_pipeline(ops).expect_err("refused").to_string();
    assert_eq!(
        refusal(&[normalize.clone(), json!({"op": "center_crop", "size": [3, 3]})]),
        "Transform 2 (CenterCrop) cannot be used: it works on 8-bit values but follows Normalize, which makes floats; move it before Normalize."
    );
    assert_eq!(
        refusal(&[json!({"op": "random_horizontal_flip", "p": 1.5})]),
        "Transform 1 (RandomHorizontalFlip) cannot be used: p must be a probability between 0 and 1, but is 1.5."
    );
    assert_eq!(
        refusal(&[json!({"op": "normalize", "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.0, 0.2]})]),
        "Transform 1 (Normalize) cannot be used: std must not be zero, but is [0.2, 0.0, 0.2]."
    );
    assert_eq!(
        refusal(&[json!({"op": "gaussian_blur", "kernel_size": [3, 4], "sigma": [0.1, 2.0]})]),
        "Transform 1 (GaussianBlur) cannot be used: kernel_size must be made of odd numbers up to 65535, but one is 4."
    );
    assert_eq!(
        refusal(&[
            json!({"op": "rand_augment", "num_ops": 2, "magnitude": 40, "num_magnitude_bins": 31, "interpolation": "nearest", "fill": null})
        ]),
        "Transform 1 (RandAugment) cannot be used: magnitude=40 must be smaller than num_magnitude_bins=31."
    );
    assert!(
        refusal(&[json!({"op": "sharpen"})])
            .starts_with("The transforms cannot be read: unknown variant `sharpen`")
    );
}

#[test]
fn what_does_not_fit_a_sample_is_said_for_that_sample() {
    let crop = json!({"op": "random_crop", "size": [24, 20], "padding": null, "pad_if_needed": false, "fill": [0, 0, 0], "padding_mode": "constant"});
    let pixels = noise(10, 30);
    let pipeline = pipeline(&[crop]);
    assert_eq!(
        run(&pipeline, &pixels, &mut rng(0), Layout::Nchw).expect_err("too large").to_string(),
        "Transform 1 (RandomCrop) asks for 24x20 pixels of an image of 30x10; resize the image first or pass pad_if_needed=True."
    );
    let pixels = noise(30, 30);
    let mut plan = Plan::default();
    pipeline.draw_decoded(pixels.size(), &mut rng(0), &mut plan).expect("drawn");
    let mut worker = Worker::new(Limits::default());
    let mut out = vec![0; 24 * 20 * 3];
    assert_eq!(worker.augment(&pipeline, &plan, Layout::Nchw, &mut out), Err(PipelineError::NotDecoded));
    worker.load(&plan, &pixels).expect("loaded");
    let room = PipelineError::Room { needed: 1440, given: 1439 };
    assert_eq!(worker.augment(&pipeline, &plan, Layout::Nchw, &mut out[1..]), Err(room));
}
