//! Numbers in sentences, for people.

/// `1204` as `1,204`.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 file`, `1,204 files`.
#[must_use]
pub fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_a_plural_and_thousands_are_set_apart() {
        let shown: Vec<_> = [0, 12, 123, 1204, 123_456, 1_234_567].map(grouped).into();
        assert_eq!(shown, ["0", "12", "123", "1,204", "123,456", "1,234,567"]);
        assert_eq!(counted(0, "file"), "0 files");
        assert_eq!(counted(1, "file"), "1 file");
        assert_eq!(counted(2000, "file"), "2,000 files");
    }
}
