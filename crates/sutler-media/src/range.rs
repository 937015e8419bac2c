//! Numbers in the sentences of errors, and the ranges that parameters should be in.

/// A number as a person writes it: 1 rather than 1.0, and 1e30 rather than 31 digits.
#[must_use]
pub fn written(number: f64) -> String {
    let exact = format!("{number:?}");
    exact.strip_suffix(".0").map_or_else(|| exact.clone(), str::to_owned)
}

/// Why a parameter cannot be what it is, if it is not within a range. One that begins at the least number above 0 begins above 0.
pub(crate) fn within(name: &str, value: f64, [least, most]: [f64; 2]) -> Result<(), String> {
    if value >= least && value <= most {
        return Ok(());
    }
    let (value, upper) = (written(value), written(most));
    Err(match least {
        f64::MIN_POSITIVE => format!("{name}={value} should be above 0 and at most {upper}"),
        _ => format!("{name}={value} should be from {} to {upper}", written(least)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_people_write_them() {
        for (number, text) in [
            (0.0, "0"),
            (-79.0, "-79"),
            (76.9, "76.9"),
            (1_536_000.0, "1536000"),
            (1e30, "1e30"),
            (-1e30, "-1e30"),
            (1e-30, "1e-30"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(written(number), text);
        }
    }

    #[test]
    fn what_is_outside_is_told_both_sides() {
        assert_eq!(within("p", 1.0, [0.0, 1.0]), Ok(()));
        let told = |value, range| within("std", value, range).unwrap_err();
        assert_eq!(told(0.0, [1e-30, 1e30]), "std=0 should be from 1e-30 to 1e30");
        assert_eq!(told(f64::NAN, [-1e30, 1e30]), "std=NaN should be from -1e30 to 1e30");
        assert_eq!(told(0.0, [f64::MIN_POSITIVE, 8.0]), "std=0 should be above 0 and at most 8");
    }
}
