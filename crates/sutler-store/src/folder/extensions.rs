//! Which file names are samples.

/// The endings that torchvision's `ImageFolder` takes for images, in its order.
pub const IMAGE_EXTENSIONS: [&str; 9] =
    [".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"];

/// The endings of sound files that can be decoded.
pub const AUDIO_EXTENSIONS: [&str; 5] = [".wav", ".flac", ".mp3", ".ogg", ".oga"];

/// The endings of volumes that can be read.
pub const VOLUME_EXTENSIONS: [&str; 3] = [".npy", ".nii", ".nii.gz"];

/// What files hold, by their endings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Image,
    Sound,
    Volume,
}

impl Kind {
    /// What files with this ending, in lower case and with its dot, hold.
    pub(super) fn of(extension: &str) -> Option<Self> {
        if IMAGE_EXTENSIONS.contains(&extension) {
            Some(Self::Image)
        } else if AUDIO_EXTENSIONS.contains(&extension) {
            Some(Self::Sound)
        } else {
            VOLUME_EXTENSIONS.contains(&extension).then_some(Self::Volume)
        }
    }

    /// What reads them.
    pub(super) fn dataset(self) -> &'static str {
        match self {
            Self::Image => "sutler.ImageFolder",
            Self::Sound => "sutler.AudioFolder",
            Self::Volume => "sutler.VolumeFolder",
        }
    }
}

/// Endings of file names, in lower case.
pub(super) struct Extensions(Vec<String>);

impl Extensions {
    pub(super) fn new(extensions: &[String]) -> Self {
        Self(extensions.iter().map(|extension| extension.to_lowercase()).collect())
    }

    /// Whether the name, in lower case, ends in one of them.
    pub(super) fn accept(&self, name: &[u8]) -> bool {
        if self.0.iter().any(|extension| ends_in(name, extension.as_bytes())) {
            return true;
        }
        // Letters beyond ASCII have lower cases too; names with such letters are few, so they may cost a copy.
        !name.is_ascii()
            && std::str::from_utf8(name).is_ok_and(|name| {
                let name = name.to_lowercase();
                self.0.iter().any(|extension| name.ends_with(extension.as_str()))
            })
    }

    /// What is looked for, as far as the endings tell.
    pub(super) fn kind(&self) -> Option<Kind> {
        self.0.iter().find_map(|extension| Kind::of(extension))
    }

    /// The name without its ending, of several the longest: `case.nii` and `case.nii.gz` are both named `case`.
    pub(super) fn stem<'a>(&self, name: &'a [u8]) -> &'a [u8] {
        let fitting = self.0.iter().map(String::as_bytes).filter(|extension| ends_in(name, extension));
        &name[..name.len() - fitting.map(<[u8]>::len).max().unwrap_or(0)]
    }

    pub(super) fn shown(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(String::as_bytes)
    }
}

fn ends_in(name: &[u8], extension: &[u8]) -> bool {
    let start = name.len().checked_sub(extension.len());
    start.is_some_and(|start| name[start..].eq_ignore_ascii_case(extension))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(extensions: &[&str], name: &[u8]) -> bool {
        Extensions::new(&extensions.iter().map(|&text| text.to_owned()).collect::<Vec<_>>()).accept(name)
    }

    #[test]
    fn case_does_not_matter_on_either_side() {
        assert!(accepted(&[".jpg"], b"a.JPG"));
        assert!(accepted(&[".JPG"], b"a.jpg"));
        assert!(accepted(&[".ä"], "x.Ä".as_bytes()));
        assert!(accepted(&[".mkv"], "film.m\u{212a}v".as_bytes()), "the Kelvin sign is a k in lower case");
    }

    #[test]
    fn a_stem_has_no_ending_left() {
        let extensions = Extensions::new(&VOLUME_EXTENSIONS.map(String::from));
        for (name, stem) in [("a.NPY", "a"), ("a.nii", "a"), ("a.nii.gz", "a"), ("a.b", "a.b"), (".npy", "")]
        {
            assert_eq!(extensions.stem(name.as_bytes()), stem.as_bytes());
        }
    }

    #[test]
    fn the_ending_is_compared_and_nothing_else() {
        assert!(accepted(&[".jpg"], b".jpg"));
        assert!(accepted(&[".jpg"], b"\xff\xfe.jpg"));
        assert!(!accepted(&[".jpg"], b"jpg"));
        assert!(!accepted(&[".jpg"], b"a.jpg.txt"));
        assert!(!accepted(&[], b"a.jpg"));
    }
}
