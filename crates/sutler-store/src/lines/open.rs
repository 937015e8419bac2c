//! Files of text, opened so that any part can be read: as they are, or decompressed.
//!
//! Nothing can be read from the middle of a compressed file, so it is decompressed once, into a file without a name that is gone with the process.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::index::{Indexer, LineIndex, TooLong};
use crate::error::StoreError;
use crate::progress::Progress;

/// How much is read at a time when a file is looked through: enough that the calls cost nothing, and little beside what else is in memory.
const PIECE_BYTES: usize = 1 << 20;

/// How a file's content is packed, by the end of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Gzip,
    Zstandard,
}

impl Compression {
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "gz" => Some(Self::Gzip),
            "zst" => Some(Self::Zstandard),
            _ => None,
        }
    }
}

/// What went wrong with which side of the work.
enum Trouble {
    Reading(io::Error),
    Writing(io::Error),
    Line(TooLong),
}

/// Looks through a file from its beginning, and hands every piece on.
fn look_through(
    mut from: impl Read,
    mut to: impl FnMut(&[u8]) -> io::Result<()>,
    keep_blank: bool,
    progress: &dyn Progress,
) -> Result<LineIndex, Trouble> {
    let mut indexer = Indexer::new(keep_blank);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let mut filled = 0;
        // Short reads are put together, since the first piece must hold all of a byte order mark.
        while filled < piece.len() {
            match from.read(&mut piece[filled..]) {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Trouble::Reading(error)),
            }
        }
        if filled == 0 {
            return indexer.finish().map_err(Trouble::Line);
        }
        indexer.push(&piece[..filled]).map_err(Trouble::Line)?;
        to(&piece[..filled]).map_err(Trouble::Writing)?;
        progress.listed(filled as u64);
    }
}

/// The lines of a file that is read as it is.
pub(super) fn index_plain(
    file: &File,
    path: &Path,
    keep_blank: bool,
    progress: &dyn Progress,
) -> Result<LineIndex, StoreError> {
    look_through(file, |_| Ok(()), keep_blank, progress).map_err(|trouble| match trouble {
        Trouble::Reading(source) | Trouble::Writing(source) => StoreError::Read { path: path.into(), source },
        Trouble::Line(TooLong { line }) => StoreError::LongLine { path: path.into(), line },
    })
}

/// Decompresses a file into one without a name in `folder`, and tells its lines.
pub(super) fn decompress(
    file: &File,
    path: &Path,
    compression: Compression,
    folder: &Path,
    keep_blank: bool,
    progress: &dyn Progress,
) -> Result<(File, LineIndex), StoreError> {
    let unpacked = std::fs::create_dir_all(folder)
        .and_then(|()| {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            Ok(rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)?)
        })
        .map_err(|source| StoreError::NoRoom { path: path.into(), folder: folder.into(), source })?;
    let mut unpacked = File::from(unpacked);
    let from = BufReader::with_capacity(PIECE_BYTES, file);
    let to = |piece: &[u8]| unpacked.write_all(piece);
    let index = match compression {
        Compression::Gzip => {
            look_through(flate2::bufread::MultiGzDecoder::new(from), to, keep_blank, progress)
        }
        Compression::Zstandard => look_through(Frames::new(from), to, keep_blank, progress),
    };
    let index = index.map_err(|trouble| match trouble {
        Trouble::Reading(source) => StoreError::Compressed { path: path.into(), reason: source.to_string() },
        Trouble::Writing(source) => StoreError::NoRoom { path: path.into(), folder: folder.into(), source },
        Trouble::Line(TooLong { line }) => StoreError::LongLine { path: path.into(), line },
    })?;
    Ok((unpacked, index))
}

/// The frames of a Zstandard file one after the other: parallel compressors write many, and the decoder reads one.
struct Frames<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Frames<R> {
    fn new(source: R) -> Self {
        Self { source, decoder: FrameDecoder::new(), in_frame: false }
    }

    /// Begins the next frame that holds data; false at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    io::copy(&mut self.source.by_ref().take(u64::from(length)), &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::other(error.to_string())),
            }
        }
        Ok(false)
    }

    fn end(&self) -> io::Result<()> {
        match (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum()) {
            (Some(written), Some(found)) if written != found => {
                Err(io::Error::other("its content does not have the checksum that it should have"))
            }
            _ => Ok(()),
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame {
                self.in_frame = self.begin()?;
                if !self.in_frame {
                    return Ok(0);
                }
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(space);
            }
            if self.decoder.is_finished() {
                self.end()?;
                self.in_frame = false;
            } else {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder
                    .decode_blocks(&mut self.source, one)
                    .map_err(|error| io::Error::other(error.to_string()))?;
            }
        }
    }
}
