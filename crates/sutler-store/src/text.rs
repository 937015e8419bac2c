//! File names as text: their order, their spelling in messages, and numbers beside them.
//!
//! File names are bytes. Python turns them into text by reading UTF-8 and giving each byte that is not UTF-8 a code
//! point of its own (U+DC80 to U+DCFF, the "surrogate escape"), then sorts by code point. Listings promise Python's
//! order, so that ids and labels equal those of torchvision; for valid UTF-8 it is the order of the bytes.

use std::borrow::Cow;
use std::cmp::Ordering;

pub(crate) use sutler_core::{counted, grouped};

/// Compares two names as Python compares the strings it makes of them.
pub(crate) fn code_point_order(left: &[u8], right: &[u8]) -> Ordering {
    if is_utf8(left) && is_utf8(right) { left.cmp(right) } else { code_points(left).cmp(code_points(right)) }
}

pub(crate) fn is_utf8(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok()
}

fn code_points(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.utf8_chunks().flat_map(|chunk| {
        let escaped = chunk.invalid().iter().map(|&byte| 0xDC00 + u32::from(byte));
        chunk.valid().chars().map(u32::from).chain(escaped)
    })
}

/// The name for people: bytes that are not UTF-8 appear as `\xff`, so that two names never look the same by loss.
pub(crate) fn readable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// At most the first eighty characters: a message quotes a value and does not reprint a file.
pub(crate) fn excerpt(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(80) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_bytes_sort_between_the_planes() {
        // U+D7FF < U+DCFF (the lone byte) < U+E000 < U+10000, although the byte 0xFF is above all their encodings.
        let below = "\u{d7ff}".as_bytes();
        let above = "\u{e000}".as_bytes();
        let astral = "\u{10000}".as_bytes();
        assert_eq!(code_point_order(below, b"\xff"), Ordering::Less);
        assert_eq!(code_point_order(b"\xff", above), Ordering::Less);
        assert_eq!(code_point_order(b"\xff", astral), Ordering::Less);
        assert_eq!(code_point_order(b"\xff", b"\xff"), Ordering::Equal);
        assert_eq!(code_point_order(b"a", b"a\xff"), Ordering::Less);
    }

    #[test]
    fn quotations_are_short() {
        assert_eq!(excerpt("cat"), "cat");
        assert_eq!(excerpt(&"é".repeat(500)).chars().count(), 81);
    }

    #[test]
    fn unreadable_bytes_stay_apart() {
        assert_eq!(readable(b"caf\xe9"), "caf\\xe9");
        assert_ne!(readable(b"\xe9"), readable(b"\xe8"));
    }
}
