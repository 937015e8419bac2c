//! Manifests as JSON Lines: an object on each line.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use serde::Deserialize;
use serde_json::Value;

use super::{Label, Rows};
use crate::error::StoreError;
use crate::text::{excerpt, grouped};

/// A line beyond this is no sample's: a file without line ends must not be taken into memory whole.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Editors on some systems begin a file with these bytes.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

#[derive(Deserialize)]
#[serde(expecting = "an object with the fields path and label")]
struct Row<'a> {
    #[serde(borrow, default)]
    path: Cow<'a, str>,
    label: Option<Value>,
}

/// Reads every line that is not blank.
pub(super) fn read(file: File, rows: &mut Rows<'_>) -> Result<(), StoreError> {
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut buffer = Vec::new();
    for line in 1.. {
        buffer.clear();
        let bytes = reader.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut buffer);
        let bytes = bytes.map_err(|source| rows.unreadable(source))? as u64;
        if bytes == 0 {
            break;
        }
        if bytes > LINE_BYTES_MAX {
            let reason = format!("the line has more than {} bytes", grouped(LINE_BYTES_MAX));
            return Err(rows.refuse(&reason, "Write one object on each line").at_line(|| Some(line)));
        }
        let mut text = buffer.as_slice();
        if line == 1 {
            text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        }
        if !text.trim_ascii().is_empty() {
            push(rows, text).map_err(|error| error.at_line(|| Some(line)))?;
        }
    }
    Ok(())
}

fn push(rows: &mut Rows<'_>, text: &[u8]) -> Result<(), StoreError> {
    let row: Row<'_> = serde_json::from_slice(text).map_err(|error| {
        // The parser saw one line and calls it the first.
        let place = format!(" at line 1 column {}", error.column());
        let reason = format!("{} (column {})", error.to_string().replace(&place, ""), error.column());
        rows.refuse(&reason, r#"Write one object on each line, as in {"path": "a.jpg", "label": 3}"#)
    })?;
    let label = match &row.label {
        None => None,
        // As in a column of text, where there is no other way to leave a label out.
        Some(Value::String(name)) if name.is_empty() => None,
        Some(Value::String(name)) => Some(Label::Name(name)),
        Some(value) => match value.as_i64() {
            Some(number) => Some(Label::Number(number)),
            None => {
                let reason =
                    format!("the label {} is neither a whole number nor a name", excerpt(&value.to_string()));
                return Err(rows.refuse(&reason, "Write a number such as 3 or a name such as \"cat\""));
            }
        },
    };
    rows.push(row.path.as_bytes(), label)
}
