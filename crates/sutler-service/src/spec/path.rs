//! How a path travels: as text, or as its bytes where it is none.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Deserialize)]
#[serde(untagged)]
pub enum Portable {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<Portable> for PathBuf {
    fn from(path: Portable) -> Self {
        match path {
            Portable::Text(text) => text.into(),
            Portable::Bytes(bytes) => OsStr::from_bytes(&bytes).into(),
        }
    }
}

pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    match path.to_str() {
        Some(text) => text.serialize(serializer),
        None => path.as_os_str().as_bytes().serialize(serializer),
    }
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    Portable::deserialize(deserializer).map(PathBuf::from)
}

/// The same for a path that may be absent.
pub mod optional {
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
        match path {
            Some(path) => super::serialize(path, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
        let path: Option<super::Portable> = Option::deserialize(deserializer)?;
        Ok(path.map(PathBuf::from))
    }
}
