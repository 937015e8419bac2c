//! Text: from the bytes of a line to the numbers of its tokens.

mod error;
mod field;
mod tokenizer;

use std::borrow::Cow;
use std::sync::Arc;

pub use error::{TextError, TokenizerError};
pub use tokenizer::Tokenizer;

/// What a line holds, and what becomes of it.
#[derive(Clone, Debug, Default)]
pub struct TextReader {
    /// The field of a JSON object that holds the text; without one the line is the text.
    pub field: Option<String>,
    /// What makes tokens of it.
    pub tokenizer: Option<Arc<Tokenizer>>,
}

impl TextReader {
    /// The text of a line.
    ///
    /// # Errors
    /// When the line is not UTF-8, or not an object with such a field.
    pub fn text<'a>(&self, line: &'a [u8]) -> Result<Cow<'a, str>, TextError> {
        match &self.field {
            Some(field) => field::extract(line, field),
            None => {
                std::str::from_utf8(line).map(Cow::Borrowed).map_err(|error| TextError::not_utf8(line, error))
            }
        }
    }

    /// The tokens of a line; none without a tokenizer.
    ///
    /// # Errors
    /// As [`TextReader::text`], and when the tokenizer fails.
    pub fn tokens(&self, line: &[u8]) -> Result<Vec<u32>, TextError> {
        let text = self.text(line)?;
        self.tokenizer.as_ref().map_or(Ok(Vec::new()), |tokenizer| tokenizer.tokens(&text))
    }
}
