//! Files of lines, through the file system.

use std::fs;
use std::io::Write;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::progress::Silent;

fn options(folder: &Path) -> LinesOptions {
    let unpacked = folder.join("tables");
    LinesOptions {
        keep_blank: false,
        bytes_max: 1 << 20,
        tables: Some(SavedTables::new(&unpacked)),
        unpacked,
    }
}

fn open(folder: &Path, names: &[&str]) -> Result<Lines, StoreError> {
    let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    Lines::open(&paths, &options(folder), &Silent)
}

fn all(lines: &Lines) -> Vec<String> {
    let mut buffer = ReadBuffer::default();
    (0..lines.len() as u32)
        .map(|id| String::from_utf8_lossy(lines.read(SampleId(id), &mut buffer).unwrap()).into_owned())
        .collect()
}

#[test]
fn lines_of_several_files_follow_one_another() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.txt"), "\u{feff}one\r\n\n  \ntwo").unwrap();
    fs::write(folder.path().join("empty.txt"), "").unwrap();
    fs::write(folder.path().join("b.txt"), "three\n").unwrap();
    let lines = open(folder.path(), &["a.txt", "empty.txt", "b.txt"]).unwrap();
    assert_eq!(all(&lines), ["one", "two", "three"]);
    let mut buffer = ReadBuffer::default();
    let parts = lines.read_ranges(SampleId(2), &mut [0..2, 3..5].into_iter(), &mut buffer).unwrap();
    assert_eq!(parts, b"thee");
    assert!(lines.read_ranges(SampleId(2), &mut std::iter::once(3..7), &mut buffer).is_err());
    let places: Vec<String> = (0..3).map(|id| lines.describe(SampleId(id))).collect();
    let ends: Vec<&str> = places.iter().filter_map(|place| place.rsplit('/').next()).collect();
    assert_eq!(ends, ["a.txt:1", "a.txt:4", "b.txt:1"]);
}

#[test]
fn many_files_are_read_without_being_held_open() {
    let folder = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..HELD_OPEN_MAX + 20).map(|number| format!("{number:03}.txt")).collect();
    for name in &names {
        fs::write(folder.path().join(name), format!("{name}\n")).unwrap();
    }
    let borrowed: Vec<&str> = names.iter().map(String::as_str).collect();
    let lines = open(folder.path(), &borrowed).unwrap();
    assert_eq!(all(&lines), names);
    assert!(lines.files.iter().filter(|file| file.file.is_some()).count() == HELD_OPEN_MAX);
}

#[test]
fn compressed_files_have_the_same_lines() {
    let folder = tempfile::tempdir().unwrap();
    let text: String = (0..5000).map(|line| format!("line {line} of some text\n")).collect();
    fs::write(folder.path().join("a.txt"), &text).unwrap();
    // Two members, as `cat a.gz b.gz` makes them.
    let mut packed = Vec::new();
    for part in [&text[..1000], &text[1000..]] {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(part.as_bytes()).unwrap();
        packed.extend(encoder.finish().unwrap());
    }
    fs::write(folder.path().join("a.txt.gz"), &packed).unwrap();
    let frame = |part: &str| {
        ruzstd::encoding::compress_to_vec(part.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest)
    };
    // A frame to be passed over stands between two others.
    let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    let frames = [frame(&text[..1000]), skipped, frame(&text[1000..])].concat();
    fs::write(folder.path().join("a.txt.zst"), &frames).unwrap();

    let plain = open(folder.path(), &["a.txt"]).unwrap();
    for name in ["a.txt.gz", "a.txt.zst"] {
        let lines = open(folder.path(), &[name]).unwrap();
        assert_eq!(all(&lines), all(&plain), "{name}");
    }
    for (name, bytes) in [("cut.txt.gz", &packed), ("cut.txt.zst", &frames)] {
        fs::write(folder.path().join(name), &bytes[..bytes.len() / 2]).unwrap();
        let error = open(folder.path(), &[name]).unwrap_err();
        assert_eq!(error.kind(), "compressed", "{error}");
    }
    // What was decompressed has no name.
    assert_eq!(fs::read_dir(folder.path().join("tables")).unwrap().count(), 0);
}

#[test]
fn a_large_file_is_looked_through_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.txt");
    fs::write(&path, "some words on a line\n".repeat((SAVED_BYTES_MIN / 20) as usize)).unwrap();
    struct Counted(std::sync::atomic::AtomicU64);
    impl Progress for Counted {
        fn listed(&self, bytes: u64) {
            self.0.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let read = |expected_bytes: u64| {
        let counted = Counted(0.into());
        let lines = Lines::open(std::slice::from_ref(&path), &options(folder.path()), &counted).unwrap();
        assert!(lines.not_saved().is_none());
        assert_eq!(counted.0.into_inner(), expected_bytes);
        (lines.len(), lines.fingerprint(), lines.describe(SampleId(lines.len() as u32 - 1)))
    };
    let bytes = fs::metadata(&path).unwrap().len();
    let first = read(bytes);
    assert_eq!(read(0), first);
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"one more\n").unwrap();
    let grown = read(bytes + 9);
    assert_eq!(grown.0, first.0 + 1);
    assert_ne!(grown.1, first.1);
}

#[test]
fn an_index_that_cannot_be_kept_is_no_reason_to_fail() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("large.txt"), "words\n".repeat((SAVED_BYTES_MIN / 6 + 1) as usize)).unwrap();
    fs::write(folder.path().join("tables"), "a file where the folder should be").unwrap();
    let lines = open(folder.path(), &["large.txt"]).unwrap();
    assert!(lines.not_saved().is_some() && !lines.is_empty());
}

#[test]
fn a_file_that_changed_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    fs::write(&path, "first\nsecond\n").unwrap();
    let lines = open(folder.path(), &["a.txt"]).unwrap();
    let mut buffer = ReadBuffer::default();
    for text in ["f\nirst\nsecond\n", "first\n", "first\nsecondly\n", "first\nse\n\nnd\n"] {
        fs::write(&path, text).unwrap();
        let error = lines.read(SampleId(1), &mut buffer).unwrap_err();
        assert_eq!(error.kind(), "changed", "{error}");
    }
    fs::write(&path, "first\nsecond\nand one more").unwrap();
    assert_eq!(lines.read(SampleId(1), &mut buffer).unwrap(), b"second", "the file has grown");
}

#[test]
fn a_last_line_that_goes_on_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    fs::write(&path, "first\nsec").unwrap();
    let lines = open(folder.path(), &["a.txt"]).unwrap();
    let mut buffer = ReadBuffer::default();
    fs::write(&path, "first\nsec\nthird\n").unwrap();
    assert_eq!(lines.read(SampleId(1), &mut buffer).unwrap(), b"sec");
    fs::write(&path, "first\nsecond\n").unwrap();
    assert_eq!(lines.read(SampleId(1), &mut buffer).unwrap_err().kind(), "changed");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn whatever_becomes_of_a_file_only_lines_of_it_are_served(
        before in "([ab]{0,3}\n){0,12}[ab]{0,3}",
        after in "([ab]{0,3}\n){0,12}[ab]{0,3}",
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        fs::write(&path, &before).unwrap();
        let lines = open(folder.path(), &["a.txt"]).unwrap();
        fs::write(&path, &after).unwrap();
        let mut buffer = ReadBuffer::default();
        for sample in 0..lines.len() as u32 {
            match lines.read(SampleId(sample), &mut buffer) {
                Ok(line) => prop_assert!(after.split('\n').any(|known| known.as_bytes() == line)),
                Err(error) => prop_assert_eq!(error.kind(), "changed"),
            }
        }
    }
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("long.txt"), "x".repeat(2 << 20)).unwrap();
    let lines = open(folder.path(), &["long.txt"]).unwrap();
    let error = lines.read(SampleId(0), &mut ReadBuffer::default()).unwrap_err();
    assert_eq!(error.kind(), "too_large");
    assert!(error.to_string().contains("long.txt:1 has 2,097,152 bytes"), "{error}");
    assert_eq!(open(folder.path(), &["none.txt"]).unwrap_err().kind(), "missing");
    fs::create_dir(folder.path().join("folder.txt")).unwrap();
    assert_eq!(open(folder.path(), &["folder.txt"]).unwrap_err().kind(), "not_a_file");
}

#[test]
fn folders_are_searched_for_text() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["b.jsonl", "a/c.txt.gz", "a/.hidden.txt", "picture.jpg", "a/b/d.TXT", ".txt"] {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let found = text_files_in(folder.path()).unwrap();
    let names: Vec<_> =
        found.iter().map(|path| path.strip_prefix(folder.path()).unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["a/b/d.TXT", "a/c.txt.gz", "b.jsonl"]);
    let empty = tempfile::tempdir().unwrap();
    assert!(text_files_in(empty.path()).unwrap_err().to_string().contains(".txt, .text"));
}
