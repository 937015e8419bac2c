//! Folder datasets against torchvision's meaning of them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use sutler_core::SampleId;
use sutler_store::{FolderOptions, Listing, Progress, Silent, StoreError};
use tempfile::TempDir;

/// A folder with these (empty) files, given as bytes relative to it; a path that ends in a slash is a folder.
fn tree<P: AsRef<[u8]>>(paths: &[P]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for path in paths {
        let path = path.as_ref();
        let full = root.path().join(OsStr::from_bytes(path));
        if path.ends_with(b"/") {
            fs::create_dir_all(full).unwrap();
        } else {
            fs::create_dir_all(full.parent().unwrap()).unwrap();
            fs::write(full, b"").unwrap();
        }
    }
    root
}

fn list(root: &Path) -> Result<Listing, StoreError> {
    Listing::image_folder(root, &FolderOptions::default(), &Silent)
}

fn samples(listing: &Listing) -> Vec<(PathBuf, i64)> {
    listing.iter().map(|entry| (entry.folder.join(entry.name), entry.label)).collect()
}

fn paths(listing: &Listing) -> Vec<String> {
    samples(listing).into_iter().map(|(path, _)| path.to_str().unwrap().to_owned()).collect()
}

#[test]
fn whole_paths_decide_the_order_of_folders() {
    let root = tree(&[
        "cat/z.jpg",
        "cat/a/c/1.jpg",
        "cat/a/2.jpg",
        "cat/a b/3.jpg",
        "cat/a.b/4.jpg",
        "cat/a0/5.jpg",
        "cat/B/6.jpg",
        "Zebra/10.jpg",
        "Zebra/9.jpg",
    ]);
    let listing = list(root.path()).unwrap();
    assert_eq!(listing.classes(), ["Zebra", "cat"]);
    assert_eq!(listing.class_to_idx()["cat"], 1);
    assert_eq!(
        paths(&listing),
        [
            "Zebra/10.jpg",
            "Zebra/9.jpg",
            "cat/z.jpg",
            "cat/B/6.jpg",
            "cat/a/2.jpg",
            "cat/a b/3.jpg",
            "cat/a.b/4.jpg",
            "cat/a/c/1.jpg",
            "cat/a0/5.jpg"
        ]
    );
    assert_eq!(listing.path(SampleId(2)), root.path().join("cat/z.jpg"));
    assert_eq!(listing.label(SampleId(1)), 0);
    assert_eq!(listing.label(SampleId(2)), 1);
}

#[test]
fn only_known_extensions_count_and_their_case_does_not() {
    let root = tree(&["a/1.JPG", "a/2.gif", "a/3.jpg.txt", "a/.png", "a/README", "loose.jpg"]);
    assert_eq!(paths(&list(root.path()).unwrap()), ["a/.png", "a/1.JPG"]);

    let options = FolderOptions { extensions: vec![".GIF".into()], ..FolderOptions::default() };
    let listing = Listing::image_folder(root.path(), &options, &Silent).unwrap();
    assert_eq!(paths(&listing), ["a/2.gif"]);
}

#[test]
fn names_that_are_not_text_are_listed_and_found_again() {
    let root = tree(&[b"a/\xff\xfe.jpg".as_slice(), b"caf\xe9/1.jpg"]);
    let listing = list(root.path()).unwrap();
    assert_eq!(listing.classes(), ["a", "caf\\xe9"]);
    for entry in listing.iter() {
        assert!(listing.path(entry.id).exists());
    }
}

#[test]
fn links_are_followed_and_dangling_ones_listed() {
    let elsewhere = tree(&["deep/1.jpg", "2.jpg"]);
    let root = tree(&["a/3.jpg", "note.txt"]);
    symlink(elsewhere.path(), root.path().join("b")).unwrap();
    symlink(elsewhere.path().join("deep"), root.path().join("a/twin")).unwrap();
    symlink("nowhere", root.path().join("a/4.jpg")).unwrap();
    symlink("self.jpg", root.path().join("a/self.jpg")).unwrap();
    symlink("nowhere", root.path().join("c")).unwrap();
    symlink("note.txt", root.path().join("d")).unwrap();
    let listing = list(root.path()).unwrap();
    assert_eq!(listing.classes(), ["a", "b"]);
    assert_eq!(
        paths(&listing),
        ["a/3.jpg", "a/4.jpg", "a/self.jpg", "a/twin/1.jpg", "b/2.jpg", "b/deep/1.jpg"]
    );
}

#[test]
fn one_folder_may_be_linked_from_many_places() {
    let root = tree(&["a/x/1.jpg", "b/2.jpg"]);
    symlink(root.path().join("a/x"), root.path().join("a/y")).unwrap();
    symlink(root.path().join("a"), root.path().join("b/a")).unwrap();
    let listing = list(root.path()).unwrap();
    assert_eq!(paths(&listing), ["a/x/1.jpg", "a/y/1.jpg", "b/2.jpg", "b/a/x/1.jpg", "b/a/y/1.jpg"]);
}

#[test]
fn a_link_back_up_is_refused() {
    for (link, target) in [("a/b/up", "a"), ("a/here", "a"), ("loop", "")] {
        let root = tree(&["a/b/1.jpg"]);
        symlink(root.path().join(target), root.path().join(link)).unwrap();
        let error = list(root.path()).unwrap_err();
        assert_eq!(error.kind(), "link_loop");
        let StoreError::LinkLoop { link: found, target: back } = &error else { panic!("{error}") };
        assert_eq!(found, &root.path().join(link));
        assert_eq!(
            back.components().collect::<PathBuf>(),
            root.path().join(target).components().collect::<PathBuf>()
        );
    }
}

#[test]
fn an_empty_class_says_what_it_holds() {
    let root = tree(&["a/1.jpg", "b/", "c/1.gif", "c/x/2.GIF"]);
    let error = list(root.path()).unwrap_err();
    assert_eq!(error.kind(), "empty_classes");
    assert_eq!(
        error.to_string(),
        "Found no valid file for the classes b, c. Supported extensions are: .jpg, .jpeg, .png, .ppm, .bmp, .pgm, \
         .tif, .tiff, .webp. These folders hold 2 files, all ending in .gif; a dataset with extensions=(\".gif\",) \
         reads those. Otherwise remove them; a dataset with allow_empty=True keeps classes without samples."
    );

    let options = FolderOptions { allow_empty: true, ..FolderOptions::default() };
    let listing = Listing::image_folder(root.path(), &options, &Silent).unwrap();
    assert_eq!(listing.classes(), ["a", "b", "c"]);
    assert_eq!(listing.len(), 1);
}

#[test]
fn a_root_without_classes_says_what_it_holds() {
    let root = tree(&["1.jpg", "2.jpg"]);
    let message = list(root.path()).unwrap_err().to_string();
    assert_eq!(
        message,
        format!(
            "Couldn't find any class folder in {}. It holds no folders, only 2 files, all ending in .jpg; move the \
             files into one folder for each class, or list them in a manifest.",
            root.path().display()
        )
    );
    let nothing = tree::<&str>(&[]);
    assert!(list(nothing.path()).unwrap_err().to_string().ends_with("The folder is empty; check the path."));
}

#[test]
fn a_root_that_is_no_folder_is_named() {
    let root = tree(&["file"]);
    let missing = list(&root.path().join("missing")).unwrap_err();
    assert_eq!(missing.kind(), "missing");
    assert!(missing.to_string().contains("missing. Check the path"), "{missing}");
    assert_eq!(list(&root.path().join("file")).unwrap_err().kind(), "not_a_folder");
    let relative = list(Path::new("no/such/folder")).unwrap_err().to_string();
    assert!(relative.contains("which starts from"), "{relative}");
}

#[test]
fn a_folder_that_may_not_be_read_is_an_error() {
    use std::os::unix::fs::PermissionsExt;
    let root = tree(&["a/1.jpg", "a/secret/2.jpg"]);
    let secret = root.path().join("a/secret");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    // The superuser may read everything, so there is nothing to see for it.
    if fs::read_dir(&secret).is_err() {
        let error = list(root.path()).unwrap_err();
        assert_eq!(error.kind(), "denied");
        assert!(error.to_string().contains("secret"), "{error}");
    }
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn the_fingerprint_stays_when_the_folder_moves() {
    let root = tree(&["here/a/1.jpg", "here/b/2.jpg"]);
    let before = list(&root.path().join("here")).unwrap().fingerprint();
    fs::rename(root.path().join("here"), root.path().join("there")).unwrap();
    assert_eq!(before, list(&root.path().join("there")).unwrap().fingerprint());
    fs::write(root.path().join("there/b/3.jpg"), b"").unwrap();
    assert_ne!(before, list(&root.path().join("there")).unwrap().fingerprint());
}

#[test]
fn progress_hears_of_every_sample() {
    struct Count(AtomicU64);
    impl Progress for Count {
        fn listed(&self, files: u64) {
            self.0.fetch_add(files, Ordering::Relaxed);
        }
    }
    let root = tree(&["a/1.jpg", "a/2.jpg", "a/b/3.jpg", "c/4.jpg", "c/5.txt"]);
    let count = Count(AtomicU64::new(0));
    Listing::image_folder(root.path(), &FolderOptions::default(), &count).unwrap();
    assert_eq!(count.0.into_inner(), 4);
}

#[test]
fn a_listener_that_panics_ends_the_listing() {
    struct Panic;
    impl Progress for Panic {
        fn listed(&self, _files: u64) {
            panic!("no more");
        }
    }
    let root = tree(&["a/1.jpg", "b/2.jpg", "c/3.jpg"]);
    let outcome = std::panic::catch_unwind(|| {
        let _ = Listing::image_folder(root.path(), &FolderOptions::default(), &Panic);
    });
    assert!(outcome.is_err());
}

/// torchvision's algorithm on a plain list of paths, in the simplest way that is right for ASCII names.
fn expected(paths: &BTreeSet<String>) -> Vec<(PathBuf, i64)> {
    let classes: BTreeSet<&str> = paths.iter().map(|path| path.split('/').next().unwrap()).collect();
    let mut found = Vec::new();
    for (label, class) in classes.iter().enumerate() {
        let mut inside: Vec<(&str, &str)> = paths
            .iter()
            .filter(|path| path.split('/').next() == Some(class))
            .map(|path| path.rsplit_once('/').unwrap())
            .collect();
        inside.sort();
        found.extend(inside.into_iter().map(|(folder, name)| (Path::new(folder).join(name), label as i64)));
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_tree_is_listed_in_torchvisions_order(
        paths in prop::collection::btree_set("[aA.\\- ]x(/[aA0.\\- ]y){0,3}/[aA.\\- ]{1,3}\\.jpg", 1..25),
    ) {
        let root = tree(&paths.iter().collect::<Vec<_>>());
        prop_assert_eq!(samples(&list(root.path()).unwrap()), expected(&paths));
    }
}

/// The same files, labels and classes as torchvision's own, on names chosen to sort badly.
#[test]
#[ignore = "needs an interpreter with torchvision: SUTLER_PYTHON=… cargo test -- --ignored"]
fn torchvision_agrees() {
    let python = std::env::var_os("SUTLER_PYTHON").unwrap_or_else(|| "python3".into());
    let names: [&[u8]; 16] = [
        b"a",
        b"a b",
        b"a.b",
        b"a-b",
        b"a0",
        b"A",
        b"\xff",
        b"a\xff",
        b"\xed\xa0\x80",
        b"\xf0\x9f\x98",
        b"\xc3\xa9",
        "\u{d7ff}".as_bytes(),
        "\u{e000}".as_bytes(),
        "\u{ffff}".as_bytes(),
        "\u{1f600}".as_bytes(),
        b"\n",
    ];
    let mut paths = Vec::new();
    for class in names {
        for folder in names {
            for name in
                [b"1.jpg".as_slice(), b"10.JPG", b"2.Png", b"\xff.jpg", b".jpg", b"x.txt", "ß.TİF".as_bytes()]
            {
                paths.push([class, folder, name].join(&b'/'));
                paths.push([class, folder, folder, name].join(&b'/'));
            }
            paths.push([class, &[folder, b".jpg"].concat()].join(&b'/'));
        }
    }
    let root = tree(&paths);
    symlink(root.path().join("a/a b"), root.path().join("a/zz")).unwrap();
    symlink("nowhere", root.path().join("a/dangling.jpg")).unwrap();

    let script = "import os, sys\nfrom torchvision.datasets import ImageFolder\nfolder = ImageFolder(sys.argv[1])\n\
                  for path, label in folder.samples:\n    sys.stdout.buffer.write(os.fsencode(path) + b'\\0%d\\0' % label)\n";
    let output = Command::new(python).args(["-c", script]).arg(root.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let fields: Vec<&[u8]> = output.stdout.split(|&byte| byte == 0).collect();
    let theirs: Vec<_> = fields
        .chunks_exact(2)
        .map(|pair| {
            let path = std::ffi::OsString::from_vec(pair[0].to_vec());
            (PathBuf::from(path), std::str::from_utf8(pair[1]).unwrap().parse::<i64>().unwrap())
        })
        .collect();

    let listing = list(root.path()).unwrap();
    let ours: Vec<_> = listing.iter().map(|entry| (listing.path(entry.id), entry.label)).collect();
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs);
    }
}
