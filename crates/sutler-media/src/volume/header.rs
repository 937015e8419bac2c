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

impl Format {
    /// Its name, which is also what files of it end in.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Npy => "npy",
            Self::Nifti => "nii",
            Self::NiftiGzip => "nii.gz",
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

/// What is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most values of a volume.
    pub values_max: u64,
}

impl Default for Limits {
    /// A cube of 1024: a whole-body scan has a quarter of that.
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
    /// How many volumes there are one after the other, each of `shape`: what was measured at each place.
    pub channels: usize,
    /// The three axes.
    pub shape: [usize; 3],
    /// The distance of values along each axis, in millimetres where the file says so, else 1. It is the file's word: whoever
    /// counts on it sees to it that it is a distance.
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
        // A header of 540 bytes, in either order of bytes, and the magic word.
        [0x1C, 0x02, 0, 0, b'n', ..] | [0, 0, 0x02, 0x1C, b'n', ..] => Err(VolumeError::Unsupported {
            format: Format::Nifti,
            what: "version 2 of it (NIfTI-2)".to_owned(),
        }),
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
            .chain([&header.channels])
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

    /// How many values a channel has.
    #[must_use]
    pub fn values(&self) -> usize {
        self.shape.iter().product()
    }

    /// The same for one channel alone.
    #[must_use]
    pub fn channel(&self, index: usize) -> Self {
        let before = (index * self.values() * self.kind.bytes()) as u64;
        Self { channels: 1, offset: self.offset + before, ..self.clone() }
    }

    /// Where the last value ends.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + (self.channels * self.values() * self.kind.bytes()) as u64
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

    /// The bytes of a file that hold a block of the first channel: one range for each step along the slowest axis, from the
    /// block's first value there to its last. All are of one length.
    pub fn ranges(&self, block: &Block) -> impl Iterator<Item = Range<u64>> + use<> {
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

    /// The values of a block from the bytes of its [ranges](Self::ranges), the last axis the fastest.
    ///
    /// # Errors
    /// When one of them is not finite.
    pub fn floats<'a>(
        &self,
        block: &Block,
        slabs: impl Iterator<Item = &'a [u8]>,
        out: &mut [f32],
    ) -> Result<(), VolumeError> {
        if self.is_stored_as(Kind::F32) {
            self.copy_rows(block, slabs, out, |bytes, row| {
                for (value, word) in row.iter_mut().zip(bytes.as_chunks().0) {
                    *value = f32::from_le_bytes(*word);
                }
            });
        } else {
            let (scale, shift) = self.scale;
            self.gather(block, slabs, |place, value| out[place] = (value * scale + shift) as f32);
        }
        // All of a piece are looked at before any is named, so that many can be looked at together.
        let all_finite = |piece: &&[f32]| piece.iter().fold(true, |all, value| all & value.is_finite());
        let wrong = out.chunks(4096).find(|piece| !all_finite(piece));
        match wrong.and_then(|piece| piece.iter().find(|value| !value.is_finite())) {
            Some(value) => Err(VolumeError::NotFinite { value: value.to_string() }),
            None => Ok(()),
        }
    }

    /// The same for labels.
    ///
    /// # Errors
    /// When a value is none.
    pub fn labels<'a>(
        &self,
        block: &Block,
        slabs: impl Iterator<Item = &'a [u8]>,
        out: &mut [u8],
    ) -> Result<(), VolumeError> {
        if self.is_stored_as(Kind::U8) {
            self.copy_rows(block, slabs, out, |bytes, row| row.copy_from_slice(bytes));
            return Ok(());
        }
        let (scale, shift) = self.scale;
        let mut wrong = None;
        self.gather(block, slabs, |place, value| {
            let value = value * scale + shift;
            let label = value as u8;
            if f64::from(label) != value {
                wrong = Some(value);
            }
            out[place] = label;
        });
        wrong.map_or(Ok(()), |value| Err(VolumeError::NoLabel { value: value.to_string() }))
    }

    /// Whether values lie in the file as they are wanted: of this kind, in this order, and not to be scaled. Prepared volumes do, and
    /// a value looked at costs several times what one in a copied row does.
    fn is_stored_as(&self, kind: Kind) -> bool {
        self.kind == kind
            && self.order == AxisOrder::LastFastest
            && (!self.big_endian || kind.bytes() == 1)
            && self.scale == (1.0, 0.0)
    }

    /// Has `copy` fill each row of a block from its bytes.
    fn copy_rows<'a, T>(
        &self,
        block: &Block,
        slabs: impl Iterator<Item = &'a [u8]>,
        out: &mut [T],
        copy: impl Fn(&[u8], &mut [T]),
    ) {
        let [planes, rows, columns] = block.sides();
        let size = self.kind.bytes();
        for (slab, plane) in slabs.take(planes).zip(out.chunks_exact_mut(rows * columns)) {
            let rows = slab.chunks(self.shape[2] * size).zip(plane.chunks_exact_mut(columns));
            rows.for_each(|(bytes, row)| copy(&bytes[..columns * size], row));
        }
    }

    /// Gives each stored value of a block to `put`, with its place in the block where the last axis is the fastest.
    fn gather<'a>(
        &self,
        block: &Block,
        slabs: impl Iterator<Item = &'a [u8]>,
        mut put: impl FnMut(usize, f64),
    ) {
        let [slow, middle, fast] = self.axes();
        let sides = block.sides();
        let steps = [sides[1] * sides[2], sides[2], 1];
        let size = self.kind.bytes();
        let row = self.shape[fast] * size;
        for (at_slow, slab) in slabs.take(sides[slow]).enumerate() {
            for at_middle in 0..sides[middle] {
                let start = at_middle * row;
                let place = at_slow * steps[slow] + at_middle * steps[middle];
                self.kind.each(&slab[start..start + sides[fast] * size], self.big_endian, |at, value| {
                    put(place + at * steps[fast], value);
                });
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
            channels: 1,
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
            let slabs = header.ranges(&block).map(|range| &file[range.start as usize..range.end as usize]);
            let mut found = vec![f32::NAN; block.values()];
            header.floats(&block, slabs, &mut found).unwrap();
            let mut expected = Vec::new();
            for first in start[0]..end[0] {
                for second in start[1]..end[1] {
                    for third in start[2]..end[2] {
                        expected.push(f32::from(value([first, second, third])) * 2.0 + 1.0);
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

    proptest! {
        #[test]
        fn rows_that_are_copied_are_what_looking_at_each_value_gives(
            shape in prop::array::uniform3(1usize..6),
            corners in prop::array::uniform6(0usize..100),
            bytes in prop::collection::vec(any::<u8>(), 125 * 4),
        ) {
            let (mut start, mut end) = ([0; 3], [0; 3]);
            for axis in 0..3 {
                start[axis] = corners[axis] % shape[axis];
                end[axis] = start[axis] + 1 + corners[axis + 3] % (shape[axis] - start[axis]);
            }
            let block = Block { start, end };
            for kind in [Kind::F32, Kind::U8] {
                let plain = Header { offset: 0, scale: (1.0, 0.0), ..header(shape, AxisOrder::LastFastest, kind) };
                prop_assert!(plain.is_stored_as(kind));
                let slabs = || plain.ranges(&block).map(|range| &bytes[range.start as usize..range.end as usize]);
                let mut expected = vec![0.0; block.values()];
                plain.gather(&block, slabs(), |place, value| expected[place] = value as f32);
                if kind == Kind::F32 {
                    let mut found = vec![0.0; block.values()];
                    let finite = plain.floats(&block, slabs(), &mut found).is_ok();
                    prop_assert_eq!(finite, expected.iter().all(|value| value.is_finite()));
                    // Not a number is none, whatever its bits say.
                    let same = |(one, other): (&f32, &f32)| one == other || (one.is_nan() && other.is_nan());
                    prop_assert!(found.iter().zip(&expected).all(same));
                } else {
                    let mut found = vec![0; block.values()];
                    prop_assert_eq!(plain.labels(&block, slabs(), &mut found), Ok(()));
                    prop_assert_eq!(found.iter().map(|&label| f32::from(label)).collect::<Vec<_>>(), expected);
                }
            }
        }
    }

    #[test]
    fn channels_follow_one_another() {
        let header = Header { channels: 3, ..header([2, 3, 4], AxisOrder::LastFastest, Kind::U16) };
        assert_eq!(header.end(), 10 + 3 * 24 * 2);
        let last = header.channel(2);
        assert_eq!((last.offset, last.end()), (10 + 2 * 24 * 2, header.end()));
    }

    #[test]
    fn values_are_finite() {
        let header = Header { scale: (1.0, 0.0), ..header([1, 1, 2], AxisOrder::LastFastest, Kind::F32) };
        for (wrong, told) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
            let bytes: Vec<u8> = [1.0, wrong].iter().flat_map(|value| value.to_le_bytes()).collect();
            let read = header.floats(&Block::whole(header.shape), std::iter::once(&bytes[..]), &mut [0.0; 2]);
            let error = read.unwrap_err();
            assert_eq!(error.kind(), "not_finite");
            assert!(error.to_string().contains(told), "{error}");
        }
    }

    #[test]
    fn labels_are_whole_numbers_up_to_255() {
        let header = Header { scale: (1.0, 0.0), ..header([1, 1, 2], AxisOrder::LastFastest, Kind::F32) };
        let read = |values: [f32; 2]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let mut labels = [0; 2];
            let block = Block::whole(header.shape);
            header.labels(&block, std::iter::once(&bytes[..]), &mut labels).map(|()| labels)
        };
        assert_eq!(read([0.0, 255.0]), Ok([0, 255]));
        for wrong in [-1.0, 0.5, 256.0, f32::NAN] {
            let told = read([1.0, wrong]).unwrap_err().to_string();
            assert!(told.contains(&format!("{wrong}")), "{told}");
        }
    }

    #[test]
    fn what_a_file_is_shows_in_its_first_bytes() {
        assert_eq!(sniff(b""), Err(VolumeError::Empty));
        assert_eq!(sniff(b"\x93NUMPY\x01\x00"), Ok(Format::Npy));
        assert_eq!(sniff(b"\x1f\x8b\x08"), Ok(Format::NiftiGzip));
        let told = sniff(b"\x1c\x02\0\0n+2\0\r\n\x1a\n").unwrap_err().to_string();
        assert!(told.contains("NIfTI-2"), "{told}");
        let told = sniff(b"GIF89a").unwrap_err().to_string();
        assert!(told.contains("47 49 46 38 39 61"), "{told}");
    }
}
