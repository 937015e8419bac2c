//! In steady state memory is taken by the batch, never by the sample.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sutler_engine::{Engine, Job, JobOptions, ServingOrder};

use support::{Fake, job, next, options, whole};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator with a count of all threads' calls.
struct Counting;

// SAFETY: every call goes to the system's allocator as it came; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of one epoch of `batches` batches.
fn allocations(engine: &Engine, job: &Arc<Job>, batches: u32, batch_size: u32) -> u64 {
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    let mut run = engine.start(job, whole(batches * batch_size, batch_size, 0), 0);
    while next(&mut run).unwrap().is_some() {}
    drop(run);
    ALLOCATIONS.load(Ordering::SeqCst) - before
}

/// The most allocations a batch may cost: its lists of samples, outcomes, labels and ids, what its samples were at while it was waited
/// for, and the way between threads.
const PER_BATCH_MAX: f64 = 20.0;

const STRICT: ServingOrder = ServingOrder::Strict;
const READY: ServingOrder = ServingOrder::Ready { lateness: 8 };

/// What a batch costs once everything has grown to its size.
fn per_batch(engine: &Engine, job: &Arc<Job>, batches: u32, batch_size: u32) -> f64 {
    allocations(engine, job, batches, batch_size); // the tools, and the first growth of every list
    let few = allocations(engine, job, batches / 5, batch_size);
    let many = allocations(engine, job, batches, batch_size);
    many.saturating_sub(few) as f64 / f64::from(batches - batches / 5)
}

// One test, since it counts the allocations of the whole process.
#[test]
fn an_epoch_allocates_by_the_batch_and_not_by_the_sample() {
    for threads in [0, 2] {
        let engine = Engine::new(threads).unwrap();
        for (batch_size, order) in
            [(8, STRICT), (64, STRICT), (512, STRICT), (8, READY), (64, READY), (512, READY)]
        {
            let options = JobOptions { order, ..options(batch_size as usize, 3) };
            let job = job(&Arc::new(Fake::fixed(100)), options);
            let cost = per_batch(&engine, &job, 100, batch_size);
            assert!(cost <= PER_BATCH_MAX, "{cost} for a batch of {batch_size} on {threads} threads");
        }
    }
}
