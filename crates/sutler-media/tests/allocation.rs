//! Once a worker has seen a sample of each size, preparing another one asks the allocator for nothing.

use std::alloc::{GlobalAlloc, Layout as Block, System};
use std::cell::Cell;

use serde_json::json;
use sutler_core::{SampleId, SampleRng};
use sutler_media::{Layout, Limits, Pipeline, PipelineOptions, Pixels, Plan, Worker};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// Counts what each thread asks for.
struct Counting;

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, block: Block) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(block) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, block: Block) {
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.dealloc(pointer, block) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, block: Block, size: usize) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.realloc(pointer, block, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_second_pass_over_the_same_samples_allocates_nothing() {
    let ops = json!([
        {"op": "resize", "size": 70, "max_size": null, "interpolation": "bicubic", "antialias": true},
        {"op": "random_resized_crop", "size": [48, 40], "scale": [0.08, 1.0], "ratio": [0.75, 1.3333333333333333],
         "interpolation": "bilinear", "antialias": true},
        {"op": "random_horizontal_flip", "p": 0.5},
        {"op": "color_jitter", "brightness": [0.6, 1.4], "contrast": [0.6, 1.4], "saturation": [0.6, 1.4], "hue": [-0.1, 0.1]},
        {"op": "rand_augment", "num_ops": 2, "magnitude": 9, "num_magnitude_bins": 31, "interpolation": "bilinear", "fill": null},
        {"op": "gaussian_blur", "kernel_size": [5, 5], "sigma": [0.1, 2.0]},
        {"op": "random_crop", "size": [40, 40], "padding": [4, 4, 4, 4], "pad_if_needed": false, "fill": [0, 0, 0],
         "padding_mode": "reflect"},
        {"op": "random_erasing", "p": 0.5, "scale": [0.02, 0.33], "ratio": [0.3, 3.3], "value": "random"},
    ]);
    let pipeline = Pipeline::from_json(&ops.to_string(), PipelineOptions::default()).expect("valid");
    let pixels = Pixels {
        width: 120,
        height: 90,
        data: (0..120 * 90 * 3).map(|index| (index * 7 % 251) as u8).collect(),
    };
    let mut worker = Worker::new(Limits::default());
    let mut plan = Plan::default();
    let mut out = vec![0; 40 * 40 * 3];
    let mut pass = || {
        let before = ALLOCATIONS.with(Cell::get);
        for id in 0..200 {
            let mut rng = SampleRng::new(0, 0, SampleId(id));
            pipeline.draw_decoded(pixels.size(), &mut rng, &mut plan).expect("drawn");
            worker.load(&plan, &pixels).expect("loaded");
            worker.augment(&pipeline, &plan, Layout::Nchw, &mut out).expect("augmented");
        }
        ALLOCATIONS.with(Cell::get) - before
    };
    assert!(pass() > 0, "the first pass makes the buffers");
    assert_eq!(pass(), 0);
}

#[test]
fn workers_move_to_threads_and_pipelines_are_shared() {
    fn moves<T: Send>() {}
    fn is_shared<T: Send + Sync>() {}
    moves::<Worker>();
    moves::<Plan>();
    is_shared::<Pipeline>();
}
