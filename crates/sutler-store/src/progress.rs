//! How a long listing tells that it is alive.

/// Hears about a listing while it grows.
///
/// Called from several threads at once, a folder or some ten thousand rows at a time, so an implementation may take
/// a lock but should not draw on a terminal for every call.
pub trait Progress: Sync {
    /// `files` more have been found since the last call.
    fn listed(&self, files: u64);
}

/// Nobody listens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn listed(&self, _files: u64) {}
}
