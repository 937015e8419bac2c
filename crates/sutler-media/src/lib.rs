//! Decode and transform samples: pure functions over buffers.
//!
//! A sample is prepared in four steps, each a call of its own so that the engine can time it:
//! `probe` reads the header, `Pipeline::draw` makes every random decision, `Worker::decode` decodes just the
//! pixels those decisions need, and `Worker::augment` writes the result where the batch wants it.

pub mod decode;
pub mod image;

pub use image::op::{self, Op};
pub use image::{Pixels, Rect};
