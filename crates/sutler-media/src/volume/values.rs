//! How values are stored, and how they become floats or labels.

/// How one value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it
pub enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    F32,
    F64,
}

impl Kind {
    /// The bytes a value takes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Gives each of the values in these bytes to `put`, with its number.
    pub(super) fn each(self, bytes: &[u8], big_endian: bool, mut put: impl FnMut(usize, f64)) {
        // What kind it is, is asked once for a row and not once for a value.
        macro_rules! each {
            ($stored:ty, $convert:expr) => {
                for (number, word) in bytes.as_chunks().0.iter().enumerate() {
                    let value = match big_endian {
                        true => <$stored>::from_be_bytes(*word),
                        false => <$stored>::from_le_bytes(*word),
                    };
                    put(number, $convert(value));
                }
            };
        }
        match self {
            Self::U8 => each!(u8, f64::from),
            Self::I8 => each!(i8, f64::from),
            Self::U16 => each!(u16, f64::from),
            Self::I16 => each!(i16, f64::from),
            Self::U32 => each!(u32, f64::from),
            Self::I32 => each!(i32, f64::from),
            Self::U64 => each!(u64, |value| value as f64),
            Self::I64 => each!(i64, |value| value as f64),
            Self::F16 => each!(u16, from_half),
            Self::F32 => each!(f32, f64::from),
            Self::F64 => each!(f64, |value| value),
        }
    }
}

/// The value of a half-precision number.
fn from_half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 0x1F);
    let fraction = f64::from(bits & 0x3FF);
    sign * match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_kind_are_read_in_both_orders_of_bytes() {
        let read = |kind: Kind, bytes: &[u8], big_endian| {
            let mut values = Vec::new();
            kind.each(bytes, big_endian, |number, value| {
                assert_eq!(number, values.len());
                values.push(value);
            });
            values
        };
        assert_eq!(read(Kind::U8, &[1, 255], true), [1.0, 255.0]);
        assert_eq!(read(Kind::I8, &[0xFF], false), [-1.0]);
        assert_eq!(read(Kind::U16, &[0x01, 0x02], false), [513.0]);
        assert_eq!(read(Kind::U16, &[0x01, 0x02, 0, 1], true), [258.0, 1.0]);
        assert_eq!(read(Kind::I16, &(-300i16).to_be_bytes(), true), [-300.0]);
        assert_eq!(read(Kind::U32, &7u32.to_be_bytes(), true), [7.0]);
        assert_eq!(read(Kind::I32, &(-7i32).to_le_bytes(), false), [-7.0]);
        assert_eq!(read(Kind::U64, &(1u64 << 40).to_le_bytes(), false), [2f64.powi(40)]);
        assert_eq!(read(Kind::I64, &(-7i64).to_le_bytes(), false), [-7.0]);
        assert_eq!(read(Kind::F16, &[0x00, 0x3C], false), [1.0]);
        assert_eq!(read(Kind::F32, &1.5f32.to_le_bytes(), false), [1.5]);
        assert_eq!(read(Kind::F64, &(-2.25f64).to_be_bytes(), true), [-2.25]);
    }

    #[test]
    fn half_precision_has_its_corners() {
        for (bits, value) in [(0x3C00, 1.0), (0xC000, -2.0), (0x0001, 2f64.powi(-24)), (0x7BFF, 65504.0)] {
            assert_eq!(from_half(bits), value);
        }
        assert_eq!(from_half(0xFC00), f64::NEG_INFINITY);
        assert!(from_half(0x7C01).is_nan());
    }
}
