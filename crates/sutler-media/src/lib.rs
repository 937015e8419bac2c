//! Decode and transform samples: pure functions over buffers.
//!
//! A sample is prepared in four steps, each a call of its own so that the engine can time it:
//! [`probe`] reads the header, [`Pipeline::draw`] makes every random decision, [`Worker::decode`] decodes just the
//! pixels those decisions need, and [`Worker::augment`] writes the result where the batch wants it.
#![deny(unsafe_code)]

pub mod audio;
pub mod decode;
mod ffi;
pub mod image;
mod kept;
mod range;
pub mod text;
pub mod volume;

pub use decode::{DecodeError, Decoded, Decoder, Format, Header, Limits, Request, Scale, probe, sniff};
pub use image::boxes::MovedBox;
pub use image::decoded::{DecodedForm, DecodedLayout};
pub use image::op::{self, Op};
pub use image::pipeline::{
    DType, DecodedPixels, Effort, Layout, OutputSpec, Pipeline, PipelineError, PipelineOptions, Plan, Worker,
};
pub use image::{Pixels, Rect, Size};
pub use kept::Rows;
pub use range::written;
