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

    /// The value in these bytes, which are as many as it takes.
    pub(super) fn read(self, bytes: &[u8], big_endian: bool) -> f64 {
        let mut word = [0u8; 8];
        let word = &mut word[..bytes.len()];
        word.copy_from_slice(bytes);
        if big_endian {
            word.reverse();
        }
        match (self, &*word) {
            (Self::U8, &[a]) => f64::from(a),
            (Self::I8, &[a]) => f64::from(a as i8),
            (Self::U16, &[a, b]) => f64::from(u16::from_le_bytes([a, b])),
            (Self::I16, &[a, b]) => f64::from(i16::from_le_bytes([a, b])),
            (Self::F16, &[a, b]) => from_half(u16::from_le_bytes([a, b])),
            (Self::U32, &[a, b, c, d]) => f64::from(u32::from_le_bytes([a, b, c, d])),
            (Self::I32, &[a, b, c, d]) => f64::from(i32::from_le_bytes([a, b, c, d])),
            (Self::F32, &[a, b, c, d]) => f64::from(f32::from_le_bytes([a, b, c, d])),
            (Self::U64, &[a, b, c, d, e, f, g, h]) => u64::from_le_bytes([a, b, c, d, e, f, g, h]) as f64,
            (Self::I64, &[a, b, c, d, e, f, g, h]) => i64::from_le_bytes([a, b, c, d, e, f, g, h]) as f64,
            (Self::F64, &[a, b, c, d, e, f, g, h]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
            _ => f64::NAN,
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
        assert_eq!(Kind::I8.read(&[0xFF], false), -1.0);
        assert_eq!(Kind::U16.read(&[0x01, 0x02], false), 513.0);
        assert_eq!(Kind::U16.read(&[0x01, 0x02], true), 258.0);
        assert_eq!(Kind::I16.read(&(-300i16).to_be_bytes(), true), -300.0);
        assert_eq!(Kind::F32.read(&1.5f32.to_le_bytes(), false), 1.5);
        assert_eq!(Kind::F64.read(&(-2.25f64).to_be_bytes(), true), -2.25);
        assert_eq!(Kind::I64.read(&(-7i64).to_le_bytes(), false), -7.0);
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
