//! Why a line has no tokens. The sentences carry no path: the caller knows which line it asked about and says so in
//! front.

use std::str::Utf8Error;

/// Why a line has no tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The bytes are no text.
    #[error(
        "byte {position} of the line (0x{byte:02x}) is not UTF-8; convert the file, for instance with `iconv -t UTF-8`"
    )]
    NotUtf8 {
        /// The first byte that is wrong, counted from 1.
        position: usize,
        /// Its value.
        byte: u8,
    },
    /// The line is not what JSON allows.
    #[error("the line is not a JSON object: {reason}; write one object on each line")]
    Json {
        /// What the parser said.
        reason: String,
    },
    /// The object lacks the field.
    #[error(
        "the object has no field {field:?}, but {}; `field` should name the one that holds the text",
        listed(found)
    )]
    MissingField {
        /// What was looked for.
        field: String,
        /// What is there.
        found: Vec<String>,
    },
    /// The field holds something else.
    #[error(
        "the field {field:?} holds {found} instead of a string; `field` should name the one that holds the text"
    )]
    NotText {
        /// The field.
        field: String,
        /// What it holds.
        found: &'static str,
    },
    /// The tokenizer gave up.
    #[error("the tokenizer cannot take this line: {reason}")]
    Tokenizer {
        /// What it said.
        reason: String,
    },
}

impl TextError {
    pub(super) fn not_utf8(line: &[u8], error: Utf8Error) -> Self {
        let position = error.valid_up_to();
        Self::NotUtf8 { position: position + 1, byte: line.get(position).copied().unwrap_or_default() }
    }

    /// A stable word for the kind of failure.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NotUtf8 { .. } => "not_utf8",
            Self::Json { .. } => "json",
            Self::MissingField { .. } | Self::NotText { .. } => "field",
            Self::Tokenizer { .. } => "tokenizer",
        }
    }
}

/// At most eight names: a message is no listing.
fn listed(found: &[String]) -> String {
    const NAMES_MAX: usize = 8;
    match found {
        [] => "no field at all".to_owned(),
        _ => {
            let shown: Vec<String> = found.iter().take(NAMES_MAX).map(|name| format!("{name:?}")).collect();
            let more = found.len().saturating_sub(NAMES_MAX);
            format!(
                "{}{}",
                shown.join(", "),
                if more > 0 { format!(" and {more} more") } else { String::new() }
            )
        }
    }
}

/// Why a tokenizer cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// It is none.
    #[error("this is no tokenizer.json as Hugging Face's tokenizers writes it: {reason}")]
    NotATokenizer {
        /// What the parser said.
        reason: String,
    },
    /// Not even the tokens that belong to every line would fit.
    #[error(
        "max_length is {max_length}, and {added} of these would be special tokens, which leaves none for the text; raise \
         max_length, or pass add_special_tokens=False"
    )]
    NoRoom {
        /// The limit that was asked for.
        max_length: usize,
        /// How many tokens are added to each line.
        added: usize,
    },
}
