//! libjpeg-turbo, through the C in `jpeg_shim.c`.

use std::ffi::{CStr, c_char, c_int};
use std::marker::{PhantomData, PhantomPinned};
use std::ptr::NonNull;

// Nothing is called through the crate; naming it links the libjpeg-turbo it has built.
use turbojpeg_sys as _;

/// The C side's state; only ever behind a pointer.
#[repr(C)]
struct Handle {
    _opaque: [u8; 0],
    _not_shared: PhantomData<(*mut u8, PhantomPinned)>,
}

/// What is wanted of an image, in pixels of the scaled image.
#[repr(C)]
pub(crate) struct Request {
    /// The first column.
    pub x: u32,
    /// How many columns.
    pub width: u32,
    /// 1, 2, 4 or 8.
    pub denominator: u32,
    /// 0 where only whole rows can be had.
    pub croppable: u32,
    /// A file with more scans than this is refused.
    pub scans_max: u32,
    /// 1 where the processor has the BMI2 instructions. Rust knows without asking the compiler's runtime library,
    /// which not every C toolchain brings along.
    pub bmi2: u32,
}

/// What goes into [`Request::bmi2`].
pub(crate) fn bmi2() -> u32 {
    #[cfg(target_arch = "x86_64")]
    let found = std::arch::is_x86_feature_detected!("bmi2");
    #[cfg(not(target_arch = "x86_64"))]
    let found = false;
    u32::from(found)
}

/// What the rows will look like.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Shape {
    /// The first column; at or before the one asked for.
    pub x: u32,
    /// How many columns; they reach at least to the last one asked for.
    pub width: u32,
    /// The width of the whole scaled image.
    pub full_width: u32,
    /// The height of the whole scaled image.
    pub full_height: u32,
    /// 3 for RGB, 4 for CMYK as it is in the file.
    pub channels: u32,
}

/// How libjpeg gave up.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It asked for bytes beyond the end.
    Truncated,
    /// It refused the data, in these words.
    Corrupt(String),
    /// There are more scans than allowed.
    TooManyScans,
}

unsafe extern "C" {
    fn sutler_jpeg_new() -> *mut Handle;
    fn sutler_jpeg_free(handle: *mut Handle);
    fn sutler_jpeg_begin(
        handle: *mut Handle,
        bytes: *const u8,
        length: usize,
        request: *const Request,
        shape: *mut Shape,
    ) -> c_int;
    fn sutler_jpeg_rows(
        handle: *mut Handle,
        first: u32,
        count: u32,
        to_the_end: c_int,
        out: *mut u8,
        stride: usize,
    ) -> c_int;
    fn sutler_jpeg_warnings(handle: *const Handle) -> u32;
    fn sutler_jpeg_warning_text(handle: *const Handle) -> *const c_char;
    fn sutler_jpeg_error_text(handle: *const Handle) -> *const c_char;
}

/// A libjpeg decompressor that is used for one image after the other.
pub(crate) struct Jpeg {
    handle: NonNull<Handle>,
}

// SAFETY: the C side keeps all its state behind the handle and has no thread-local or global state of its own, so the
// handle may move to another thread. It is not `Sync`: every decoding call needs `&mut`.
unsafe impl Send for Jpeg {}

impl Jpeg {
    /// Makes the decompressor. It needs a few kilobytes; like any small allocation in Rust it panics without memory.
    pub(crate) fn new() -> Self {
        // SAFETY: the function takes nothing and returns null or a handle that is ours to free.
        let handle = NonNull::new(unsafe { sutler_jpeg_new() });
        Self { handle: handle.expect("there is no memory left for a JPEG decoder") }
    }

    /// Reads the headers of `bytes` and gets ready for the rows.
    ///
    /// What is returned borrows both, so the bytes are there until the last row has been read.
    pub(crate) fn begin<'a>(
        &'a mut self,
        bytes: &'a [u8],
        request: &Request,
    ) -> Result<(Shape, Rows<'a>), Failure> {
        let mut shape = Shape::default();
        // SAFETY: the handle is live; `bytes`, `request` and `shape` outlive the call, and `Rows` keeps `bytes`
        // borrowed for as long as the C side may read it. Errors come back as a status: the jump stays in C.
        let status = unsafe {
            sutler_jpeg_begin(self.handle.as_ptr(), bytes.as_ptr(), bytes.len(), request, &raw mut shape)
        };
        self.check(status)?;
        let stride = shape.width as usize * shape.channels as usize;
        Ok((shape, Rows { jpeg: self, stride, _bytes: PhantomData }))
    }

    /// How often libjpeg had to guess since the last [`Jpeg::begin`].
    pub(crate) fn warnings(&self) -> u32 {
        // SAFETY: the handle is live.
        unsafe { sutler_jpeg_warnings(self.handle.as_ptr()) }
    }

    /// What the first of the warnings said.
    pub(crate) fn warning_text(&self) -> String {
        // SAFETY: the handle is live and its text always ends in a zero.
        let text = unsafe { CStr::from_ptr(sutler_jpeg_warning_text(self.handle.as_ptr())) };
        text.to_string_lossy().into_owned()
    }

    fn check(&self, status: c_int) -> Result<(), Failure> {
        match status {
            0 => Ok(()),
            1 => Err(Failure::Truncated),
            3 => Err(Failure::TooManyScans),
            _ => {
                // SAFETY: as for the warning.
                let text = unsafe { CStr::from_ptr(sutler_jpeg_error_text(self.handle.as_ptr())) };
                Err(Failure::Corrupt(text.to_string_lossy().into_owned()))
            }
        }
    }
}

impl Drop for Jpeg {
    fn drop(&mut self) {
        // SAFETY: the handle came from `sutler_jpeg_new` and is freed once, here.
        unsafe { sutler_jpeg_free(self.handle.as_ptr()) }
    }
}

/// An image whose headers have been read.
pub(crate) struct Rows<'a> {
    jpeg: &'a mut Jpeg,
    stride: usize,
    _bytes: PhantomData<&'a [u8]>,
}

impl Rows<'_> {
    /// Writes `count` rows from row `first` on into `out`, packed, and stops there; with `to_the_end` it decodes the
    /// rows below as well and drops them.
    pub(crate) fn read(
        self,
        first: u32,
        count: u32,
        to_the_end: bool,
        out: &mut [u8],
    ) -> Result<(), Failure> {
        assert!(out.len() >= self.stride * count as usize, "the buffer has to hold every row");
        // SAFETY: the handle is live, `begin` succeeded and its bytes are still borrowed; `out` has room for `count`
        // rows of `stride` bytes, as was just checked, and a row is exactly `stride` bytes long.
        let status = unsafe {
            sutler_jpeg_rows(
                self.jpeg.handle.as_ptr(),
                first,
                count,
                c_int::from(to_the_end),
                out.as_mut_ptr(),
                self.stride,
            )
        };
        self.jpeg.check(status)
    }
}
