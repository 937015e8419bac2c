//! Copies of large samples that go past the processor's caches.
#![allow(unsafe_code)]

/// From so many bytes on a copy goes past the caches: half of the second-level cache of common processors. A smaller one may
/// still be there when it is read.
const LARGE_BYTES: usize = 256 << 10;

/// Copies a sample to where somebody reads it later, when the batch is complete.
///
/// By then a large one would have left the caches anyhow. Writing it through them means reading the old contents first, a
/// third of all that goes over the bus, and pushes out what is of use.
///
/// # Panics
/// When the two differ in length.
pub fn copy(to: &mut [u8], from: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if to.len() >= LARGE_BYTES {
        copy_past_caches(to, from);
        return;
    }
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
fn copy_past_caches(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    assert_eq!(to.len(), from.len(), "a copy of another length");
    // SAFETY: any 16 bytes make such a number, and any such number is 16 bytes.
    let (head, body, tail) = unsafe { to.align_to_mut::<__m128i>() };
    let (first, rest) = from.split_at(head.len());
    let (middle, last) = rest.split_at(size_of_val(body));
    head.copy_from_slice(first);
    for (to, from) in body.iter_mut().zip(middle.chunks_exact(size_of::<__m128i>())) {
        // SAFETY: the chunk has the 16 bytes that are read, from wherever they begin; `to` is ours and aligned. Every x86-64
        // processor has these instructions.
        unsafe { _mm_stream_si128(to, _mm_loadu_si128(from.as_ptr().cast())) };
    }
    tail.copy_from_slice(last);
    // SAFETY: it only orders: what was streamed is visible before anything that follows, such as the batch being complete.
    unsafe { _mm_sfence() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_wherever_it_begins() {
        let from: Vec<u8> = (0..LARGE_BYTES + 100).map(|at| (at * 7 + at / 251) as u8).collect();
        for (start, skipped, bytes) in
            [(0, 0, LARGE_BYTES), (1, 3, LARGE_BYTES + 17), (9, 0, LARGE_BYTES + 1), (5, 2, 99)]
        {
            let mut to = vec![0; LARGE_BYTES + 200];
            copy(&mut to[start..start + bytes], &from[skipped..skipped + bytes]);
            assert_eq!(to[start..start + bytes], from[skipped..skipped + bytes]);
            assert!(to[..start].iter().chain(&to[start + bytes..]).all(|&byte| byte == 0));
        }
    }
}
