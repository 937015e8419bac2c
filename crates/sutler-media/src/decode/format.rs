//! Which format a file is in, told from its first bytes alone.

use std::fmt;

/// An image format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// JPEG.
    Jpeg,
    /// PNG.
    Png,
    /// WebP.
    WebP,
    /// Windows bitmap.
    Bmp,
    /// GIF; of an animation the first frame.
    Gif,
    /// TIFF; of several pages the first.
    Tiff,
    /// Portable bit, grey or colour map.
    Pnm,
}

impl Format {
    /// The name in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "jpeg",
            Self::Png => "png",
            Self::WebP => "webp",
            Self::Bmp => "bmp",
            Self::Gif => "gif",
            Self::Tiff => "tiff",
            Self::Pnm => "pnm",
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
        [0xff, 0xd8, 0xff, ..] => Some(Format::Jpeg),
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Format::Png),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Format::WebP),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Format::Gif),
        // Classic TIFF and BigTIFF, in both byte orders.
        [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => Some(Format::Tiff),
        // Two letters are little to go by, so the size of the next header has to be one that exists.
        [b'B', b'M', ..] if bytes.get(14..18).is_none_or(is_bitmap_header_size) => Some(Format::Bmp),
        [b'P', b'1'..=b'6', space, ..] if space.is_ascii_whitespace() => Some(Format::Pnm),
        _ => None,
    }
}

fn is_bitmap_header_size(size: &[u8]) -> bool {
    matches!(size, [12 | 16 | 40 | 52 | 56 | 64 | 108 | 124, 0, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_magic_is_known_and_text_is_not() {
        assert_eq!(sniff(b"\xff\xd8\xff\xe0"), Some(Format::Jpeg));
        assert_eq!(sniff(b"\x89PNG\r\n\x1a\n"), Some(Format::Png));
        assert_eq!(sniff(b"RIFF\0\0\0\0WEBPVP8 "), Some(Format::WebP));
        assert_eq!(sniff(b"GIF89a"), Some(Format::Gif));
        assert_eq!(sniff(b"II*\0"), Some(Format::Tiff));
        assert_eq!(sniff(b"MM\0+"), Some(Format::Tiff));
        assert_eq!(sniff(b"BM\0\0\0\0\0\0\0\0\0\0\0\0\x28\0\0\0"), Some(Format::Bmp));
        assert_eq!(sniff(b"BMW and other cars"), None);
        assert_eq!(sniff(b"P6\n1 1 255\n"), Some(Format::Pnm));
        assert_eq!(sniff(b"P6x"), None);
        assert_eq!(sniff(b"<html>"), None);
        assert_eq!(sniff(b""), None);
    }
}
