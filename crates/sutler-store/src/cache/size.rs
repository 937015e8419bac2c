//! Numbers of bytes as people write and read them.

/// What each unit stands for, the longer names first where one ends like another.
const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// A text that is no number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a positive number of bytes. Write a number and a unit, such as 8GiB or 500MB; the units are KiB, MiB, \
     GiB and TiB, and KB, MB, GB and TB."
)]
pub struct SizeError {
    /// What was written.
    pub text: String,
}

/// Reads `8GiB`, `1.5 GB`, `500mb` or `4096`.
///
/// # Errors
/// When it is none of those, or not a positive number.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let refused = || SizeError { text: text.to_owned() };
    let trimmed = text.trim();
    let lower = trimmed.to_ascii_lowercase();
    let unit = UNITS.iter().find(|(name, _)| lower.ends_with(&name.to_ascii_lowercase()));
    let (number, factor) = match unit {
        Some((name, factor)) => (&trimmed[..trimmed.len() - name.len()], *factor),
        None => (trimmed, 1),
    };
    let number = number.trim();
    // Plain decimals only: Rust would also read "1e9", "inf" and "nan".
    let plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let bytes = match (plain, number.parse::<u64>(), number.parse::<f64>()) {
        (true, Ok(whole), _) => whole.checked_mul(factor).ok_or_else(refused)?,
        (true, _, Ok(decimal)) if decimal * (factor as f64) < 1e18 => {
            (decimal * factor as f64).round() as u64
        }
        _ => return Err(refused()),
    };
    if bytes == 0 { Err(refused()) } else { Ok(bytes) }
}

/// `8.0 GiB`, as messages say it.
pub(super) fn size(bytes: u64) -> String {
    let units = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, factor)| bytes >= *factor) {
        Some((unit, factor)) => format!("{:.1} {unit}", bytes as f64 / factor as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_binary_and_decimal() {
        let read = |text| parse_size(text).unwrap();
        assert_eq!(read("8GiB"), 8 << 30);
        assert_eq!(read("8GB"), 8_000_000_000);
        assert_eq!(read("1.5 MiB"), 3 << 19);
        assert_eq!(read("500mb"), 500_000_000);
        assert_eq!(
            (read("4096"), read("4096 B"), read("2KB"), read("2KiB"), read("1TB")),
            (4096, 4096, 2000, 2048, 1_000_000_000_000)
        );
    }

    #[test]
    fn what_is_no_size_is_refused_in_words() {
        for text in [
            "",
            "GiB",
            "8 gigs",
            "-1GB",
            "1e9",
            "nan",
            "inf",
            "0",
            "0GiB",
            "99999999999TiB",
            "8GiB8",
            "1.2.3MB",
        ] {
            let error = parse_size(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("8GiB"), "{error}");
        }
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(size(8 << 30), "8.0 GiB");
        assert_eq!(size(1_500_000), "1.4 MiB");
        assert_eq!(size(12), "12 bytes");
    }
}
