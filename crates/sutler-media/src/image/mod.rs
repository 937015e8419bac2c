//! Images: pixels, the operations on them and the pipeline that runs them.

pub mod op;
pub mod pipeline;

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
