//! Reading takes no memory from the system once its buffer has grown.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;

use sutler_core::SampleId;
use sutler_store::{Files, FolderOptions, Io, Listing, ReadBuffer, Silent, Source};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator with a count of each thread's calls.
struct Counting;

// SAFETY: every call goes to the system's allocator as it came; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
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

#[test]
fn the_second_epoch_allocates_nothing() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // Long enough for paths beyond the 256 bytes that system calls keep room for on the stack.
    let class = folder.path().join("c".repeat(250));
    fs::create_dir(&class).unwrap();
    for length in [0, 1, 5000, 300_000, 1_500_000] {
        fs::write(class.join(format!("{length}.jpg")), vec![1; length]).unwrap();
    }
    let listing = Listing::image_folder(folder.path(), &FolderOptions::default(), &Silent).unwrap();
    let listing = std::sync::Arc::new(listing);
    for io in [Io::Buffered, Io::Direct] {
        let files = Files::new(listing.clone(), io, 1 << 30);
        let mut buffer = ReadBuffer::default();
        let mut epoch =
            || (0..files.len() as u32).try_for_each(|id| files.read(SampleId(id), &mut buffer).map(|_| ()));
        match epoch() {
            Err(error) if error.kind() == "direct_refused" => continue,
            outcome => outcome.unwrap(),
        }
        let before = ALLOCATIONS.get();
        epoch().unwrap();
        assert_eq!(ALLOCATIONS.get(), before, "{io:?}");
    }
}
