//! The entries of an annotation file as they are written.
//!
//! The file is read as a stream, and of each entry only what is needed is kept: what COCO's largest file takes on disk is nine
//! tenths outlines, which are passed over without being taken into memory.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

use crate::error::StoreError;
use crate::manifest::open;

/// The mark of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// How much of the file is in memory at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// The three lists of an annotation file. A file without boxes or categories is one of pictures to be looked at.
#[derive(Deserialize)]
#[serde(expecting = "an object with the lists images, annotations and categories")]
pub(super) struct Entries {
    pub images: Option<Vec<RawImage>>,
    #[serde(default)]
    pub annotations: Vec<RawAnnotation>,
    #[serde(default)]
    pub categories: Vec<RawCategory>,
}

#[derive(Deserialize)]
#[serde(expecting = "an image, as an object with the fields id, file_name, width and height")]
pub(super) struct RawImage {
    #[serde(default, deserialize_with = "whole")]
    pub id: Option<i64>,
    pub file_name: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    pub width: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    pub height: Option<i64>,
}

#[derive(Deserialize)]
#[serde(expecting = "an annotation, as an object with the fields id, image_id, category_id and bbox")]
pub(super) struct RawAnnotation {
    #[serde(default, deserialize_with = "whole")]
    pub id: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    pub image_id: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    pub category_id: Option<i64>,
    pub bbox: Option<Vec<f64>>,
    pub area: Option<f64>,
    #[serde(default, deserialize_with = "flag")]
    pub iscrowd: bool,
}

#[derive(Deserialize)]
#[serde(expecting = "a category, as an object with the fields id and name")]
pub(super) struct RawCategory {
    #[serde(default, deserialize_with = "whole")]
    pub id: Option<i64>,
    pub name: Option<String>,
}

/// Reads the entries of an annotation file.
pub(super) fn read(path: &Path) -> Result<Entries, StoreError> {
    let failure = |source| StoreError::Read { path: path.to_owned(), source };
    let mut file = BufReader::with_capacity(BUFFER_BYTES, open(path)?);
    // Some editors begin a file with this mark; what follows is the same text.
    if file.fill_buf().map_err(failure)?.starts_with(BYTE_ORDER_MARK) {
        file.consume(BYTE_ORDER_MARK.len());
    }
    serde_json::from_reader(file).map_err(|error| {
        if error.is_io() {
            return StoreError::Read { path: path.to_owned(), source: error.into() };
        }
        if let Some(word) = no_number_at(path, error.line(), error.column()) {
            let reason = format!("{word} is no number that JSON has (column {})", error.column());
            let remedy = format!(
                "Find out how {word} came into the file, and write a number instead, or leave the annotation out"
            );
            let line = Some(error.line() as u64);
            return StoreError::Manifest { path: path.to_owned(), line, reason, remedy };
        }
        let place = format!(" at line {} column {}", error.line(), error.column());
        let reason = format!("{} (column {})", error.to_string().replace(&place, ""), error.column());
        let remedy = if error.is_eof() {
            "The file ends too early: write or download it again"
        } else {
            "Write it as COCO's annotation files are written: an object with the lists images, annotations and categories"
        };
        let line = Some(error.line() as u64);
        StoreError::Manifest { path: path.to_owned(), line, reason, remedy: remedy.to_owned() }
    })
}

/// What some tools write where a division has failed, if it stands at this place of the file: lines and columns count from 1. Files may be one line of
/// gigabytes, so it is looked for without taking them into memory.
fn no_number_at(path: &Path, line: usize, column: usize) -> Option<&'static str> {
    const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    let mut file = BufReader::with_capacity(BUFFER_BYTES, open(path).ok()?);
    for _ in 1..line {
        file.skip_until(b'\n').ok()?;
    }
    // The parser stops at the first letter of the word, behind its sign.
    let before = column.saturating_sub(2) as u64;
    std::io::copy(&mut (&mut file).take(before), &mut std::io::sink()).ok()?;
    let mut there = Vec::new();
    file.take(10).read_to_end(&mut there).ok()?;
    let starts =
        |word: &&str| (0..2).any(|at| there.get(at..).is_some_and(|rest| rest.starts_with(word.as_bytes())));
    WORDS.into_iter().find(starts)
}

/// A whole number, which some tools write as 7.0.
struct Whole;

impl Visitor<'_> for Whole {
    type Value = i64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<i64, E> {
        Ok(number)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<i64, E> {
        i64::try_from(number).map_err(|_| E::custom(format!("{number} is larger than any id may be")))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<i64, E> {
        // Up to 2^53 every whole number has a place among the floats.
        if number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0 {
            return Ok(number as i64);
        }
        Err(E::custom(format!("{number} is not a whole number")))
    }
}

fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    deserializer.deserialize_any(Whole).map(Some)
}

/// 0 or 1, or a truth value.
struct Flag;

impl Visitor<'_> for Flag {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0 or 1")
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<bool, E> {
        Ok(flag)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<bool, E> {
        match number {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(E::custom(format!("{number} is neither 0 nor 1"))),
        }
    }
}

fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    deserializer.deserialize_any(Flag)
}
