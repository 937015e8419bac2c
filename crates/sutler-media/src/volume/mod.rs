//! Volumes: arrays with three axes, as scanners make them, with labels of the same shape.
//!
//! A file is looked at in two steps, so that a crop need not read all of it: [`Header::parse`] says where which value
//! lies, and [`Header::gather`] picks a block of values from just the bytes that [`Header::ranges`] names.

mod boxes;
mod error;
mod header;
mod nifti;
mod npy;
mod resample;
mod values;

pub use boxes::{Block, components};
pub use error::VolumeError;
pub use header::{AxisOrder, Format, Header, Limits, sniff};
pub use resample::{Interpolation, resample, resampled_shape};
pub use values::Kind;
