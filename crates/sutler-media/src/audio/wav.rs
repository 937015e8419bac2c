//! RIFF WAVE, and RF64 for files beyond 4 GiB: a list of chunks, of which `fmt ` says what the bytes of `data` mean.

use super::decode::{Header, Limits};
use super::{AudioError, Clip, Format};

/// What `fmt ` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    encoding: Encoding,
    channels: u16,
    rate: u32,
}

/// How one value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Unsigned8,
    Signed16,
    Signed24,
    Signed32,
    Float32,
    Float64,
    ALaw,
    MuLaw,
}

impl Encoding {
    fn bytes(self) -> usize {
        match self {
            Self::Unsigned8 | Self::ALaw | Self::MuLaw => 1,
            Self::Signed16 => 2,
            Self::Signed24 => 3,
            Self::Signed32 | Self::Float32 => 4,
            Self::Float64 => 8,
        }
    }
}

/// Where the sound is.
struct Found {
    layout: Layout,
    /// Where its bytes begin.
    start: usize,
    /// How many there are by the header; `None` when whoever wrote it did not know yet.
    bytes: Option<u64>,
}

impl Found {
    fn frame_bytes(&self) -> usize {
        self.layout.encoding.bytes() * usize::from(self.layout.channels)
    }

    fn header(&self, bytes: u64) -> Header {
        let frames = bytes / self.frame_bytes() as u64;
        let Layout { channels, rate, .. } = self.layout;
        Header { format: Format::Wav, rate, channels, frames: Some(frames) }
    }
}

/// The header of a file of which these are the first bytes, if the sound begins among them.
pub(super) fn header_from_start(start: &[u8], file_bytes: u64) -> Option<Header> {
    let found = find(start, file_bytes).ok()?;
    let there = file_bytes.saturating_sub(found.start as u64);
    Some(found.header(found.bytes.unwrap_or(there).min(there)))
}

pub(super) fn probe(bytes: &[u8]) -> Result<Header, AudioError> {
    let found = find(bytes, bytes.len() as u64)?;
    let there = (bytes.len() - found.start) as u64;
    match found.bytes {
        Some(promised) if promised > there => Err(AudioError::truncated(Format::Wav, bytes)),
        promised => Ok(found.header(promised.unwrap_or(there))),
    }
}

pub(super) fn decode(bytes: &[u8], limits: &Limits, clip: &mut Clip) -> Result<(), AudioError> {
    let header = probe(bytes)?;
    let found = find(bytes, bytes.len() as u64)?;
    let frames = header.frames.unwrap_or(0);
    limits.check(frames, header.channels)?;
    let frame_bytes = found.frame_bytes();
    let data = &bytes[found.start..found.start + frames as usize * frame_bytes];
    clip.rate = header.rate;
    clip.channels = usize::from(header.channels);
    clip.values.clear();
    clip.values.resize(frames as usize * clip.channels, 0.0);
    let value_bytes = found.layout.encoding.bytes();
    for (channel, plane) in clip.values.chunks_exact_mut((frames as usize).max(1)).enumerate() {
        let values = data.chunks_exact(frame_bytes).map(|frame| &frame[channel * value_bytes..]);
        read_values(found.layout.encoding, values, plane);
    }
    // Whole numbers are numbers; of floats a recorder that was interrupted, or a division by zero, leaves others.
    if let Encoding::Float32 | Encoding::Float64 = found.layout.encoding
        && let Some(value) = clip.values.iter().find(|value| !value.is_finite())
    {
        return Err(AudioError::NotFinite { format: Format::Wav, value: value.to_string() });
    }
    Ok(())
}

fn read_values<'a>(encoding: Encoding, values: impl Iterator<Item = &'a [u8]>, out: &mut [f32]) {
    fn fill<'a>(values: impl Iterator<Item = &'a [u8]>, out: &mut [f32], convert: impl Fn(&'a [u8]) -> f32) {
        for (out, value) in out.iter_mut().zip(values) {
            *out = convert(value);
        }
    }
    match encoding {
        Encoding::Unsigned8 => fill(values, out, |b| (f32::from(b[0]) - 128.0) / 128.0),
        Encoding::Signed16 => fill(values, out, |b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32_768.0),
        Encoding::Signed24 => fill(values, out, |b| {
            // In the upper three bytes, so that the sign is where it belongs; 24 bits fit a float exactly.
            i32::from_le_bytes([0, b[0], b[1], b[2]]) as f32 / 2_147_483_648.0
        }),
        Encoding::Signed32 => fill(values, out, |b| {
            (f64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])) / 2_147_483_648.0) as f32
        }),
        Encoding::Float32 => fill(values, out, |b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        Encoding::Float64 => {
            fill(values, out, |b| {
                f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f32
            });
        }
        Encoding::ALaw => fill(values, out, |b| f32::from(from_a_law(b[0])) / 32_768.0),
        Encoding::MuLaw => fill(values, out, |b| f32::from(from_mu_law(b[0])) / 32_768.0),
    }
}

/// ITU-T G.711: the sign, three bits of magnitude and four of mantissa, every other bit inverted.
fn from_a_law(byte: u8) -> i16 {
    let bits = byte ^ 0x55;
    let mantissa = i16::from(bits & 0x0f) << 4;
    let magnitude = match i16::from(bits >> 4 & 0x07) {
        0 => mantissa + 8,
        exponent => (mantissa + 0x108) << (exponent - 1),
    };
    if bits & 0x80 == 0 { -magnitude } else { magnitude }
}

/// ITU-T G.711: the same with all bits inverted and a bias of 132.
fn from_mu_law(byte: u8) -> i16 {
    let bits = !byte;
    let magnitude = ((i16::from(bits & 0x0f) << 3) + 0x84) << (bits >> 4 & 0x07);
    if bits & 0x80 == 0 { magnitude - 0x84 } else { 0x84 - magnitude }
}

/// Goes over the chunks to the sound, in the first bytes of a file that has so many.
fn find(bytes: &[u8], file_bytes: u64) -> Result<Found, AudioError> {
    let truncated = || AudioError::truncated(Format::Wav, bytes);
    if bytes.starts_with(b"RIFX") {
        return Err(AudioError::unsupported(Format::Wav, "RIFX, a WAV file of big-endian numbers"));
    }
    let mut at = 12;
    let mut layout = None;
    // RF64 has the lengths that four bytes do not hold in a chunk of their own.
    let mut long_size = None;
    loop {
        let [a, b, c, d, size @ ..] =
            *bytes.get(at..at + 8).and_then(|head| head.first_chunk::<8>()).ok_or_else(truncated)?;
        let size = u32::from_le_bytes(size);
        at += 8;
        match &[a, b, c, d] {
            b"fmt " => {
                let chunk = bytes.get(at..at + size as usize).ok_or_else(truncated)?;
                layout = Some(read_layout(chunk)?);
            }
            b"ds64" => {
                let chunk = bytes.get(at..at + size as usize).ok_or_else(truncated)?;
                long_size = chunk.get(8..16).and_then(<[u8]>::first_chunk).copied().map(u64::from_le_bytes);
            }
            b"data" => {
                let layout = layout.ok_or_else(|| {
                    AudioError::corrupt(Format::Wav, "the sound comes before its description")
                })?;
                let size = match size {
                    u32::MAX => long_size,
                    0 if is_unfinished(bytes, at, file_bytes) => None,
                    size => Some(u64::from(size)),
                };
                return Ok(Found { layout, start: at, bytes: size });
            }
            _ => {}
        }
        // Chunks begin at even offsets.
        at = at.checked_add(size as usize + (size as usize & 1)).ok_or_else(truncated)?;
    }
}

/// Whether the length of the sound, which begins at `at`, was never filled in: programs that write into a pipe cannot go back for it.
/// They could not for the length of the file either; where that is right, and what follows is a chunk, a sound without a value has none.
fn is_unfinished(bytes: &[u8], at: usize, file_bytes: u64) -> bool {
    let said = bytes.get(4..8).and_then(<[u8]>::first_chunk).copied().map_or(0, u32::from_le_bytes);
    let is_finished = (at as u64..=file_bytes).contains(&(u64::from(said) + 8));
    file_bytes > at as u64 && !(is_finished && may_be_chunk(bytes, at, file_bytes))
}

/// Whether something may be a chunk: it has a name of letters, and ends within the file.
fn may_be_chunk(bytes: &[u8], at: usize, file_bytes: u64) -> bool {
    let Some([name @ .., a, b, c, d]) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) else {
        return true; // there is no room for sound either, or nobody has looked so far
    };
    let end = at as u64 + 8 + u64::from(u32::from_le_bytes([*a, *b, *c, *d]));
    name.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ') && end <= file_bytes
}

fn read_layout(chunk: &[u8]) -> Result<Layout, AudioError> {
    let corrupt = |reason: &str| AudioError::corrupt(Format::Wav, reason);
    let word = |at: usize| chunk.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    let (Some(tag), Some(channels), Some(rate), Some(block), Some(bits)) = (
        word(0),
        word(2),
        chunk.get(4..8).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        word(12),
        word(14),
    ) else {
        return Err(corrupt("its description is too short"));
    };
    // The extensible kind says the same two bytes at the beginning of a longer name.
    let tag =
        if tag == 0xfffe { word(24).ok_or_else(|| corrupt("its description is too short"))? } else { tag };
    let encoding = match (tag, bits) {
        (1, 8) => Encoding::Unsigned8,
        (1, 16) => Encoding::Signed16,
        (1, 24) => Encoding::Signed24,
        (1, 32) => Encoding::Signed32,
        (3, 32) => Encoding::Float32,
        (3, 64) => Encoding::Float64,
        (6, 8) => Encoding::ALaw,
        (7, 8) => Encoding::MuLaw,
        _ => return Err(AudioError::unsupported(Format::Wav, name(tag, bits))),
    };
    if channels == 0 || rate == 0 {
        return Err(corrupt("the header gives no channels or no sample rate"));
    }
    if usize::from(block) != usize::from(channels) * encoding.bytes() {
        return Err(corrupt(&format!(
            "{channels} channels of {bits} bits do not make blocks of {block} bytes"
        )));
    }
    Ok(Layout { encoding, channels, rate })
}

/// What sound is that is not read, in words. The numbers are those of Microsoft's mmreg.h.
fn name(tag: u16, bits: u16) -> String {
    let compressed = match tag {
        0x0001 => return format!("PCM of {bits} bits"),
        0x0002 => "Microsoft ADPCM",
        0x0003 => return format!("floating-point numbers of {bits} bits"),
        0x0006 => return format!("A-law of {bits} bits"),
        0x0007 => return format!("mu-law of {bits} bits"),
        0x0011 => "IMA ADPCM",
        0x0020 => "Yamaha ADPCM",
        0x0031 => "GSM 6.10",
        0x0045 => "G.726 ADPCM",
        0x0050 => "MPEG audio of layer I or II in WAV",
        0x0055 => "MP3 in WAV",
        0x00ff => "AAC in WAV",
        0x0160..=0x0163 => "Windows Media Audio in WAV",
        0x2000 => "AC-3 in WAV",
        0x2001 => "DTS in WAV",
        _ => return format!("values of encoding {tag:#06x} with {bits} bits"),
    };
    compressed.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wav(tag: u16, channels: u16, bits: u16, data: &[u8]) -> Vec<u8> {
        let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0".to_vec();
        file.extend(tag.to_le_bytes());
        file.extend(channels.to_le_bytes());
        file.extend(8000u32.to_le_bytes());
        file.extend((8000 * u32::from(channels * bits / 8)).to_le_bytes());
        file.extend((channels * bits / 8).to_le_bytes());
        file.extend(bits.to_le_bytes());
        file.extend(b"LIST\x03\0\0\0abc\0data"); // a chunk of odd length is padded
        file.extend((data.len() as u32).to_le_bytes());
        file.extend(data);
        file
    }

    fn decoded(file: &[u8]) -> Result<Clip, AudioError> {
        let mut clip = Clip::default();
        decode(file, &Limits { values_max: 1 << 20 }, &mut clip).map(|()| clip)
    }

    #[test]
    fn every_encoding_has_its_scale() {
        for (tag, bits, data, expected) in [
            (1, 8, &[0u8, 128, 192][..], [-1.0, 0.0, 0.5]),
            (1, 16, &[0, 0x80, 0, 0, 0, 0x40], [-1.0, 0.0, 0.5]),
            (1, 24, &[0, 0, 0x80, 0, 0, 0, 0, 0, 0x40], [-1.0, 0.0, 0.5]),
            (1, 32, &[0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x40], [-1.0, 0.0, 0.5]),
        ] {
            let clip = decoded(&wav(tag, 1, bits, data)).unwrap();
            assert_eq!((clip.rate, clip.channels, &clip.values[..]), (8000, 1, &expected[..]), "{bits} bits");
        }
        let floats: Vec<u8> = [0.25f32, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(decoded(&wav(3, 1, 32, &floats)).unwrap().values, [0.25, -2.0]);
        for (wrong, told) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
            let floats: Vec<u8> = [0.25f32, wrong].iter().flat_map(|value| value.to_le_bytes()).collect();
            let error = decoded(&wav(3, 1, 32, &floats)).unwrap_err();
            assert_eq!(error.kind(), "not_finite");
            assert!(error.to_string().contains(told), "{error}");
        }
        // The published end points of G.711.
        assert_eq!([0x2a, 0xaa, 0x55, 0xd5].map(from_a_law), [-32256, 32256, -8, 8]);
        assert_eq!([0x00, 0x80, 0x7f, 0xff].map(from_mu_law), [-32124, 32124, 0, 0]);
    }

    #[test]
    fn channels_are_taken_apart() {
        let clip = decoded(&wav(1, 2, 8, &[128, 0, 192, 64])).unwrap();
        assert_eq!((clip.channels, clip.values), (2, vec![0.0, 0.5, -1.0, -0.5]));
    }

    #[test]
    fn lies_are_found_out() {
        let good = wav(1, 1, 16, &[1, 2, 3, 4]);
        for end in 12..good.len() {
            let error = decoded(&good[..end]).unwrap_err();
            assert_eq!(error.kind(), "truncated", "{end}: {error}");
        }
        let mut no_channels = good.clone();
        no_channels[22] = 0;
        assert!(decoded(&no_channels).unwrap_err().to_string().contains("no channels"));
        let mut wrong_block = good.clone();
        wrong_block[32] = 3;
        assert!(decoded(&wrong_block).unwrap_err().to_string().contains("blocks of 3 bytes"));
        let mut adpcm = good.clone();
        adpcm[20] = 2;
        assert_eq!(decoded(&adpcm).unwrap_err().kind(), "unsupported");
    }

    #[test]
    fn what_is_not_read_is_named_and_so_is_what_to_convert_it_to() {
        let mut big_endian = wav(1, 1, 16, &[1, 2]);
        big_endian[..4].copy_from_slice(b"RIFX");
        let mut extensible = wav(0xfffe, 1, 4, &[]);
        extensible[16] = 40;
        extensible.splice(36..36, [&[22, 0, 4, 0, 0, 0, 0, 0, 17, 0][..], &[0; 14]].concat());
        let files = [
            (big_endian, "RIFX, a WAV file of big-endian numbers"),
            (extensible, "IMA ADPCM"),
            (wav(0x01, 1, 12, &[]), "PCM of 12 bits"),
            (wav(0x02, 1, 4, &[]), "Microsoft ADPCM"),
            (wav(0x03, 1, 16, &[]), "floating-point numbers of 16 bits"),
            (wav(0x11, 1, 4, &[]), "IMA ADPCM"),
            (wav(0x31, 1, 0, &[]), "GSM 6.10"),
            (wav(0x55, 2, 0, &[]), "MP3 in WAV"),
            (wav(0x1234, 1, 4, &[]), "values of encoding 0x1234 with 4 bits"),
        ];
        for (file, what) in files {
            let error = decoded(&file).unwrap_err();
            assert_eq!(error.kind(), "unsupported", "{error}");
            assert_eq!(
                error.to_string(),
                format!(
                    "this kind of wav is not supported: {what}; convert it to PCM WAV or FLAC, or leave it out"
                )
            );
            assert_eq!(probe(&file).unwrap_err(), error);
            assert_eq!(header_from_start(&file, file.len() as u64), None);
        }
    }

    #[test]
    fn a_length_that_was_not_known_is_what_is_there() {
        let mut piped = wav(1, 1, 16, &[1, 2, 3, 4, 5]);
        let at = piped.len() - 9;
        piped[at..at + 4].fill(0xff);
        assert_eq!(decoded(&piped).unwrap().frames(), 2, "and half a value is none");
        assert_eq!(header_from_start(&piped[..60], piped.len() as u64).unwrap().frames, Some(2));
    }

    #[test]
    fn a_sound_without_a_value_is_none_where_the_file_is_as_long_as_it_says() {
        let mut file = wav(1, 1, 16, &[]);
        file.extend(b"LIST\x06\0\0\0INFOab");
        assert_eq!(decoded(&file).unwrap().frames(), 7, "nobody came back to fill a length in");
        let said = file.len() as u32 - 8;
        file[4..8].copy_from_slice(&said.to_le_bytes());
        assert_eq!(decoded(&file).unwrap().frames(), 0);
    }

    #[test]
    fn sound_that_follows_a_length_of_zero_is_sound() {
        let mut file = wav(1, 1, 16, &[]);
        file.extend([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let said = file.len() as u32 - 8;
        file[4..8].copy_from_slice(&said.to_le_bytes());
        assert_eq!(decoded(&file).unwrap().frames(), 6);
    }

    #[test]
    fn long_files_have_their_length_elsewhere() {
        let short = wav(1, 1, 16, &[1, 2, 3, 4, 5, 6]);
        let mut file = b"RF64\xff\xff\xff\xffWAVEds64\x1c\0\0\0".to_vec();
        file.extend([0; 8]);
        file.extend(4u64.to_le_bytes());
        file.extend([0; 12]);
        file.extend(&short[12..]);
        let at = file.len() - 10;
        file[at..at + 4].fill(0xff);
        assert_eq!(decoded(&file).unwrap().frames(), 2, "and what follows is no sound");
        assert_eq!(header_from_start(&file[..96], file.len() as u64).unwrap().frames, Some(2));
        assert_eq!(decoded(&file[..at + 6]).unwrap_err().kind(), "truncated");
    }

    #[test]
    fn more_values_than_allowed_are_refused() {
        let file = wav(1, 1, 8, &[0; 100]);
        let error = decode(&file, &Limits { values_max: 99 }, &mut Clip::default()).unwrap_err();
        assert!(error.to_string().contains("raise values_max"), "{error}");
    }
}
