//! Images: pixels, the operations on them and the pipeline that runs them.

pub(crate) mod boxes;
mod colour;
mod convert;
pub(crate) mod decoded;
mod describe;
mod draw;
mod erase;
mod filter;
mod fuse;
mod geometry;
pub mod op;
pub mod pipeline;
mod policy;
#[cfg(test)]
mod references;
mod resample;
pub(crate) mod simd;
mod validate;
mod warp;
mod weights;
mod worker;

/// The width and height of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Size {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

impl Size {
    /// From a `[height, width]` pair, the order that transforms are written in.
    #[must_use]
    pub fn from_height_width([height, width]: [u32; 2]) -> Self {
        Self { width, height }
    }
}

/// A rectangle of pixels; `x` grows to the right and `y` downwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rect {
    /// Left edge.
    pub x: u32,
    /// Top edge.
    pub y: u32,
    /// Width.
    pub width: u32,
    /// Height.
    pub height: u32,
}

impl Rect {
    /// The whole of an image of this size.
    #[must_use]
    pub fn whole(width: u32, height: u32) -> Self {
        Self { x: 0, y: 0, width, height }
    }

    /// Its width and height.
    #[must_use]
    pub fn size(&self) -> Size {
        Size { width: self.width, height: self.height }
    }

    /// The same rectangle seen from the coordinates of the one that contains it.
    #[must_use]
    pub fn moved_by(&self, x: u32, y: u32) -> Self {
        Self { x: self.x + x, y: self.y + y, ..*self }
    }

    /// Whether `inner` lies inside this rectangle.
    #[must_use]
    pub fn contains(&self, inner: &Rect) -> bool {
        inner.x >= self.x
            && inner.y >= self.y
            && inner.x + inner.width <= self.x + self.width
            && inner.y + inner.height <= self.y + self.height
    }
}

/// Interleaved 8-bit RGB pixels, rows packed without padding. The buffer is kept and reused between samples.
#[derive(Clone, Debug, Default)]
pub struct Pixels {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// `height * width * 3` bytes.
    pub data: Vec<u8>,
}

impl Pixels {
    /// Its width and height.
    #[must_use]
    pub fn size(&self) -> Size {
        Size { width: self.width, height: self.height }
    }

    /// The bytes of row `y` between columns `x` and `x + width`.
    #[must_use]
    pub(crate) fn row(&self, y: u32, x: u32, width: u32) -> &[u8] {
        let start = (y as usize * self.width as usize + x as usize) * 3;
        &self.data[start..start + width as usize * 3]
    }

    /// Makes room for an image of this size without giving memory back; the contents are unspecified.
    pub fn resize(&mut self, width: u32, height: u32) {
        self.width = width;
        self.height = height;
        let bytes = width as usize * height as usize * 3;
        if self.data.len() < bytes {
            self.data.resize(bytes, 0);
        }
        self.data.truncate(bytes);
    }
}
