//! Times a listing: `cargo run --release --example list -- FOLDER`, or without a folder on a million files that it
//! makes and removes again.

use std::error::Error;
use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sutler_store::{FolderOptions, Listing, Progress};

const CLASSES: usize = 1000;
const FILES_PER_CLASS: usize = 1000;
const RUNS: usize = 5;

struct Count(AtomicU64);

impl Progress for Count {
    fn listed(&self, files: u64) {
        self.0.fetch_add(files, Ordering::Relaxed);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args_os().nth(1) {
        Some(folder) => time(Path::new(&folder)),
        None => {
            let folder = tempfile::tempdir()?;
            make(folder.path())?;
            time(folder.path())
        }
    }
}

fn make(root: &Path) -> Result<(), Box<dyn Error>> {
    eprintln!("making {CLASSES} folders of {FILES_PER_CLASS} empty files …");
    for class in 0..CLASSES {
        let folder = root.join(format!("n{class:08}"));
        fs::create_dir(&folder)?;
        for file in 0..FILES_PER_CLASS {
            File::create(folder.join(format!("n{class:08}_{file}.JPEG")))?;
        }
    }
    Ok(())
}

fn time(root: &Path) -> Result<(), Box<dyn Error>> {
    let options = FolderOptions::default();
    for _ in 0..RUNS {
        let count = Count(AtomicU64::new(0));
        let start = Instant::now();
        let listing = Listing::image_folder(root, &options, &count)?;
        println!(
            "{:.3} s for {} files in {} classes, fingerprint {}",
            start.elapsed().as_secs_f64(),
            count.0.into_inner(),
            listing.classes().len(),
            listing.fingerprint()
        );
    }
    Ok(())
}
