//! Hugging Face's tokenizers, from their own description.

use sutler_core::{Fingerprint, FingerprintBuilder};
use tokenizers::{PostProcessor, PostProcessorWrapper, TruncationParams};

use super::{TextError, TokenizerError};

/// Makes tokens of text. Padding that the description asks for is left to whoever makes the batch.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    add_special_tokens: bool,
    /// What the description pads with.
    padding: Option<u32>,
    fingerprint: Fingerprint,
}

impl Tokenizer {
    /// A tokenizer as `tokenizer.json` describes it. With `max_length` no text has more tokens, special ones included, which are added if
    /// `add_special_tokens`; without it no text is cut off, whatever the description says.
    ///
    /// # Errors
    /// When it is no description, or `max_length` leaves no room for text.
    pub fn new(
        json: &str,
        add_special_tokens: bool,
        max_length: Option<usize>,
    ) -> Result<Self, TokenizerError> {
        let not_one =
            |reason: tokenizers::Error| TokenizerError::NotATokenizer { reason: reason.to_string() };
        let mut inner = tokenizers::Tokenizer::from_bytes(json.as_bytes()).map_err(not_one)?;
        let padding = inner.get_padding().map(|padding| padding.pad_id);
        inner.with_padding(None);
        if !add_special_tokens {
            // It adds them, and nothing else that is of use here; and its tokens would count towards the limit.
            inner.with_post_processor(None::<PostProcessorWrapper>);
        }
        let direction = inner.get_truncation().map(|truncation| truncation.direction).unwrap_or_default();
        let truncation = match max_length {
            None => None,
            Some(max_length) => {
                let added = inner.get_post_processor().map_or(0, |processor| processor.added_tokens(false));
                if max_length <= added {
                    return Err(TokenizerError::NoRoom { max_length, added });
                }
                Some(TruncationParams { direction, max_length, stride: 0, ..TruncationParams::default() })
            }
        };
        inner.with_truncation(truncation).map_err(not_one)?;
        let fingerprint = FingerprintBuilder::default()
            .add("tokenizer")
            .add(json)
            .add([u8::from(add_special_tokens)])
            .add(max_length.map_or(u64::MAX, |length| length as u64).to_le_bytes())
            .finish();
        Ok(Self { inner, add_special_tokens, padding, fingerprint })
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// When the tokenizer has no token for something and no token for that either.
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let encoded = self.inner.encode_fast(text, self.add_special_tokens);
        encoded
            .map(|encoded| encoded.get_ids().to_vec())
            .map_err(|error| TextError::Tokenizer { reason: error.to_string() })
    }

    /// The number of a token.
    #[must_use]
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token of a number.
    #[must_use]
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// How many tokens there are.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The token that the description pads with.
    #[must_use]
    pub fn padding(&self) -> Option<u32> {
        self.padding
    }

    /// A name for the description and what was asked of it.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocabulary", &self.vocabulary())
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole words, with a mark before and after each text.
    const WORDS: &str = r#"{
        "version": "1.0", "truncation": null,
        "padding": {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": null, "pad_id": 4, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]}, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "words": 3, "[PAD]": 4, "many": 5}, "unk_token": "[UNK]"}
    }"#;

    #[test]
    fn special_tokens_count_towards_the_length() {
        let tokens = |special, max_length| {
            Tokenizer::new(WORDS, special, max_length).unwrap().tokens("many many words unheard").unwrap()
        };
        assert_eq!(tokens(true, None), [1, 5, 5, 3, 0, 2]);
        assert_eq!(tokens(false, None), [5, 5, 3, 0]);
        assert_eq!(tokens(true, Some(4)), [1, 5, 5, 2]);
        assert_eq!(tokens(false, Some(3)), [5, 5, 3]);
        assert_eq!(tokens(false, Some(1)), [5]);
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        let refused = Tokenizer::new(WORDS, true, Some(2)).unwrap_err();
        assert_eq!(refused, TokenizerError::NoRoom { max_length: 2, added: 2 });
        assert!(matches!(Tokenizer::new("{}", true, None), Err(TokenizerError::NotATokenizer { .. })));
    }

    #[test]
    fn tokens_have_numbers() {
        let tokenizer = Tokenizer::new(WORDS, true, None).unwrap();
        assert_eq!((tokenizer.id("words"), tokenizer.id("none")), (Some(3), None));
        assert_eq!((tokenizer.token(5), tokenizer.padding()), (Some("many".to_owned()), Some(4)));
        assert_eq!(tokenizer.vocabulary(), 6);
        assert_ne!(tokenizer.fingerprint(), Tokenizer::new(WORDS, false, None).unwrap().fingerprint());
    }
}
