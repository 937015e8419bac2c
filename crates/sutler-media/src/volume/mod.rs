//! Volumes: arrays with three axes, as scanners make them, with labels of the same shape.
//!
//! A file is looked at in two steps, so that a crop need not read all of it: [`Header::parse`] says where which value
//! lies, and [`Header::floats`] picks a block of values from just the bytes that [`Header::ranges`] names. In between,
//! [`Pipeline::draw`] has made every random decision and [`Pipeline::block`] says which block that is.

mod arrays;
mod boxes;
mod crop;
mod decoded;
mod error;
mod header;
mod nifti;
mod noise;
mod npy;
mod op;
mod packed;
mod pipeline;
mod resample;
mod values;

pub use arrays::Volume;
pub use boxes::{Block, components};
pub use crop::Foreground;
pub use decoded::{DecodedForm, DecodedLayout};
pub use error::VolumeError;
pub use header::{AxisOrder, Format, Header, Limits, sniff};
pub use npy::npy_start;
pub use op::{ImageType, LabelType, Op};
pub use packed::Unpacked;
pub use pipeline::{DIVISOR_RANGE, Pipeline, Plan, SPACING_RANGE, VALUE_RANGE};
pub use resample::{Interpolation, Weighed, resample, resampled_shape};
pub use values::Kind;
