//! One field of a JSON object, without making anything of the others.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::TextError;

/// The text in a field of the object on a line. Where the field stands twice the last one counts, as in Python.
pub(super) fn extract<'a>(line: &'a [u8], field: &str) -> Result<Cow<'a, str>, TextError> {
    let text = std::str::from_utf8(line).map_err(|error| TextError::not_utf8(line, error))?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let seed = Looking { field, names: Vec::new() };
    let found = seed.deserialize(&mut deserializer).and_then(|found| deserializer.end().map(|()| found));
    let found = found.map_err(|error| {
        // The parser saw one line and calls it the first.
        let place = format!(" at line 1 column {}", error.column());
        let said = error.to_string().replace(&place, "");
        let said =
            no_number(text, error.column()).map_or(said, |word| format!("{word} is no number in JSON"));
        TextError::Json { reason: format!("{said} (column {})", error.column()) }
    })?;
    match found {
        Found::Text(text) => Ok(text),
        Found::Other(found) => Err(TextError::NotText { field: field.to_owned(), found }),
        Found::Nothing(names) => Err(TextError::MissingField { field: field.to_owned(), found: names }),
    }
}

/// What Python's `json` writes for a number that is none, if the parser has stopped there: behind the first letter of it, or behind its sign.
fn no_number(text: &str, column: usize) -> Option<&'static str> {
    let starts = |word: &str| {
        (1..=2).any(|back| {
            column.checked_sub(back).and_then(|at| text.get(at..)).is_some_and(|rest| rest.starts_with(word))
        })
    };
    ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| starts(word))
}

enum Found<'a> {
    Text(Cow<'a, str>),
    /// Something that is no text.
    Other(&'static str),
    /// Other fields.
    Nothing(Vec<String>),
}

struct Looking<'f> {
    field: &'f str,
    /// The fields that were passed over while none was the one.
    names: Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Looking<'_> {
    type Value = Found<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

/// Borrowed from the line where nothing in it is escaped.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Visitor<'de> for Looking<'_> {
    type Value = Found<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(Name(name)) = map.next_key::<Name<'de>>()? {
            if name == self.field {
                found = Some(map.next_value_seed(Value)?);
            } else {
                map.next_value::<IgnoredAny>()?;
                if found.is_none() {
                    self.names.push(name.into_owned());
                }
            }
        }
        Ok(found.unwrap_or(Found::Nothing(self.names)))
    }
}

/// The value of the field, whatever it is.
struct Value;

impl<'de> DeserializeSeed<'de> for Value {
    type Value = Found<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value {
    type Value = Found<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Found::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Found::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Found::Other("a truth value"))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Found::Other("null"))
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Found::Other("a list"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Found::Other("an object"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: &str) -> Result<String, TextError> {
        extract(line.as_bytes(), "text").map(Cow::into_owned)
    }

    #[test]
    fn the_field_is_found_wherever_it_stands() {
        assert_eq!(text(r#"{"id": 7, "text": "one", "more": {"text": "other"}}"#).unwrap(), "one");
        assert_eq!(text(r#"{"text": "a\n\u00e9\ud83d\ude00", "x": [1, {}]}"#).unwrap(), "a\né😀");
        assert_eq!(text(r#"{"te\u0078t": "escaped name"}"#).unwrap(), "escaped name");
        assert_eq!(text(r#"{"text": "first", "text": "last"}"#).unwrap(), "last");
        assert!(matches!(extract(br#"{"text": "plain"}"#, "text"), Ok(Cow::Borrowed("plain"))));
    }

    #[test]
    fn what_is_wrong_is_told() {
        let reason = |line: &str| text(line).unwrap_err().to_string();
        assert!(reason(r#"{"id": 1, "body": "x"}"#).contains(r#"no field "text", but "id", "body";"#));
        assert!(reason("{}").contains("no field at all"));
        for (line, found) in [
            ("3", "a number"),
            ("null", "null"),
            ("[1]", "a list"),
            ("{\"a\":1}", "an object"),
            ("true", "a truth value"),
        ] {
            assert!(
                reason(&format!("{{\"text\": {line}}}")).contains(&format!("holds {found} instead")),
                "{line}"
            );
        }
        assert!(reason(r#"{"text": "cut"#).contains("EOF while parsing a string (column 13)"));
        for word in ["NaN", "Infinity", "-Infinity"] {
            let told = reason(&format!(r#"{{"text": "fine", "score": {word}, "x": 1}}"#));
            assert!(told.contains(&format!(" {word} is no number in JSON (column 2")), "{told}");
        }
        assert!(reason(r#"["text"]"#).contains("expected an object"));
        assert!(reason(r#"{"text": "x"} {"text": "y"}"#).contains("trailing characters"));
        assert_eq!(extract(b"{\"text\": \"\xff\"}", "text").unwrap_err().kind(), "not_utf8");
    }
}
