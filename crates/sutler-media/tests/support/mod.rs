//! What the decoder's tests share: the committed files and a decode in one call.
#![allow(dead_code)] // each test file uses its own part

use std::path::{Path, PathBuf};

use sutler_media::{DecodeError, Decoded, Decoder, Header, Limits, Pixels, Request, probe};

/// The folder of committed images; `tests/make_fixtures.py` writes it.
pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// A committed file.
pub fn fixture(name: &str) -> Vec<u8> {
    let path = data().join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every image directly in `folder`, by name.
pub fn images(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("the folder can be listed"))
        .filter(|entry| entry.path().is_file() && entry.path().extension().is_some_and(|e| e != "rgb"))
        .map(|entry| entry.file_name().into_string().expect("fixtures have plain names"))
        .collect();
    names.sort();
    names
}

/// Decodes everything, from the header on.
pub fn decode_whole(bytes: &[u8]) -> Result<(Header, Decoded, Pixels), DecodeError> {
    let header = probe(bytes, &Limits::default())?;
    let mut pixels = Pixels::default();
    let mut decoder = Decoder::new(Limits::default());
    let decoded = decoder.decode(bytes, &header, &Request::whole(&header), &mut pixels)?;
    Ok((header, decoded, pixels))
}
