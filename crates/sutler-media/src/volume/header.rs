//! Where which value of a volume lies in its file.

use std::ops::Range;

use super::values::Kind;
use super::{Block, VolumeError, nifti, npy};

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// NumPy's array file.
    Npy,
    /// NIfTI-1 in one file.
    Nifti,
    /// NIfTI-1 in one file, packed by gzip: nothing of it can be read without all that is before.
    NiftiGzip,
}

impl std::fmt::Display for Format {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Npy => "npy",
            Self::Nifti => "nii",
            Self::NiftiGzip => "nii.gz",
        })
    }
}

/// What is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most values of a volume.
    pub values_max: u64,
}

impl Default for Limits {
    /// A cube of 1024, four times a whole-body scan.
    fn default() -> Self {
        Self { values_max: 1 << 30 }
    }
}

/// Which axis a step to the next value of a file goes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisOrder {
    /// The last one, as in C.
    LastFastest,
    /// The first one, as in Fortran.
    FirstFastest,
}

/// What is in a file, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// What the file is.
    pub format: Format,
    /// The three axes. An array of four axes whose first has length 1 counts as three.
    pub shape: [usize; 3],
    /// The distance of values along each axis, in millimetres where the file says so, else 1.
    pub spacing: [f32; 3],
    /// How a value is stored.
    pub kind: Kind,
    /// Whether the first byte of a value is its highest.
    pub big_endian: bool,
    /// Which axis comes first.
    pub order: AxisOrder,
    /// Where the first value begins, counted in unpacked bytes.
    pub offset: u64,
    /// What a stored value is multiplied by, and what is added then.
    pub scale: (f64, f64),
}

/// Tells a file by its first bytes.
///
/// # Errors
/// When they are of none that is read here.
pub fn sniff(bytes: &[u8]) -> Result<Format, VolumeError> {
    match bytes {
        [] => Err(VolumeError::Empty),
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Ok(Format::Npy),
        [0x1F, 0x8B, ..] => Ok(Format::NiftiGzip),
        _ if nifti::is_header(bytes) => Ok(Format::Nifti),
        _ => {
            let first_bytes =
                bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
            Err(VolumeError::Unrecognised { first_bytes })
        }
    }
}

impl Header {
    /// How many of a file's first bytes hold every header that is not made to deceive.
    pub const START_BYTES: usize = 4096;

    /// Reads the header from the first bytes of a file, unpacked.
    ///
    /// # Errors
    /// When they make no sense, or the volume is too large.
    pub fn parse(start: &[u8], limits: Limits) -> Result<Self, VolumeError> {
        let header = match sniff(start)? {
            Format::Npy => npy::parse(start)?,
            Format::Nifti | Format::NiftiGzip => nifti::parse(start)?,
        };
        let values = header
            .shape
            .iter()
            .try_fold(1u64, |product, &side| product.checked_mul(side as u64))
            .unwrap_or(u64::MAX);
        if values > limits.values_max {
            return Err(VolumeError::TooLarge { values, values_max: limits.values_max });
        }
        if values == 0 {
            let reason = format!("no value in a volume of {:?}", header.shape);
            return Err(VolumeError::Corrupt { format: header.format, reason });
        }
        Ok(header)
    }

    /// How many values there are.
    #[must_use]
    pub fn values(&self) -> usize {
        self.shape.iter().product()
    }

    /// Where the last value ends.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + (self.values() * self.kind.bytes()) as u64
    }

    /// Whether so many bytes are all of it.
    ///
    /// # Errors
    /// When they are too few.
    pub fn check_length(&self, bytes: u64) -> Result<(), VolumeError> {
        if bytes < self.end() {
            return Err(VolumeError::Truncated { format: self.format, bytes, needed: self.end() });
        }
        Ok(())
    }

    /// The axes from the slowest to the fastest.
    fn axes(&self) -> [usize; 3] {
        match self.order {
            AxisOrder::LastFastest => [0, 1, 2],
            AxisOrder::FirstFastest => [2, 1, 0],
        }
    }

    /// The bytes of a file that hold a block of its values: one range for each step along the slowest axis, from the block's
    /// first value there to its last.
    pub fn ranges(&self, block: &Block) -> impl Iterator<Item = Range<u64>> {
        let [slow, middle, fast] = self.axes();
        let (row, bytes) = (self.shape[fast], self.kind.bytes());
        let plane = row * self.shape[middle];
        let first = block.start[middle] * row + block.start[fast];
        let last = (block.end[middle] - 1) * row + block.end[fast];
        let offset = self.offset;
        (block.start[slow]..block.end[slow]).map(move |at| {
            let from = at * plane;
            offset + ((from + first) * bytes) as u64..offset + ((from + last) * bytes) as u64
        })
    }

    /// Picks the values of a block from the bytes of its [ranges](Self::ranges), one after the other, and gives each to
    /// `put` with its place in the block, where the last axis is the fastest.
    pub fn gather(&self, block: &Block, bytes: &[u8], mut put: impl FnMut(usize, f64)) {
        let axes = self.axes();
        let [slow, middle, fast] = axes;
        let sides = block.sides();
        let steps = [sides[1] * sides[2], sides[2], 1];
        let size = self.kind.bytes();
        let row = self.shape[fast] * size;
        let range = ((sides[middle] - 1) * self.shape[fast] + sides[fast]) * size;
        let (scale, shift) = self.scale;
        for (at_slow, range) in bytes.chunks_exact(range).take(sides[slow]).enumerate() {
            for at_middle in 0..sides[middle] {
                let start = at_middle * row;
                let values = range[start..start + sides[fast] * size].chunks_exact(size);
                let place = at_slow * steps[slow] + at_middle * steps[middle];
                for (at_fast, value) in values.enumerate() {
                    let value = self.kind.read(value, self.big_endian);
                    put(place + at_fast * steps[fast], value * scale + shift);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(shape: [usize; 3], order: AxisOrder, kind: Kind) -> Header {
        Header {
            format: Format::Npy,
            shape,
            spacing: [1.0; 3],
            kind,
            big_endian: false,
            order,
            offset: 10,
            scale: (2.0, 1.0),
        }
    }

    /// The value at a place, and the file that holds such values.
    fn value(at: [usize; 3]) -> u16 {
        (at[0] * 10_000 + at[1] * 100 + at[2]) as u16
    }

    fn file(header: &Header) -> Vec<u8> {
        let mut bytes = vec![0xAA; header.offset as usize];
        let [slow, middle, fast] = header.axes();
        for first in 0..header.shape[slow] {
            for second in 0..header.shape[middle] {
                for third in 0..header.shape[fast] {
                    let mut at = [0; 3];
                    (at[slow], at[middle], at[fast]) = (first, second, third);
                    bytes.extend(value(at).to_le_bytes());
                }
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn a_block_is_what_slicing_gives(
            shape in prop::array::uniform3(1usize..7),
            corners in prop::array::uniform6(0usize..100),
            fortran in any::<bool>(),
        ) {
            let order = if fortran { AxisOrder::FirstFastest } else { AxisOrder::LastFastest };
            let header = header(shape, order, Kind::U16);
            let (mut start, mut end) = ([0; 3], [0; 3]);
            for axis in 0..3 {
                start[axis] = corners[axis] % shape[axis];
                end[axis] = start[axis] + 1 + corners[axis + 3] % (shape[axis] - start[axis]);
            }
            let block = Block { start, end };
            let file = file(&header);
            prop_assert_eq!(header.end(), file.len() as u64);
            let bytes: Vec<u8> = header
                .ranges(&block)
                .flat_map(|range| file[range.start as usize..range.end as usize].to_vec())
                .collect();
            let mut found = vec![f64::NAN; block.values()];
            header.gather(&block, &bytes, |place, value| found[place] = value);
            let mut expected = Vec::new();
            for first in start[0]..end[0] {
                for second in start[1]..end[1] {
                    for third in start[2]..end[2] {
                        expected.push(f64::from(value([first, second, third])) * 2.0 + 1.0);
                    }
                }
            }
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = Header::parse(&bytes, Limits::default());
        }
    }

    #[test]
    fn what_a_file_is_shows_in_its_first_bytes() {
        assert_eq!(sniff(b""), Err(VolumeError::Empty));
        assert_eq!(sniff(b"\x93NUMPY\x01\x00"), Ok(Format::Npy));
        assert_eq!(sniff(b"\x1f\x8b\x08"), Ok(Format::NiftiGzip));
        let told = sniff(b"GIF89a").unwrap_err().to_string();
        assert!(told.contains("47 49 46 38 39 61"), "{told}");
    }
}
