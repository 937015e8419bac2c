//! Pictures with boxes: what is put aside between two transforms comes out as if it never had been.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sutler_core::{Draw, SampleId};
use sutler_engine::{
    Boundary, DetectionPreparation, ImagePreparation, NoBoundary, OwnSample, Preparation, Progress,
    SampleRecord, Target, take_boxes,
};
use sutler_media::{Layout, Limits, Pipeline, PipelineOptions};
use sutler_store::{CocoOptions, Files, Io, Listing, Silent};

/// Everybody makes room.
struct Always;

impl Boundary for Always {
    fn parks(&mut self, _done: usize) -> bool {
        true
    }

    fn asks_after(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }
}

/// Four pictures of different sizes with two boxes each; the last is not of the size that its annotations say.
fn preparation(folder: &Path, operations: &str) -> Option<DetectionPreparation> {
    let (mut images, mut annotations) = (Vec::new(), Vec::new());
    for number in 0..4u32 {
        let (width, height) = (20 + 3 * number, 30 - 4 * number);
        let mut file = format!("P6\n{width} {height}\n255\n").into_bytes();
        file.extend((0..width * height * 3).map(|value| (value * (number + 3)) as u8));
        fs::write(folder.join(format!("{number}.ppm")), file).unwrap();
        let said = if number == 3 { width + 1 } else { width };
        images.push(format!(
            r#"{{"id": {number}, "file_name": "{number}.ppm", "width": {said}, "height": {height}}}"#
        ));
        for bbox in [[2, 3, 9, 8], [0, 0, 5, 5]] {
            annotations.push(format!(r#"{{"image_id": {number}, "category_id": 1, "bbox": {bbox:?}}}"#));
        }
    }
    let path = folder.join("annotations.json");
    let content = format!(
        r#"{{"images": [{}], "annotations": [{}], "categories": [{{"id": 1, "name": "a"}}]}}"#,
        images.join(", "),
        annotations.join(", ")
    );
    fs::write(&path, content).unwrap();
    let options = CocoOptions {
        root: folder.to_owned(),
        contiguous: false,
        keep_empty: true,
        keep_crowds: true,
        refuse_empty_boxes: true,
    };
    let listing = Listing::coco(&path, &options, &Silent).unwrap();
    let pipeline = Pipeline::from_json(operations, PipelineOptions::default()).unwrap();
    let images = ImagePreparation {
        source: Arc::new(Files::new(listing, Io::Buffered, 1 << 20)),
        pipeline: Arc::new(pipeline),
        layout: Layout::Nchw,
        limits: Limits::default(),
        seed: 7,
        cache: None,
        sizes: Arc::default(),
    };
    DetectionPreparation::of(&images, None).unwrap()
}

const OPERATIONS: &str = r#"[
    {"op": "resize", "size": 16, "max_size": 40, "interpolation": "bilinear", "antialias": true},
    {"op": "random_horizontal_flip", "p": 0.5},
    {"op": "to_bgr255"}
]"#;

#[test]
fn what_is_put_aside_comes_out_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let preparation = preparation(folder.path(), OPERATIONS).unwrap();
    let (mut first, mut second) = (preparation.preparer(), preparation.preparer());
    let mut flips = 0;
    let draws = (0..3).flat_map(|sample| (0..6).map(move |epoch| (SampleId(sample), Draw::first(epoch))));
    for (sample, draw) in draws {
        let (mut straight, mut resumed) = (OwnSample::default(), OwnSample::default());
        let mut record = SampleRecord::start();
        first.prepare(sample, draw, &mut Target::Own(&mut straight), &mut record).unwrap();

        let mut nowhere = OwnSample::default();
        let target = &mut Target::Own(&mut nowhere);
        let progress = first.prepare_in_steps(sample, draw, target, &mut record, &mut Always).unwrap();
        let Progress::Parked(unfinished) = progress else { panic!("it was told to make room") };
        // The first worker goes on to another sample before the second takes this one up.
        first.prepare(SampleId(2 - sample.0), draw, &mut Target::Own(&mut nowhere), &mut record).unwrap();
        let target = &mut Target::Own(&mut resumed);
        let progress = second.go_on(unfinished, sample, target, &mut record, &mut NoBoundary).unwrap();
        assert!(matches!(progress, Progress::Finished));
        assert_eq!(straight, resumed);

        let boxes = take_boxes(&mut straight, 4);
        let [height, width, _] = straight.shape.map(|side| side as f32);
        assert_eq!(straight.data.len(), (height * width * 3.0 * 4.0) as usize);
        assert_eq!(boxes.iter().map(|moved| moved.index).collect::<Vec<_>>(), [0, 1]);
        for moved in &boxes {
            let [left, top, right, bottom] = moved.edges;
            assert!(0.0 <= left && left < right && right <= width, "{:?}", moved.edges);
            assert!(0.0 <= top && top < bottom && bottom <= height, "{:?}", moved.edges);
        }
        flips += usize::from(boxes[1].edges[0] > 0.0);
    }
    assert!((1..18).contains(&flips), "{flips} of 18 were mirrored");
}

#[test]
fn a_picture_of_another_size_fails_with_both() {
    let folder = tempfile::tempdir().unwrap();
    let preparation = preparation(folder.path(), OPERATIONS).unwrap();
    let mut sample = OwnSample::default();
    let failure = preparation
        .preparer()
        .prepare(SampleId(3), Draw::first(0), &mut Target::Own(&mut sample), &mut SampleRecord::start())
        .unwrap_err();
    assert_eq!(failure.kind, "annotation");
    assert!(failure.path.ends_with("3.ppm"));
    assert!(
        failure.reason.starts_with("the annotations say that it has 30x18 pixels, but it has 29x18"),
        "{}",
        failure.reason
    );
}
