//! Which format a sound file is in, told from its first bytes alone.

use std::fmt;

/// A format of sound files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// RIFF WAVE.
    Wav,
    /// FLAC.
    Flac,
    /// MPEG layer III.
    Mp3,
    /// Vorbis in Ogg.
    Ogg,
}

impl Format {
    /// The name in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Wav => "wav",
            Self::Flac => "flac",
            Self::Mp3 => "mp3",
            Self::Ogg => "ogg",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Tells the format from the first bytes; names and extensions lie too often to be asked.
#[must_use]
pub fn sniff(bytes: &[u8]) -> Option<Format> {
    match bytes {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..]
        | [b'R', b'F', b'6', b'4', _, _, _, _, b'W', b'A', b'V', b'E', ..]
        // Refused, but by its name.
        | [b'R', b'I', b'F', b'X', _, _, _, _, b'W', b'A', b'V', b'E', ..] => Some(Format::Wav),
        [b'f', b'L', b'a', b'C', ..] => Some(Format::Flac),
        [b'O', b'g', b'g', b'S', ..] => Some(Format::Ogg),
        // A tag is most often an MP3's. What it is of comes after it.
        [b'I', b'D', b'3', ..] => match bytes.get(tag_bytes(bytes)..) {
            Some([b'f', b'L', b'a', b'C', ..]) => Some(Format::Flac),
            _ => Some(Format::Mp3),
        },
        // Eleven bits of synchronisation, a version that exists, and layer III.
        [0xff, second, ..] if second & 0xe0 == 0xe0 && second & 0x18 != 0x08 && second & 0x06 == 0x02 => {
            Some(Format::Mp3)
        }
        _ => None,
    }
}

/// The length of an ID3v2 tag in front of the sound, 0 where there is none.
pub(super) fn tag_bytes(bytes: &[u8]) -> usize {
    match bytes {
        [b'I', b'D', b'3', _, _, flags, a, b, c, d, ..] => {
            // Seven bits in each byte; a footer repeats the ten bytes of the header.
            let size = [a, b, c, d].into_iter().fold(0, |size, byte| size << 7 | usize::from(byte & 0x7f));
            size + if flags & 0x10 == 0 { 10 } else { 20 }
        }
        _ => 0,
    }
}

/// The length of the tags behind the sound, 0 where there are none: APE's, ID3v1's, or the first and then the second.
pub(super) fn end_tag_bytes(bytes: &[u8]) -> usize {
    let id3 = if bytes.last_chunk().is_some_and(is_id3v1) { ID3V1_BYTES } else { 0 };
    id3 + ape_bytes(&bytes[..bytes.len() - id3])
}

/// Title, artist, album, year, comment and genre, of fixed length.
const ID3V1_BYTES: usize = 128;

/// Three letters could be anything's, so what follows them must be text.
fn is_id3v1(tag: &[u8; ID3V1_BYTES]) -> bool {
    let words = &tag[3..97];
    tag.starts_with(b"TAG") && words.iter().all(|&byte| byte == 0 || byte >= b' ')
}

/// An APE tag ends with 32 bytes that say how long it is, those included, and whether as many more begin it.
fn ape_bytes(bytes: &[u8]) -> usize {
    match bytes.last_chunk::<32>() {
        Some(
            [
                b'A',
                b'P',
                b'E',
                b'T',
                b'A',
                b'G',
                b'E',
                b'X',
                _,
                _,
                _,
                _,
                a,
                b,
                c,
                d,
                _,
                _,
                _,
                _,
                _,
                _,
                _,
                flags,
                ..,
            ],
        ) => {
            let size = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
            let whole = size.saturating_add(if flags & 0x80 == 0 { 0 } else { 32 });
            if whole <= bytes.len() { whole } else { 0 }
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_behind_the_sound_are_known_and_sound_is_not() {
        let mut id3 = [0; 128];
        id3[..8].copy_from_slice(b"TAGTitle");
        let footer = |size: u32, flags: u8| {
            [b"APETAGEX\xd0\x07\0\0".as_slice(), &size.to_le_bytes(), &[1, 0, 0, 0, 0, 0, 0, flags], &[0; 8]]
                .concat()
        };
        let ape = [&[7; 10][..], &footer(42, 0)].concat();
        let with_header = [&footer(42, 0xa0)[..], &[7; 10], &footer(42, 0x80)].concat();
        let sound = [0x55; 300];
        assert_eq!(end_tag_bytes(&sound), 0);
        for (tag, bytes) in [(&id3[..], 128), (&ape[..], 42), (&with_header[..], 74)] {
            assert_eq!(end_tag_bytes(&[&sound, tag].concat()), bytes);
        }
        assert_eq!(end_tag_bytes(&[&sound, &ape[..], &id3].concat()), 170);
        id3[40] = 1;
        assert_eq!(end_tag_bytes(&[&sound[..], &id3].concat()), 0);
        assert_eq!(end_tag_bytes(&footer(33, 0)), 0, "longer than the file");
    }

    #[test]
    fn every_magic_is_known_and_text_is_not() {
        assert_eq!(sniff(b"RIFF\0\0\0\0WAVEfmt "), Some(Format::Wav));
        assert_eq!(sniff(b"RF64\xff\xff\xff\xffWAVEds64"), Some(Format::Wav));
        assert_eq!(sniff(b"RIFX\0\0\0\0WAVEfmt "), Some(Format::Wav));
        assert_eq!(sniff(b"RIFF\0\0\0\0WEBPVP8 "), None);
        assert_eq!(sniff(b"RIFX\0\0\0\0MV93imap"), None, "a film of Director");
        assert_eq!(sniff(b"fLaC\0"), Some(Format::Flac));
        assert_eq!(sniff(b"OggS\0"), Some(Format::Ogg));
        assert_eq!(sniff(b"ID3\x04"), Some(Format::Mp3));
        assert_eq!(sniff(b"ID3\x04\0\0\0\0\0\x02..fLaC"), Some(Format::Flac));
        assert_eq!(sniff(b"\xff\xfb\x90"), Some(Format::Mp3));
        assert_eq!(sniff(b"\xff\xd8\xff\xe0"), None, "a JPEG");
        assert_eq!(sniff(b"\xff\xf1\x50"), None, "AAC in ADTS has layer 0");
        assert_eq!(sniff(b""), None);
    }

    #[test]
    fn a_tag_is_as_long_as_it_says() {
        assert_eq!(tag_bytes(b"ID3\x04\0\0\0\0\x02\x01rest"), 267);
        assert_eq!(tag_bytes(b"ID3\x04\0\x10\0\0\0\x01rest"), 21);
        assert_eq!(tag_bytes(b"\xff\xfb\x90\0\0\0\0\0\0\0"), 0);
    }
}
