//! From bytes to pixels.
