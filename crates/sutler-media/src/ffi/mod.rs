//! The one room with `unsafe` in it: C decoders behind safe functions.
#![allow(unsafe_code)]

pub(crate) mod jpeg;
pub(crate) mod webp;
