//! Manifests: what they mean and how they are refused.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use sutler_core::SampleId;
use sutler_store::{Files, Io, Listing, ManifestOptions, NO_LABEL, ReadBuffer, Silent, Source, StoreError};

/// Lists a manifest with this name and content in a folder of its own.
fn listed(name: &str, content: impl AsRef<[u8]>) -> Result<Listing, StoreError> {
    listed_with(name, content, &ManifestOptions { root: Some("data".into()), columns: None })
}

fn listed_with(
    name: &str,
    content: impl AsRef<[u8]>,
    options: &ManifestOptions,
) -> Result<Listing, StoreError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    Listing::manifest(&path, options, &Silent)
}

fn rows(listing: &Listing) -> Vec<(PathBuf, i64)> {
    listing.iter().map(|entry| (entry.folder.join(entry.name), entry.label)).collect()
}

fn row(path: &str, label: i64) -> (PathBuf, i64) {
    (path.into(), label)
}

/// The message without the folder, which is another one each time.
fn message(name: &str, content: impl AsRef<[u8]>) -> String {
    let error = listed(name, content).unwrap_err();
    assert_eq!(error.kind(), "manifest");
    let message = error.to_string();
    message[message.find(name).unwrap()..].to_owned()
}

#[test]
fn columns_may_stand_in_any_order_among_others() {
    let listing =
        listed("m.csv", "note,label,path\nx,dog,b/rex.jpg\n\"a, b\",cat,tom.jpg\n,dog,b/rex.jpg\n").unwrap();
    assert_eq!(listing.classes(), ["cat", "dog"]);
    assert_eq!(rows(&listing), [row("b/rex.jpg", 1), row("tom.jpg", 0), row("b/rex.jpg", 1)]);
    assert_eq!(listing.path(SampleId(0)), Path::new("data/b/rex.jpg"));
}

#[test]
fn every_kind_of_manifest_says_the_same() {
    let csv = listed("m.csv", "path,label\na/1.jpg,cat\n2.jpg,ape\n").unwrap();
    let tsv = listed("M.TSV", "\u{feff}label\tpath\r\ncat\ta/1.jpg\r\n\r\nape\t2.jpg").unwrap();
    let lines = "\u{feff}{\"path\":\"a/1.jpg\",\"label\":\"cat\",\"x\":[]}\r\n\n{\"label\":\"ape\",\"path\":\"2.jpg\"}";
    let jsonl = listed("m.jsonl", lines).unwrap();
    assert_eq!(rows(&csv), [row("a/1.jpg", 1), row("2.jpg", 0)]);
    for other in [tsv, jsonl] {
        assert_eq!(other.classes(), csv.classes());
        assert_eq!(rows(&other), rows(&csv));
        assert_eq!(other.fingerprint(), csv.fingerprint());
    }
}

#[test]
fn a_manifest_of_a_folder_dataset_has_its_fingerprint() {
    let root = tempfile::tempdir().unwrap();
    for name in ["a/1.jpg", "a/x/2.jpg", "b/3.jpg"] {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"").unwrap();
    }
    let folder = Listing::image_folder(root.path(), &Default::default(), &Silent).unwrap();
    let manifest = listed("m.csv", "path,label\na/1.jpg,a\na/x/2.jpg,a\nb/3.jpg,b\n").unwrap();
    assert_eq!(folder.fingerprint(), manifest.fingerprint());
}

#[test]
fn whole_numbers_are_labels_as_they_are() {
    for (name, content) in [
        ("m.csv", "path,label\n1.jpg,7\n2.jpg, -3 \n"),
        ("m.ndjson", "{\"path\":\"1.jpg\",\"label\":7}\n{\"path\":\"2.jpg\",\"label\":-3}\n"),
    ] {
        let listing = listed(name, content).unwrap();
        assert_eq!(rows(&listing), [row("1.jpg", 7), row("2.jpg", -3)]);
        assert!(listing.classes().is_empty());
    }
}

#[test]
fn numbers_with_leading_zeros_and_in_quotes_are_names() {
    let listing = listed("m.csv", "path,label\n1.jpg,010\n2.jpg,002\n").unwrap();
    assert_eq!(listing.classes(), ["002", "010"]);
    let listing =
        listed("m.jsonl", "{\"path\":\"1\",\"label\":\"7\"}\n{\"path\":\"2\",\"label\":\"b\"}").unwrap();
    assert_eq!(listing.classes(), ["7", "b"]);
}

#[test]
fn labels_may_be_left_out_altogether() {
    for (name, content) in [
        ("m.csv", "path\n1.jpg\n"),
        ("m.csv", "path,label\n1.jpg,\n"),
        ("m.jsonl", "{\"path\":\"1.jpg\"}"),
        ("m.jsonl", "{\"path\":\"1.jpg\",\"label\":null}"),
    ] {
        assert_eq!(rows(&listed(name, content).unwrap()), [row("1.jpg", NO_LABEL)]);
    }
}

#[test]
fn columns_can_be_named_by_the_caller() {
    let columns = Some(vec!["label".into(), "path".into()]);
    let options = ManifestOptions { root: None, columns };
    let listing = listed_with("m.csv", "3,a.jpg\n4,b.jpg\n", &options).unwrap();
    assert_eq!(rows(&listing), [row("a.jpg", 3), row("b.jpg", 4)]);
    let error = listed_with("m.csv", "3,a.jpg,x\n", &options).unwrap_err().to_string();
    assert!(error.contains("line 1: the row has 3 fields, but there are 2 columns"), "{error}");
    assert!(listed_with("m.jsonl", "{}", &options).unwrap_err().to_string().contains("Leave out columns"));
}

#[test]
fn paths_start_from_the_manifest_unless_they_are_absolute() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    fs::write(folder.path().join("sub/1.jpg"), b"one").unwrap();
    let absolute = folder.path().join("sub/1.jpg");
    let manifest = folder.path().join("m.csv");
    fs::write(&manifest, format!("path\nsub/1.jpg\n{}\nsub/../sub/1.jpg\n/1.jpg\n", absolute.display()))
        .unwrap();
    let listing = Listing::manifest(&manifest, &ManifestOptions::default(), &Silent).unwrap();
    assert_eq!(listing.root(), folder.path());
    assert_eq!(listing.path(SampleId(3)), Path::new("/1.jpg"));
    let files = Files::new(listing, Io::Buffered, 100);
    let mut buffer = ReadBuffer::default();
    for id in 0..3 {
        assert_eq!(files.read(SampleId(id), &mut buffer).unwrap(), b"one");
    }
}

#[test]
fn csv_paths_need_not_be_text() {
    let listing = listed("m.csv", b"path,label\na\xff/\xfe.jpg,1\n").unwrap();
    assert_eq!(listing.path(SampleId(0)), Path::new("data").join(OsStr::from_bytes(b"a\xff/\xfe.jpg")));
}

#[test]
fn refusals_name_the_line_the_reason_and_the_remedy() {
    assert_eq!(
        message("m.csv", "file,class\na.jpg,1\n"),
        "m.csv: there is no column called path; the columns are: file, class. Separate the columns by commas \
         and name them in the first line, as in path,label, or pass columns= for a file without such a line."
    );
    assert_eq!(
        message("m.csv", "path,label\na.jpg,1\n\nb.jpg,cat\n"),
        "m.csv, line 4: the row has the name \"cat\" for a label, but those before it have whole numbers. Give every \
         row a whole number, or every row a name (in JSON Lines, with quotes around it), or none a label."
    );
    assert_eq!(
        message("m.csv", "path,label\na.jpg,1\nb.jpg\n"),
        "m.csv, line 3: the row has 1 field, but there are 2 columns. Put quotes around a field with a separator in it, \
         and close every quote."
    );
    assert_eq!(
        message("m.jsonl", "{\"path\":\"a\"}\n{\"path\":\"b\",}\n"),
        "m.jsonl, line 2: trailing comma (column 13). Write one object on each line, as in {\"path\": \"a.jpg\", \
         \"label\": 3}."
    );
    assert!(
        message("m.csv", "path,label\r\na,1\r\n\r\n\"b\r\nb\",2\r\nc\r\n")
            .contains("line 6: the row has 1 field")
    );
    assert!(message("m.csv", "\n\npath,label\na,1\nb,x").contains("line 5: the row has the name"));
    for (name, content, part) in [
        ("m.csv", "", "the columns are: nothing"),
        ("m.csv", "path,label\n", "the manifest lists no samples"),
        ("m.csv", "path,path\na,b\n", "more than one column is called path"),
        (
            "m.csv",
            "path,label\na,1\nb,\n",
            "line 3: the row has no label, but those before it have whole numbers",
        ),
        (
            "m.csv",
            "path,label\na,\nb,x\n",
            "line 3: the row has the name \"x\" for a label, but those before it have none",
        ),
        ("m.csv", "path,label\n,1\n", "line 2: the row has no path"),
        ("m.csv", "path,label\na/b/,1\n", "line 2: the path ends in a slash"),
        ("m.jsonl", "", "the manifest lists no samples"),
        ("m.jsonl", "{\"label\":1}", "line 1: the row has no path"),
        ("m.jsonl", "[1]", "line 1: invalid type"),
        (
            "m.jsonl",
            "\n\n3",
            "line 3: invalid type: integer `3`, expected an object with the fields path and label",
        ),
        ("m.jsonl", "{\"path\":3}", "line 1: invalid type: integer `3`, expected a string"),
        ("m.jsonl", "{\"path\":\"a\",\"path\":\"b\"}", "duplicate field `path`"),
        ("m.jsonl", "{\"path\":\"a\",\"label\":0.5}", "the label 0.5 is neither a whole number nor a name"),
        ("m.jsonl", "{\"path\":\"a\\u0000b\",\"label\":1}", "zero byte"),
        ("m.parquet", "PAR1", "Name it .csv, .tsv, .jsonl or .ndjson"),
        ("manifest", "", "Name it .csv, .tsv, .jsonl or .ndjson"),
    ] {
        let message = message(name, content);
        assert!(message.contains(part), "{message}");
    }
    assert!(message("m.csv", b"path,label\na,\xff\n").contains("line 2: the label \"\\\\xff\" is not UTF-8"));
    assert!(
        message("m.jsonl", "x".repeat(2 << 20)).contains("line 1: the line has more than 1,048,576 bytes")
    );
    assert!(message("m.csv", format!("path\n{}\n", "x".repeat(5000))).contains("the path has 5000 bytes"));
}

#[test]
fn a_manifest_that_is_not_there_or_is_a_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let list =
        |name: &str| Listing::manifest(folder.path().join(name), &Default::default(), &Silent).unwrap_err();
    assert_eq!(list("gone.csv").kind(), "missing");
    fs::create_dir(folder.path().join("m.csv")).unwrap();
    assert!(list("m.csv").to_string().ends_with("m.csv: this is a folder. Pass the manifest itself."));
}

/// A field as CSV writes it when it has to be quoted.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

proptest! {
    #[test]
    fn any_rows_come_back_from_every_kind(
        rows in prop::collection::vec(("[a-c \",\n/é]{0,6}[a-c\",\n]", "[xyz\",é]{1,3}"), 1..40),
    ) {
        let mut csv = String::from("label,path\n");
        let mut lines = String::new();
        for (path, label) in &rows {
            csv.push_str(&format!("{},{}\n", quoted(label), quoted(path)));
            lines.push_str(&format!("{}\n", serde_json::json!({"path": path, "label": label})));
        }
        let mut classes: Vec<_> = rows.iter().map(|(_, label)| label.clone()).collect();
        classes.sort();
        classes.dedup();
        for listing in [listed("m.csv", &csv).unwrap(), listed("m.jsonl", &lines).unwrap()] {
            prop_assert_eq!(listing.classes(), classes.as_slice());
            prop_assert_eq!(listing.len(), rows.len());
            for (entry, (path, label)) in listing.iter().zip(&rows) {
                prop_assert_eq!(listing.path(entry.id), Path::new("data").join(path));
                prop_assert_eq!(&listing.classes()[entry.label as usize], label);
            }
        }
    }

    #[test]
    fn no_bytes_make_it_panic(content in prop::collection::vec(any::<u8>(), 0..200), start in 0..4usize) {
        let start = ["", "path,label\n", "{\"path\":", "path\tlabel\n"][start];
        let content = [start.as_bytes(), &content].concat();
        for name in ["m.csv", "m.tsv", "m.jsonl"] {
            if let Err(error) = listed(name, &content) {
                prop_assert!(error.to_string().ends_with('.'));
            }
        }
    }
}
