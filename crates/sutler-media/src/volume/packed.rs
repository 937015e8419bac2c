//! Files that are packed as a whole: nothing of them can be read without unpacking all that is before it.

use std::io::Read;

use flate2::bufread::GzDecoder;

use super::VolumeError;
use super::header::{Format, Header, Limits};

/// A file that is being unpacked, from its first byte on.
pub struct Unpacked<'a> {
    decoder: Parts<'a>,
    header: Header,
}

/// What one or several parts hold together. Zeros may fill up the last block of the medium that they were written to.
struct Parts<'a>(GzDecoder<&'a [u8]>);

impl Read for Parts<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        loop {
            let count = self.0.read(into)?;
            let rest = *self.0.get_ref();
            if count > 0 || into.is_empty() || rest.iter().all(|byte| *byte == 0) {
                return Ok(count);
            }
            self.0 = GzDecoder::new(rest);
        }
    }
}

impl<'a> Unpacked<'a> {
    /// Unpacks the header into `bytes`, whatever those held before.
    ///
    /// # Errors
    /// When what is packed is no volume, or is not packed well.
    pub fn open(packed: &'a [u8], limits: Limits, bytes: &mut Vec<u8>) -> Result<Self, VolumeError> {
        let mut decoder = Parts(GzDecoder::new(packed));
        bytes.clear();
        unpack(&mut decoder, Header::START_BYTES, bytes)?;
        let header = Header::parse(bytes, limits).map_err(|error| match error {
            VolumeError::Corrupt { reason, .. } => corrupt(reason),
            other => other,
        })?;
        Ok(Self { decoder, header: Header { format: Format::NiftiGzip, ..header } })
    }

    fn cut_off(&self, bytes: u64) -> VolumeError {
        VolumeError::Truncated { format: Format::NiftiGzip, bytes, needed: self.header.end() }
    }

    /// Goes to the end, where the decoder looks at the sum. Something may follow the last value: headers allow for it.
    fn check_sum(&mut self) -> Result<(), VolumeError> {
        std::io::copy(&mut self.decoder, &mut std::io::sink()).map(|_| ()).map_err(|error| damaged(&error))
    }

    /// What is in it.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Unpacks on until `bytes` has this many; where those are all, the sum at the end of the file is looked at, too.
    ///
    /// # Errors
    /// When there are fewer, or they are not packed well.
    pub fn go_on_to(&mut self, length: u64, bytes: &mut Vec<u8>) -> Result<(), VolumeError> {
        let missing = usize::try_from(length).unwrap_or(usize::MAX).saturating_sub(bytes.len());
        bytes.reserve_exact(missing);
        unpack(&mut self.decoder, missing, bytes)?;
        if (bytes.len() as u64) < length {
            return Err(self.cut_off(bytes.len() as u64));
        }
        if length == self.header.end() { self.check_sum() } else { Ok(()) }
    }
}

fn unpack(decoder: &mut impl Read, length: usize, bytes: &mut Vec<u8>) -> Result<(), VolumeError> {
    decoder.take(length as u64).read_to_end(bytes).map(|_| ()).map_err(|error| damaged(&error))
}

fn damaged(error: &std::io::Error) -> VolumeError {
    VolumeError::Damaged { format: Format::NiftiGzip, reason: error.to_string() }
}

fn corrupt(reason: String) -> VolumeError {
    VolumeError::Corrupt { format: Format::NiftiGzip, reason }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// A volume of 20 × 30 × 40 bytes that count up.
    fn volume() -> Vec<u8> {
        let mut file = vec![0u8; 352];
        file[..4].copy_from_slice(&348i32.to_le_bytes());
        for (at, side) in [(40, 3i16), (42, 20), (44, 30), (46, 40), (70, 2)] {
            file[at..at + 2].copy_from_slice(&side.to_le_bytes());
        }
        file[108..112].copy_from_slice(&352f32.to_le_bytes());
        file[344..348].copy_from_slice(b"n+1\0");
        file.extend((0..20 * 30 * 40).map(|value| (value * 7 / 3) as u8));
        file
    }

    #[test]
    fn as_much_is_unpacked_as_is_asked_for() {
        let file = volume();
        let packed = packed(&file);
        let mut bytes = vec![9; 5];
        let mut unpacked = Unpacked::open(&packed, Limits::default(), &mut bytes).unwrap();
        assert_eq!(unpacked.header().shape, [20, 30, 40]);
        assert_eq!(bytes, file[..4096]);
        unpacked.go_on_to(10_000, &mut bytes).unwrap();
        assert_eq!(bytes, file[..10_000]);
        unpacked.go_on_to(unpacked.header().end(), &mut bytes).unwrap();
        assert_eq!(bytes, file);
    }

    fn unpack_all(packed: &[u8]) -> Result<Vec<u8>, VolumeError> {
        let mut bytes = Vec::new();
        let mut unpacked = Unpacked::open(packed, Limits::default(), &mut bytes)?;
        unpacked.go_on_to(unpacked.header().end(), &mut bytes)?;
        Ok(bytes)
    }

    #[test]
    fn parts_and_what_follows_the_values_are_well() {
        let file = volume();
        let in_parts = [packed(&file[..10_000]), packed(&file[10_000..]), packed(b"")].concat();
        assert_eq!(unpack_all(&in_parts).unwrap(), file, "as bgzip packs");
        assert_eq!(unpack_all(&packed(&[&file[..], b"and more"].concat())).unwrap(), file);
        let filled_up = [packed(&file), vec![0; 500]].concat();
        assert_eq!(unpack_all(&filled_up).unwrap(), file, "as a tape has it");
    }

    #[test]
    fn no_flipped_bit_changes_a_value_unnoticed() {
        let file = volume();
        let good = packed(&file);
        // The first ten bytes tell when, where and how it was packed.
        for bit in (80..8 * good.len()).step_by(61) {
            let mut flipped = good.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // Zeros are a copy of other zeros wherever those are taken from.
            assert!(unpack_all(&flipped).map_or(true, |bytes| bytes == file), "bit {bit}");
        }
    }

    #[test]
    fn what_is_damaged_or_cut_off_is_said() {
        let told = |packed: &[u8]| unpack_all(packed).unwrap_err().to_string();
        let file = volume();
        let good = packed(&file);
        for length in [good.len() / 2, good.len() - 8, good.len() - 4, good.len() - 1] {
            assert!(told(&good[..length]).contains("cannot be unpacked"), "{length} of {}", good.len());
        }
        let mut wrong_sum = good.clone();
        let sum = wrong_sum.len() - 8;
        wrong_sum[sum] ^= 1;
        assert!(told(&wrong_sum).contains("cannot be unpacked"), "{}", told(&wrong_sum));
        let short = told(&packed(&file[..10_000]));
        assert!(short.contains("ends at byte 10000"), "{short}");
        let followed = [&good[..], b"and more"].concat();
        assert!(told(&followed).contains("cannot be unpacked"), "{}", told(&followed));
        assert!(told(&packed(b"no volume at all")).contains("no supported format"));
        assert!(told(&packed(b"")).contains("empty"));
    }
}
