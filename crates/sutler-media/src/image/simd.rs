//! The one place where the processor's vector units are asked for by name.
//!
//! A loop marked with [`vectorised!`] is compiled twice: for any processor of the target, and for those with AVX2 and fused
//! multiply-add, which is tried at run time. Both compute the same numbers, as `mul_add` rounds once everywhere.

/// Defines a function whose body is compiled for AVX2 and FMA too, and picks at run time.
macro_rules! vectorised {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        #[allow(unsafe_code)] // the one block below, whose reason stands beside it
        $visibility fn $name($($argument: $type),*) {
            #[inline(always)]
            fn plain($($argument: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn wide($($argument: $type),*) {
                    plain($($argument),*);
                }
                if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
                    // SAFETY: the processor has just been found to have what `wide` is compiled for.
                    unsafe { wide($($argument),*) };
                    return;
                }
            }
            plain($($argument),*);
        }
    };
}
pub(crate) use vectorised;

/// The floats that `bytes` has room for, or `None` when it does not begin and end on a float.
#[allow(unsafe_code)] // the one block below, whose reason stands beside it
pub(crate) fn floats_mut(bytes: &mut [u8]) -> Option<&mut [f32]> {
    // SAFETY: every bit pattern is a float, and a float has no padding, so both views of the bytes are sound.
    let (before, floats, after) = unsafe { bytes.align_to_mut::<f32>() };
    (before.is_empty() && after.is_empty()).then_some(floats)
}
