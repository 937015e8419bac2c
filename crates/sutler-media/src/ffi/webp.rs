//! libwebp's decoder.

use libwebp_sys::{VP8StatusCode, WEBP_CSP_MODE, WebPDecode, WebPDecoderConfig, WebPGetInfo, WebPRGBABuffer};

/// How libwebp gave up.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It wants more bytes than there are.
    Truncated,
    /// It refused the data.
    Corrupt,
    /// It does not know the feature.
    Unsupported,
    /// It could not allocate.
    OutOfMemory,
}

/// The width and height that the header gives.
pub(crate) fn size(bytes: &[u8]) -> Result<(u32, u32), Failure> {
    let (mut width, mut height) = (0, 0);
    // SAFETY: the pointer and the length are those of a live slice; both numbers are live for the call.
    let found = unsafe { WebPGetInfo(bytes.as_ptr(), bytes.len(), &raw mut width, &raw mut height) };
    match (u32::try_from(width), u32::try_from(height)) {
        (Ok(width), Ok(height)) if found != 0 && width > 0 && height > 0 => Ok((width, height)),
        // All headers fit into this many bytes, so a shorter file may have been cut; libwebp says only "no".
        _ if bytes.len() < 64 => Err(Failure::Truncated),
        _ => Err(Failure::Corrupt),
    }
}

/// Decodes to RGB; rows start `stride` bytes apart in `out`.
pub(crate) fn decode(bytes: &[u8], stride: usize, out: &mut [u8]) -> Result<(), Failure> {
    let mut config = WebPDecoderConfig::new().map_err(|()| Failure::Unsupported)?;
    config.output.colorspace = WEBP_CSP_MODE::MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA = WebPRGBABuffer {
        rgba: out.as_mut_ptr(),
        stride: i32::try_from(stride).map_err(|_| Failure::OutOfMemory)?,
        size: out.len(),
    };
    // SAFETY: `bytes` and `out` are live for the call, and libwebp checks by `size` and `stride` that every row of the
    // picture fits into `out` before it writes one; nothing of it is kept afterwards.
    let status = unsafe { WebPDecode(bytes.as_ptr(), bytes.len(), &raw mut config) };
    match status {
        VP8StatusCode::VP8_STATUS_OK => Ok(()),
        VP8StatusCode::VP8_STATUS_SUSPENDED | VP8StatusCode::VP8_STATUS_NOT_ENOUGH_DATA => {
            Err(Failure::Truncated)
        }
        VP8StatusCode::VP8_STATUS_OUT_OF_MEMORY => Err(Failure::OutOfMemory),
        VP8StatusCode::VP8_STATUS_UNSUPPORTED_FEATURE => Err(Failure::Unsupported),
        _ => Err(Failure::Corrupt),
    }
}
