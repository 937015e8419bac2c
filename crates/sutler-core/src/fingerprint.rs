//! Names for contents: two listings or pipelines with the same fingerprint are the same.

use std::fmt;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

/// A 128-bit hash, written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub u128);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map(Self).map_err(serde::de::Error::custom)
    }
}

/// Collects the parts of a fingerprint. Every part is framed by its length, so `"ab", "c"` and `"a", "bc"` differ.
#[derive(Default)]
pub struct FingerprintBuilder {
    hasher: XxHash3_128,
}

impl FingerprintBuilder {
    /// Adds one part.
    pub fn add(&mut self, part: impl AsRef<[u8]>) -> &mut Self {
        let part = part.as_ref();
        self.hasher.write(&(part.len() as u64).to_le_bytes());
        self.hasher.write(part);
        self
    }

    /// The fingerprint of all parts so far.
    #[must_use]
    pub fn finish(&self) -> Fingerprint {
        Fingerprint(self.hasher.finish_128())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parts: &[&str]) -> Fingerprint {
        let mut builder = FingerprintBuilder::default();
        for part in parts {
            builder.add(part);
        }
        builder.finish()
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
    }

    #[test]
    fn survives_json() {
        let fingerprint = of(&["x"]);
        let text = serde_json::to_string(&fingerprint).unwrap();
        assert_eq!(text.len(), 34);
        assert_eq!(serde_json::from_str::<Fingerprint>(&text).unwrap(), fingerprint);
    }
}
