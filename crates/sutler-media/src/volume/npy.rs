//! NumPy's array file: a magic word, the length of a header, and the header as the text of a Python dictionary.

use super::VolumeError;
use super::header::{AxisOrder, Format, Header};
use super::values::Kind;

/// The file of an array with four axes, as far as its first value: `numpy.save` would write the same.
#[must_use]
pub fn npy_start(channels: usize, [first, second, third]: [usize; 3], kind: Kind) -> Vec<u8> {
    let descr = match kind {
        Kind::U8 => "|u1",
        Kind::I8 => "|i1",
        Kind::U16 => "<u2",
        Kind::I16 => "<i2",
        Kind::U32 => "<u4",
        Kind::I32 => "<i4",
        Kind::U64 => "<u8",
        Kind::I64 => "<i8",
        Kind::F16 => "<f2",
        Kind::F32 => "<f4",
        Kind::F64 => "<f8",
    };
    let mut text = format!(
        "{{'descr': '{descr}', 'fortran_order': False, 'shape': ({channels}, {first}, {second}, {third}), }}"
    );
    // Values begin at a multiple of 64 bytes, after a line break.
    let padding = (START_BYTES + text.len() + 1).next_multiple_of(64) - (START_BYTES + text.len() + 1);
    text.extend(std::iter::repeat_n(' ', padding));
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.into_bytes());
    bytes
}

/// The magic word, the version and the length of the description in its first version.
const START_BYTES: usize = 10;

fn corrupt(reason: impl Into<String>) -> VolumeError {
    VolumeError::Corrupt { format: Format::Npy, reason: reason.into() }
}

pub(super) fn parse(bytes: &[u8]) -> Result<Header, VolumeError> {
    let version = *bytes.get(6).ok_or_else(|| corrupt("it ends in its first bytes"))?;
    let field = |at: usize, count: usize| {
        bytes.get(at..at + count).ok_or_else(|| corrupt("it ends in its first bytes"))
    };
    let (text_at, text_bytes): (usize, usize) = match version {
        1 => (10, field(8, 2)?.iter().rev().fold(0usize, |sum, &byte| sum << 8 | usize::from(byte))),
        2 | 3 => (12, field(8, 4)?.iter().rev().fold(0usize, |sum, &byte| sum << 8 | usize::from(byte))),
        other => {
            let what = format!("version {other} of the format");
            return Err(VolumeError::Unsupported { format: Format::Npy, what });
        }
    };
    let text = bytes
        .get(text_at..text_at.saturating_add(text_bytes))
        .ok_or_else(|| corrupt(format!("its description is said to take {text_bytes} bytes")))?;
    let text = std::str::from_utf8(text).map_err(|_| corrupt("its description is no text"))?;
    let (kind, big_endian) = kind_of(quoted(text, "descr")?)?;
    let order = match word(text, "fortran_order")? {
        "True" => AxisOrder::FirstFastest,
        "False" => AxisOrder::LastFastest,
        other => return Err(corrupt(format!("fortran_order is {other:?}"))),
    };
    let (channels, shape) = shape_of(text)?;
    if channels > 1 && order == AxisOrder::FirstFastest {
        let what = "channels in Fortran's order, where numpy.ascontiguousarray before saving would help";
        return Err(VolumeError::Unsupported { format: Format::Npy, what: what.to_owned() });
    }
    Ok(Header {
        format: Format::Npy,
        channels,
        shape,
        spacing: [1.0; 3],
        kind,
        big_endian,
        order,
        offset: (text_at + text_bytes) as u64,
        scale: (1.0, 0.0),
    })
}

/// What follows a key and its colon.
fn after<'a>(text: &'a str, key: &str) -> Result<&'a str, VolumeError> {
    ['\'', '"']
        .iter()
        .find_map(|quote| text.split_once(&format!("{quote}{key}{quote}")))
        .and_then(|(_, rest)| rest.trim_start().strip_prefix(':'))
        .map(str::trim_start)
        .ok_or_else(|| corrupt(format!("its description has no {key}")))
}

fn quoted<'a>(text: &'a str, key: &str) -> Result<&'a str, VolumeError> {
    let rest = after(text, key)?;
    rest.chars()
        .next()
        .filter(|quote| matches!(quote, '\'' | '"'))
        .and_then(|quote| rest[1..].split_once(quote))
        .map(|(value, _)| value)
        .ok_or_else(|| VolumeError::Unsupported {
            format: Format::Npy,
            what: "values with several fields".to_owned(),
        })
}

fn word<'a>(text: &'a str, key: &str) -> Result<&'a str, VolumeError> {
    let rest = after(text, key)?;
    let end = rest.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(rest.len());
    Ok(&rest[..end])
}

/// How many channels there are, which is the first of four axes, and the shape of each.
fn shape_of(text: &str) -> Result<(usize, [usize; 3]), VolumeError> {
    let rest = after(text, "shape")?;
    let inside = rest
        .strip_prefix('(')
        .and_then(|rest| rest.split_once(')'))
        .map(|(inside, _)| inside)
        .ok_or_else(|| corrupt("its shape is no tuple"))?;
    let sides: Result<Vec<usize>, _> =
        inside.split(',').map(str::trim).filter(|side| !side.is_empty()).map(str::parse).collect();
    let sides = sides.map_err(|_| corrupt(format!("its shape is ({inside})")))?;
    match sides[..] {
        [first, second, third] => Ok((1, [first, second, third])),
        [channels, first, second, third] => Ok((channels, [first, second, third])),
        _ => Err(VolumeError::Unsupported {
            format: Format::Npy,
            what: format!(
                "an array of shape ({inside}), where three axes make a volume, and one before them its channels"
            ),
        }),
    }
}

fn kind_of(description: &str) -> Result<(Kind, bool), VolumeError> {
    let unsupported =
        || VolumeError::Unsupported { format: Format::Npy, what: format!("values of type {description:?}") };
    let mut letters = description.chars();
    let order = letters.next().ok_or_else(unsupported)?;
    let big_endian = match order {
        '<' | '|' => false,
        '=' => cfg!(target_endian = "big"),
        '>' => true,
        _ => return Err(unsupported()),
    };
    let kind = match letters.as_str() {
        "u1" | "b1" => Kind::U8,
        "i1" => Kind::I8,
        "u2" => Kind::U16,
        "i2" => Kind::I16,
        "u4" => Kind::U32,
        "i4" => Kind::I32,
        "u8" => Kind::U64,
        "i8" => Kind::I64,
        "f2" => Kind::F16,
        "f4" => Kind::F32,
        "f8" => Kind::F64,
        _ => return Err(unsupported()),
    };
    Ok((kind, big_endian))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(version: u8, text: &str) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY".to_vec();
        bytes.extend([version, 0]);
        if version == 1 {
            bytes.extend((text.len() as u16).to_le_bytes());
        } else {
            bytes.extend((text.len() as u32).to_le_bytes());
        }
        bytes.extend(text.as_bytes());
        bytes
    }

    #[test]
    fn headers_of_all_versions_are_read() {
        let text = "{'descr': '>f4', 'fortran_order': True, 'shape': (1, 3, 4, 5), }\n";
        for version in 1..=3 {
            let bytes = file(version, text);
            let header = parse(&bytes).unwrap();
            assert_eq!((header.shape, header.kind, header.big_endian), ([3, 4, 5], Kind::F32, true));
            assert_eq!((header.order, header.offset), (AxisOrder::FirstFastest, bytes.len() as u64));
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for (kind, shape) in [(Kind::U8, [1, 2, 3]), (Kind::F32, [1000, 20_000, 300_000])] {
            let start = npy_start(2, shape, kind);
            assert!(start.len().is_multiple_of(64) && start.ends_with(b"\n"));
            let header = parse(&start).unwrap();
            assert_eq!((header.channels, header.shape, header.kind), (2, shape, kind));
            assert_eq!((header.offset, header.big_endian), (start.len() as u64, false));
        }
    }

    #[test]
    fn what_is_no_volume_is_said() {
        let told = |text: &str| parse(&file(1, text)).unwrap_err().to_string();
        assert!(told("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}").contains("(3, 4)"));
        assert!(told("{'descr': '<c8', 'fortran_order': False, 'shape': (3, 4, 5)}").contains("\"<c8\""));
        assert!(told("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}").contains("fields"));
        assert!(told("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3, 4, 5)}").contains("Fortran"));
        assert!(told("{'fortran_order': False, 'shape': (3, 4, 5)}").contains("no descr"));
        assert!(parse(b"\x93NUMPY\x01\x00\xff\xff{").unwrap_err().to_string().contains("65535 bytes"));
        assert!(parse(b"\x93NUMPY\x09\x00").unwrap_err().to_string().contains("version 9"));
    }
}
