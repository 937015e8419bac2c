//! Samples kept in memory: the bytes ([`Memory`]), and who may stay ([`Cache`]).

mod admission;
mod arena;
mod limit;
mod memory;
mod reader;
mod size;
#[cfg(test)]
mod tests;

pub use admission::{Cache, CacheError, CacheFigures, CacheOptions, FormFigures, Offer, Reservation};
pub use limit::{MemoryLimit, memory_limit};
pub use memory::{Backing, Corrupt, Extent, Held, Memory, MemoryError, MemoryOptions, Pieces, Refused};
pub use reader::Reader;
pub use size::{SizeError, parse_size};
