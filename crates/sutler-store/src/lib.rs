//! Bytes at rest: where a sample's encoded form is found and how it is read.
//!
//! A [`Listing`] says which samples a dataset has and where they lie; a [`Source`] hands out the bytes of one of
//! them. [`Files`] is the source over a listing of local files.
//!
//! ```
//! use sutler_core::SampleId;
//! use sutler_store::{Files, FolderOptions, Io, Listing, ReadBuffer, Silent, Source};
//!
//! # let root = tempfile::tempdir()?;
//! # std::fs::create_dir(root.path().join("cat"))?;
//! # std::fs::write(root.path().join("cat/tom.jpg"), b"fur")?;
//! let listing = Listing::image_folder(root.path(), &FolderOptions::default(), &Silent)?;
//! assert_eq!(listing.classes(), ["cat"]);
//!
//! let files = Files::new(listing, Io::Buffered, 1 << 30);
//! let mut buffer = ReadBuffer::default(); // one for each thread
//! assert_eq!(files.read(SampleId(0), &mut buffer)?, b"fur");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod annotations;
pub mod cache;
mod coco;
mod error;
mod files;
mod filesystem;
mod folder;
mod lines;
mod listing;
mod manifest;
mod paths;
mod progress;
mod read_buffer;
mod source;
mod text;
mod throttled;

pub use annotations::{Annotations, Category, LeftOut, Object, Picture};
pub use coco::CocoOptions;
pub use error::StoreError;
pub use files::{Files, Io};
pub use folder::{AUDIO_EXTENSIONS, FolderOptions, IMAGE_EXTENSIONS, VOLUME_EXTENSIONS};
pub use lines::{Lines, LinesOptions, SavedTables, is_json_lines, is_text_file, text_files_in};
pub use listing::{Entry, Listing, NO_LABEL};
pub use manifest::ManifestOptions;
pub use progress::{Progress, Silent};
pub use read_buffer::ReadBuffer;
pub use source::Source;
pub use throttled::{ByteRate, NoRate, Throttled};
