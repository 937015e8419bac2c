//! NIfTI-1: 348 bytes of header, then the values with the first axis the fastest.

use super::VolumeError;
use super::header::{AxisOrder, Format, Header};
use super::values::Kind;

/// The bytes of a header, which are also its first field.
const HEADER_BYTES: usize = 348;

/// Where values begin at the earliest, behind four bytes that announce extensions.
const VALUES_AT: f32 = 352.0;

/// Where `magic` is, and what it says when header and values are in one file.
const MAGIC_AT: usize = 344;
const ONE_FILE: &[u8] = b"n+1\0";
/// … and when they are in two.
const TWO_FILES: &[u8] = b"ni1\0";

fn corrupt(reason: impl Into<String>) -> VolumeError {
    VolumeError::Corrupt { format: Format::Nifti, reason: reason.into() }
}

fn unsupported(what: impl Into<String>) -> VolumeError {
    VolumeError::Unsupported { format: Format::Nifti, what: what.into() }
}

pub(super) fn is_header(bytes: &[u8]) -> bool {
    let size = (HEADER_BYTES as u32).to_le_bytes();
    bytes.starts_with(&size) || bytes.iter().take(4).rev().eq(size.iter())
}

/// The fields of a header, in its order of bytes.
struct Fields<'a> {
    bytes: &'a [u8],
    big_endian: bool,
}

impl Fields<'_> {
    fn word<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut word = [0; N];
        word.copy_from_slice(&self.bytes[at..at + N]);
        if self.big_endian {
            word.reverse();
        }
        word
    }

    fn i16(&self, at: usize) -> i16 {
        i16::from_le_bytes(self.word(at))
    }

    fn f32(&self, at: usize) -> f32 {
        f32::from_le_bytes(self.word(at))
    }
}

pub(super) fn parse(bytes: &[u8]) -> Result<Header, VolumeError> {
    if bytes.len() < HEADER_BYTES {
        let (bytes, needed) = (bytes.len() as u64, HEADER_BYTES as u64);
        return Err(VolumeError::Truncated { format: Format::Nifti, bytes, needed });
    }
    let fields = Fields { bytes, big_endian: bytes[0] == 0 };
    match &bytes[MAGIC_AT..MAGIC_AT + 4] {
        ONE_FILE => {}
        TWO_FILES => return Err(unsupported("header and values in two files (.hdr and .img)")),
        other => return Err(corrupt(format!("its magic word is {other:?}"))),
    }
    let kind = match fields.i16(70) {
        2 => Kind::U8,
        4 => Kind::I16,
        8 => Kind::I32,
        16 => Kind::F32,
        64 => Kind::F64,
        256 => Kind::I8,
        512 => Kind::U16,
        768 => Kind::U32,
        1024 => Kind::I64,
        1280 => Kind::U64,
        other => return Err(unsupported(format!("values of datatype {other}"))),
    };
    let offset = fields.f32(108);
    if !(VALUES_AT..1e9).contains(&offset) {
        return Err(corrupt(format!("its values are said to begin at byte {offset}")));
    }
    let spacing = [1, 2, 3].map(|axis| fields.f32(76 + 4 * axis).abs());
    let (slope, shift) = (f64::from(fields.f32(112)), f64::from(fields.f32(116)));
    // A slope of zero, or none at all, means that values are what they are.
    let scaled = slope.is_finite() && slope != 0.0;
    if scaled && !shift.is_finite() {
        return Err(corrupt(format!("{shift} is said to be added to each value")));
    }
    let (channels, shape) = shape_of(&fields)?;
    Ok(Header {
        format: Format::Nifti,
        channels,
        shape,
        spacing,
        kind,
        big_endian: fields.big_endian,
        order: AxisOrder::FirstFastest,
        offset: offset as u64,
        scale: if scaled { (slope, shift) } else { (1.0, 0.0) },
    })
}

/// How many channels there are, which is the fourth axis, and the shape of each.
fn shape_of(fields: &Fields<'_>) -> Result<(usize, [usize; 3]), VolumeError> {
    let axes = fields.i16(40);
    if !(1..=7).contains(&axes) {
        return Err(corrupt(format!("it is said to have {axes} axes")));
    }
    let mut sides = [1usize; 7];
    for (axis, side) in sides.iter_mut().enumerate().take(axes as usize) {
        let length = fields.i16(42 + 2 * axis);
        *side = usize::try_from(length)
            .map_err(|_| corrupt(format!("an axis is said to have {length} values")))?;
    }
    match sides {
        [first, second, third, channels, 1, 1, 1] if axes >= 3 => Ok((channels, [first, second, third])),
        _ => Err(unsupported(format!(
            "an image of {:?}, where three axes make a volume, and a fourth its channels",
            &sides[..axes as usize]
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(big_endian: bool, shape: &[i16], datatype: i16) -> Vec<u8> {
        let mut bytes = vec![0u8; 352];
        let mut put = |at: usize, word: &[u8]| {
            let mut word = word.to_vec();
            if big_endian {
                word.reverse();
            }
            bytes[at..at + word.len()].copy_from_slice(&word);
        };
        put(0, &348i32.to_le_bytes());
        put(40, &(shape.len() as i16).to_le_bytes());
        for (axis, side) in shape.iter().enumerate() {
            put(42 + 2 * axis, &side.to_le_bytes());
            put(80 + 4 * axis, &(0.5 + axis as f32).to_le_bytes());
        }
        put(70, &datatype.to_le_bytes());
        put(108, &352f32.to_le_bytes());
        put(112, &2f32.to_le_bytes());
        put(116, &(-1f32).to_le_bytes());
        bytes[344..348].copy_from_slice(ONE_FILE);
        bytes
    }

    #[test]
    fn headers_are_read_in_both_orders_of_bytes() {
        for big_endian in [false, true] {
            let header = parse(&file(big_endian, &[4, 5, 6], 4)).unwrap();
            assert_eq!((header.shape, header.spacing), ([4, 5, 6], [0.5, 1.5, 2.5]));
            assert_eq!((header.kind, header.big_endian, header.offset), (Kind::I16, big_endian, 352));
            assert_eq!(header.scale, (2.0, -1.0));
        }
        let header = parse(&file(false, &[4, 5, 6, 2], 2)).unwrap();
        assert_eq!((header.shape, header.channels), ([4, 5, 6], 2));
    }

    #[test]
    fn what_is_no_volume_is_said() {
        let told = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
        assert!(told(&file(false, &[4, 5, 6, 1, 2], 4)).contains("[4, 5, 6, 1, 2]"));
        assert!(told(&file(false, &[4, 5], 4)).contains("[4, 5]"));
        assert!(told(&file(false, &[4, -5, 6], 4)).contains("-5 values"));
        assert!(told(&file(false, &[4, 5, 6], 32)).contains("datatype 32"));
        assert!(told(&file(false, &[4, 5, 6], 4)[..100]).contains("ends at byte 100"));
        let mut shifted = file(false, &[4, 5, 6], 4);
        shifted[116..120].copy_from_slice(&f32::NAN.to_le_bytes());
        assert!(told(&shifted).contains("NaN is said to be added"));
        let mut nowhere = file(false, &[4, 5, 6], 4);
        nowhere[108..112].copy_from_slice(&f32::INFINITY.to_le_bytes());
        assert!(told(&nowhere).contains("begin at byte inf"));
        nowhere[108..112].copy_from_slice(&348f32.to_le_bytes());
        assert!(told(&nowhere).contains("begin at byte 348"));
        let mut two = file(false, &[4, 5, 6], 4);
        two[344..348].copy_from_slice(TWO_FILES);
        assert!(told(&two).contains("two files"));
    }
}
