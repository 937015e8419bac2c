//! The forms a sample passes through on its way to a trainer.

use serde::{Deserialize, Serialize};

/// Where in the pipeline a copy of a sample stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Not in memory: it has to be read from where the dataset lives.
    Storage,
    /// The bytes as they were stored.
    Encoded,
    /// After every transform that draws no random number.
    Decoded,
    /// After all transforms: ready to be put into a batch, once per job.
    Augmented,
}

impl Form {
    /// All forms, from the furthest away to the nearest.
    pub const ALL: [Form; 4] = [Form::Storage, Form::Encoded, Form::Decoded, Form::Augmented];

    /// The name used in metrics, on the command line and in the documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Form::Storage => "storage",
            Form::Encoded => "encoded",
            Form::Decoded => "decoded",
            Form::Augmented => "augmented",
        }
    }
}
