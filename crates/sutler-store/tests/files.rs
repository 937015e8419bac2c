//! Reading: every file in full, whatever stands in the way named.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use proptest::prelude::*;
use sutler_core::SampleId;
use sutler_store::{Files, FolderOptions, Io, Listing, ReadBuffer, Silent, Source, StoreError};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + index / 251) as u8).collect()
}

/// A dataset with one class that holds these files.
fn dataset(folder: &TempDir, files: &[(&str, Vec<u8>)]) -> Listing {
    fs::create_dir_all(folder.path().join("c")).unwrap();
    for (name, content) in files {
        File::create(folder.path().join("c").join(name)).unwrap().write_all(content).unwrap();
    }
    Listing::image_folder(folder.path(), &FolderOptions::default(), &Silent).unwrap()
}

/// A folder on a file system that does direct I/O, if the build folder's does.
fn direct_folder() -> Option<TempDir> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let files = Files::new(dataset(&folder, &[("probe.jpg", content(10))]), Io::Direct, MIB);
    match files.read(SampleId(0), &mut ReadBuffer::default()) {
        Ok(_) => {
            fs::remove_file(folder.path().join("c/probe.jpg")).unwrap();
            Some(folder)
        }
        Err(StoreError::DirectRefused { filesystem, .. }) => {
            eprintln!("not tested: the build folder lies on {filesystem}, which refuses direct I/O");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

const LENGTHS: [usize; 12] = [0, 1, 511, 512, 513, 4095, 4096, 4097, 100_000, 262_143, 262_144, 1_000_003];

fn every_length_comes_back(folder: &TempDir, io: Io) {
    let contents: Vec<_> =
        LENGTHS.iter().map(|&length| (format!("{length:09}.jpg"), content(length))).collect();
    let borrowed: Vec<_> = contents.iter().map(|(name, content)| (name.as_str(), content.clone())).collect();
    let files = Files::new(dataset(folder, &borrowed), io, 2 * MIB);
    assert_eq!(files.len(), LENGTHS.len());
    let mut buffer = ReadBuffer::default();
    // Backwards too, so that a short file follows a long one in the same buffer.
    for index in (0..LENGTHS.len()).chain((0..LENGTHS.len()).rev()) {
        assert_eq!(files.read(SampleId(index as u32), &mut buffer).unwrap(), contents[index].1);
    }
    assert_eq!(buffer.samples_read(), 2 * LENGTHS.len() as u64);
    assert_eq!(buffer.bytes_read(), 2 * LENGTHS.iter().sum::<usize>() as u64);
}

#[test]
fn every_length_comes_back_through_the_page_cache() {
    every_length_comes_back(&tempfile::tempdir().unwrap(), Io::Buffered);
}

#[test]
fn every_length_comes_back_past_the_page_cache() {
    if let Some(folder) = direct_folder() {
        every_length_comes_back(&folder, Io::Direct);
    }
}

/// Bytes that this thread had fetched from a device, as the kernel counts them.
fn device_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/thread-self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()
}

#[test]
fn direct_reads_fetch_from_the_device_what_buffered_ones_find_in_memory() {
    let Some(folder) = direct_folder() else { return };
    const LENGTH: usize = 3_000_001;
    let listing = dataset(&folder, &[("1.jpg", content(LENGTH))]);
    File::open(listing.path(SampleId(0))).unwrap().sync_all().unwrap();
    let listing = std::sync::Arc::new(listing);
    let mut buffer = ReadBuffer::default();
    let mut fetched = |io| {
        let files = Files::new(listing.clone(), io, 4 * MIB);
        let before = device_bytes()?;
        assert!(files.read(SampleId(0), &mut buffer).unwrap() == content(LENGTH));
        Some(device_bytes()? - before)
    };
    fetched(Io::Buffered); // from here on the file is in the page cache
    let (Some(buffered), Some(direct)) = (fetched(Io::Buffered), fetched(Io::Direct)) else {
        eprintln!("not tested: this kernel does not count a thread's reads");
        return;
    };
    assert_eq!(buffered, 0);
    assert!(direct >= LENGTH as u64, "{direct} bytes came from the device for a file of {LENGTH}");
}

#[test]
fn a_file_system_without_direct_io_is_named() {
    // The kernel's own file systems have never heard of direct I/O; one of their files stands in for a sample.
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("c")).unwrap();
    symlink("/proc/self/status", folder.path().join("c/1.jpg")).unwrap();
    let listing = Listing::image_folder(folder.path(), &FolderOptions::default(), &Silent).unwrap();
    let error =
        Files::new(listing, Io::Direct, MIB).read(SampleId(0), &mut ReadBuffer::default()).unwrap_err();
    assert_eq!(error.kind(), "direct_refused");
    let message = error.to_string();
    assert!(
        message.ends_with("its file system (proc) refuses direct I/O. Pass io=\"buffered\"."),
        "{message}"
    );
}

#[test]
fn the_same_memory_serves_every_sample() {
    let folder = tempfile::tempdir().unwrap();
    let files =
        Files::new(dataset(&folder, &[("1.jpg", content(70_000)), ("2.jpg", content(9))]), Io::Buffered, MIB);
    let mut buffer = ReadBuffer::default();
    let first = files.read(SampleId(0), &mut buffer).unwrap().as_ptr();
    for id in [1, 0, 1] {
        assert_eq!(files.read(SampleId(id), &mut buffer).unwrap().as_ptr(), first);
    }
}

#[test]
fn a_file_over_the_limit_is_refused_before_memory_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let listing = dataset(&folder, &[("1.jpg", content(100)), ("2.jpg", Vec::new())]);
    // Sparse: a tebibyte on paper, nothing on the disk.
    File::options().write(true).open(listing.path(SampleId(1))).unwrap().set_len(1 << 40).unwrap();
    let files = Files::new(listing, Io::Buffered, 100);
    let mut buffer = ReadBuffer::default();
    assert_eq!(files.read(SampleId(0), &mut buffer).unwrap().len(), 100);
    let error = files.read(SampleId(1), &mut buffer).unwrap_err();
    assert_eq!(error.kind(), "too_large");
    assert!(error.to_string().contains("has 1,099,511,627,776 bytes, more than the limit of 100"), "{error}");
}

#[test]
fn what_is_not_a_file_is_refused_without_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let class = folder.path().join("c");
    let mut listing_files = vec![("5-gone.jpg", content(1)), ("6-loop.jpg", content(1))];
    listing_files.push(("1-folder.jpg", content(1)));
    dataset(&folder, &listing_files);
    let pipe = class.join("2-pipe.jpg");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
    let _socket = UnixListener::bind(class.join("3-socket.jpg")).unwrap();
    symlink("/dev/zero", class.join("4-device.jpg")).unwrap();
    let listing = Listing::image_folder(folder.path(), &FolderOptions::default(), &Silent).unwrap();
    fs::remove_file(class.join("1-folder.jpg")).unwrap();
    fs::create_dir(class.join("1-folder.jpg")).unwrap();
    fs::remove_file(class.join("5-gone.jpg")).unwrap();
    fs::remove_file(class.join("6-loop.jpg")).unwrap();
    symlink("6-loop.jpg", class.join("6-loop.jpg")).unwrap();

    let listing = std::sync::Arc::new(listing);
    let mut buffer = ReadBuffer::default();
    for io in [Io::Buffered, Io::Direct] {
        let files = Files::new(listing.clone(), io, MIB);
        for (id, kind, part) in [
            (0, "not_a_file", "1-folder.jpg is a folder, not a file."),
            (1, "not_a_file", "2-pipe.jpg is a pipe, not a file."),
            (2, "not_a_file", "3-socket.jpg is a socket, not a file."),
            (3, "not_a_file", "4-device.jpg is a device, not a file."),
            (4, "missing", "5-gone.jpg: No such file or directory"),
            (5, "io", "6-loop.jpg: Too many levels of symbolic links"),
        ] {
            let error = files.read(SampleId(id), &mut buffer).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(part), "{error}");
            assert!(error.to_string().contains(&*files.describe(SampleId(id))), "{error}");
        }
    }
    assert_eq!(buffer.samples_read(), 0);
}

#[test]
fn long_paths_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    let deep = Path::new("c").join("d".repeat(200)).join("e".repeat(200));
    fs::create_dir_all(folder.path().join(&deep)).unwrap();
    fs::write(folder.path().join(&deep).join("1.jpg"), b"deep").unwrap();
    let listing = Listing::image_folder(folder.path(), &FolderOptions::default(), &Silent).unwrap();
    let files = Files::new(listing, Io::Buffered, MIB);
    assert_eq!(files.read(SampleId(0), &mut ReadBuffer::default()).unwrap(), b"deep");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn threads_read_the_same_bytes(lengths in prop::collection::vec(0..50_000usize, 1..12)) {
        let folder = tempfile::tempdir().unwrap();
        let contents: Vec<_> = (0..).zip(&lengths).map(|(i, &n)| (format!("{i:03}.jpg"), content(n))).collect();
        let borrowed: Vec<_> = contents.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
        let source: &dyn Source = &Files::new(dataset(&folder, &borrowed), Io::Buffered, MIB);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut buffer = ReadBuffer::default();
                    for (index, (_, content)) in contents.iter().enumerate() {
                        assert_eq!(source.read(SampleId(index as u32), &mut buffer).unwrap(), content);
                    }
                });
            }
        });
    }
}
