//! Manifests as text in columns: CSV and its relative with tabs.

use std::fs::File;
use std::io::{BufReader, Read};

use csv::{ByteRecord, ErrorKind, Position, ReaderBuilder};

use super::{Label, Rows};
use crate::error::StoreError;
use crate::text::{counted, excerpt, readable};

/// Reads every row. Without `columns`, the first line names them.
pub(super) fn read(
    file: File,
    delimiter: u8,
    columns: Option<&[String]>,
    rows: &mut Rows<'_>,
) -> Result<(), StoreError> {
    let mut reader =
        ReaderBuilder::new().delimiter(delimiter).has_headers(columns.is_none()).from_reader(file);
    let names: Vec<String> = match columns {
        Some(columns) => columns.to_vec(),
        None => {
            let header = reader.byte_headers().map_err(|error| refusal(rows, error))?;
            header.iter().map(|name| readable(name.trim_ascii())).collect()
        }
    };
    let Some(path_column) = column(rows, &names, "path")? else {
        let found = if names.is_empty() { "nothing".into() } else { names.join(", ") };
        let separator = if delimiter == b'\t' { "tabs" } else { "commas" };
        return Err(rows.refuse(
            &format!("there is no column called path; the columns are: {}", excerpt(&found)),
            &format!(
                "Separate the columns by {separator} and name them in the first line, as in path{}label, or pass \
                 columns= for a file without such a line",
                delimiter as char
            ),
        ));
    };
    let label_column = column(rows, &names, "label")?;

    let mut record = ByteRecord::new();
    while reader.read_byte_record(&mut record).map_err(|error| refusal(rows, error))? {
        push(rows, &record, names.len(), path_column, label_column)
            .map_err(|error| error.at_line(|| line(rows, record.position()?)))?;
    }
    Ok(())
}

fn push(
    rows: &mut Rows<'_>,
    record: &ByteRecord,
    columns: usize,
    path_column: usize,
    label_column: Option<usize>,
) -> Result<(), StoreError> {
    if record.len() != columns {
        return Err(uneven(rows, record.len() as u64, columns as u64));
    }
    let label = match label_column {
        Some(column) => label(rows, &record[column])?,
        None => None,
    };
    rows.push(&record[path_column], label)
}

/// The line on which a record begins.
///
/// The csv crate's own count is behind after blank lines and within `\r\n`, so the lines are counted anew up to the
/// record's first byte. That reads the manifest a second time, but only to report an error.
fn line(rows: &Rows<'_>, record: &Position) -> Option<u64> {
    let mut bytes = BufReader::new(File::open(rows.manifest).ok()?).bytes();
    let mut lines = 1;
    for _ in 0..record.byte() {
        lines += u64::from(bytes.next()?.ok()? == b'\n');
    }
    // Line ends that belong to no record are passed over.
    while let Some(Ok(byte @ (b'\r' | b'\n'))) = bytes.next() {
        lines += u64::from(byte == b'\n');
    }
    Some(lines)
}

/// Where the column is, if it is there.
fn column(rows: &Rows<'_>, names: &[String], wanted: &str) -> Result<Option<usize>, StoreError> {
    let mut found = names.iter().enumerate().filter(|(_, name)| *name == wanted).map(|(index, _)| index);
    let first = found.next();
    match found.next() {
        None => Ok(first),
        Some(_) => Err(rows
            .refuse(&format!("more than one column is called {wanted}"), "Rename those that are not meant")),
    }
}

fn label<'a>(rows: &Rows<'_>, field: &'a [u8]) -> Result<Option<Label<'a>>, StoreError> {
    let text = std::str::from_utf8(field.trim_ascii()).map_err(|_| {
        let reason = format!("the label {:?} is not UTF-8", excerpt(&readable(field)));
        rows.refuse(&reason, "Save the manifest as UTF-8")
    })?;
    let digits = text.strip_prefix('-').unwrap_or(text);
    Ok(match text.parse::<i64>() {
        _ if text.is_empty() => None,
        Err(_) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            let reason = format!("the label {} does not fit into 64 bits", excerpt(text));
            return Err(rows.refuse(&reason, "Number the classes from 0, or write names"));
        }
        Ok(number) if number.to_string() == text => Some(Label::Number(number)),
        _ => Some(Label::Name(text)),
    })
}

fn refusal(rows: &Rows<'_>, error: csv::Error) -> StoreError {
    let position = error.position().cloned();
    let error = match error.into_kind() {
        ErrorKind::Io(source) => rows.unreadable(source),
        ErrorKind::UnequalLengths { expected_len, len, .. } => uneven(rows, len, expected_len),
        // The remaining kinds come from parts of the csv crate that are not used here.
        other => rows.refuse(&format!("the row cannot be read ({other:?})"), "Write it anew"),
    };
    error.at_line(|| line(rows, &position?))
}

fn uneven(rows: &Rows<'_>, found: u64, expected: u64) -> StoreError {
    rows.refuse(
        &format!("the row has {}, but there are {}", counted(found, "field"), counted(expected, "column")),
        "Put quotes around a field with a separator in it, and close every quote",
    )
}
