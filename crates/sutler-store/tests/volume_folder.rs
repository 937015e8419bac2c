//! Volumes and their labels: found by their names, and read in parts.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use sutler_core::SampleId;
use sutler_store::{ByteRate, Files, FolderOptions, Io, Listing, ReadBuffer, Silent, Source, Throttled};

fn listing(root: &Path, files: &[&str]) -> Result<Listing, String> {
    for file in files {
        fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        fs::write(root.join(file), file).unwrap();
    }
    Listing::volume_folder(root, &FolderOptions::volumes(), &Silent).map_err(|error| error.to_string())
}

/// The paths of images and labels, relative to the root, and the names of the pairs.
fn pairs(root: &Path, listing: &Listing) -> Vec<[String; 3]> {
    let labels = listing.partners().unwrap();
    let relative = |path: std::path::PathBuf| path.strip_prefix(root).unwrap().display().to_string();
    let pair = |id| [relative(listing.path(id)), relative(labels.path(id)), listing.pair_name(id)];
    (0..listing.len() as u32).map(|index| pair(SampleId(index))).collect()
}

#[test]
fn pairs_are_found_however_they_are_named() {
    let root = tempfile::tempdir().unwrap();
    let files = [
        "case_2_x.npy",
        "case_2_y.npy",
        "case_10_x.npy",
        "case_10_y.npy",
        "kits/case_00001/imaging.nii.gz",
        "kits/case_00001/segmentation.nii.gz",
        "kits/case_00001/prediction.nii.gz",
        "task/imagesTr/liver_7.nii.gz",
        "task/labelsTr/liver_7.nii.gz",
        "task/imagesTr/._liver_7.nii.gz",
        "notes.txt",
    ];
    let listing = listing(root.path(), &files).unwrap();
    assert_eq!(
        pairs(root.path(), &listing),
        [
            ["case_10_x.npy", "case_10_y.npy", "case_10"],
            ["case_2_x.npy", "case_2_y.npy", "case_2"],
            ["kits/case_00001/imaging.nii.gz", "kits/case_00001/segmentation.nii.gz", "kits_case_00001"],
            ["task/imagesTr/liver_7.nii.gz", "task/labelsTr/liver_7.nii.gz", "task_Tr_liver_7"],
        ]
    );
}

#[test]
fn a_file_without_its_partner_stays_and_reading_says_what_is_missing() {
    let root = tempfile::tempdir().unwrap();
    let listing = listing(root.path(), &["a_x.npy", "a_y.npy", "b_x.npy", "c_y.nii"]).unwrap();
    assert_eq!(
        pairs(root.path(), &listing),
        [["a_x.npy", "a_y.npy", "a"], ["b_x.npy", "b_y.npy", "b"], ["c_x.nii", "c_y.nii", "c"]]
    );
    let files = Files::new(listing, Io::Buffered, 1 << 20);
    let labels = files.partners().unwrap();
    let mut buffer = ReadBuffer::default();
    assert_eq!(files.read(SampleId(1), &mut buffer).unwrap(), b"b_x.npy");
    let error = labels.read(SampleId(1), &mut buffer).unwrap_err();
    assert!(error.kind() == "missing" && error.to_string().contains("b_y.npy"), "{error}");
    assert_eq!(files.read(SampleId(2), &mut buffer).unwrap_err().kind(), "missing");
}

#[test]
fn what_makes_no_sense_is_said() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let told = listing(file.path(), &[]).unwrap_err();
    assert!(told.contains("is not a folder") && !told.contains("class"), "{told}");
    let root = tempfile::tempdir().unwrap();
    let told = listing(root.path(), &["a.txt"]).unwrap_err();
    assert!(told.contains("no file with such an ending") && told.contains(".nii.gz"), "{told}");
    let told = listing(root.path(), &["volume_1.npy", "volume_2.npy", "a_x.npy"]).unwrap_err();
    assert!(told.contains("There are 3 volumes, but no two of them go together"), "{told}");
    let told = listing(root.path(), &["a_y.npy", "a_y.nii.gz"]).unwrap_err();
    assert!(
        told.contains("both the labels") && told.contains("a_y.npy") && told.contains("a_y.nii.gz"),
        "{told}"
    );
    let told = listing(&root.path().join("nothing"), &[]).unwrap_err();
    assert!(told.contains("There is nothing at"), "{told}");
}

#[test]
fn the_fingerprint_sees_labels_too() {
    let fingerprint = |files: &[&str]| {
        let root = tempfile::tempdir().unwrap();
        listing(root.path(), files).unwrap().fingerprint()
    };
    let one = fingerprint(&["images/a.npy", "labels/a.npy"]);
    assert_eq!(one, fingerprint(&["images/a.npy", "labels/a.npy"]));
    assert_ne!(one, fingerprint(&["images/a.npy", "labels/a.nii"]));
}

#[test]
fn ranges_are_read_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let listing = listing(root.path(), &["a_x.npy", "a_y.npy"]).unwrap();
    let content: Vec<u8> = (0..100_000u32).map(|value| (value * 7 / 5) as u8).collect();
    fs::write(root.path().join("a_x.npy"), &content).unwrap();
    let files = Arc::new(Files::new(listing, Io::Buffered, 1 << 20));
    let throttled = Throttled::new(files.clone(), Arc::new(ByteRate::new(1e9).unwrap()));
    for source in [&*files as &dyn Source, &throttled] {
        let mut buffer = ReadBuffer::default();
        let ranges = [5..10, 1000..3000, 99_999..100_000];
        let expected: Vec<u8> = ranges.iter().flat_map(|range| content[range.clone()].to_vec()).collect();
        let mut wanted = ranges.iter().map(|range| range.start as u64..range.end as u64);
        assert_eq!(source.read_ranges(SampleId(0), &mut wanted, &mut buffer).unwrap(), expected);
        assert_eq!(buffer.bytes_read(), 2006);
        let error = source.read_ranges(SampleId(0), &mut std::iter::once(99_000..100_001), &mut buffer);
        assert_eq!(error.unwrap_err().kind(), "changed");
        assert_eq!(source.read_start(SampleId(0), 3, &mut buffer).unwrap(), (&content[..3], 100_000));
        assert_eq!(source.partners().unwrap().read(SampleId(0), &mut buffer).unwrap(), b"a_y.npy");
    }
}
