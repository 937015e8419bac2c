//! Where a worker process leaves what does not go into a batch, and how far it is with its order.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::handover::Handover;
use super::link::{LinkError, failed};
use crate::memory::Mapping;

/// The anonymous file of a worker, as we see it: none until the worker has sent it.
#[derive(Default)]
pub struct Mailbox {
    /// The file, and the view of it. Its link replaces the view when the file has grown; whoever watches the worker only
    /// reads. Nobody holds the lock while waiting for anything.
    file: Mutex<Option<(OwnedFd, Mapping)>>,
}

impl Mailbox {
    fn file(&self) -> MutexGuard<'_, Option<(OwnedFd, Mapping)>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens what the worker sent, or takes a new view of it where it has grown.
    pub fn open(&self, bytes: usize, descriptor: Option<OwnedFd>) -> Result<(), LinkError> {
        let mut opened = self.file();
        let file = descriptor.or_else(|| opened.take().map(|(file, _)| file));
        let file =
            file.ok_or_else(|| LinkError::Broken("it announced a mailbox without a file".to_owned()))?;
        let there = rustix::fs::fstat(&file).map_err(|errno| failed(&errno.into()))?.st_size as usize;
        if bytes > there {
            return Err(LinkError::Broken(format!("its mailbox has {there} bytes, not {bytes}")));
        }
        let mapping =
            Mapping::of_file(file.as_fd(), bytes).map_err(|error| LinkError::Broken(error.to_string()))?;
        *opened = Some((file, mapping));
        Ok(())
    }

    /// A copy of what the worker left there; `None` when that is not inside.
    pub fn copy_out(&self, offset: usize, bytes: usize) -> Option<Vec<u8>> {
        self.file().as_ref().and_then(|(_, mapping)| mapping.copy_out(offset, bytes))
    }

    /// How many samples of its order the worker has finished: the first number in the file. The worker may be writing it
    /// this moment, so whoever asks has to put up with any number.
    fn finished(&self) -> usize {
        let bytes = self.copy_out(0, 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, |bytes| u64::from_le_bytes(bytes) as usize)
    }
}

/// A look at a worker from another thread than the one that talks to it.
pub struct Watch {
    pub mailbox: Arc<Mailbox>,
    /// Where it counts, if it is a thread of this process, which has no mailbox.
    pub handover: Option<Arc<dyn Handover>>,
}

impl Watch {
    /// How many samples of its order the worker has finished.
    pub fn finished(&self) -> usize {
        self.handover.as_ref().map_or_else(|| self.mailbox.finished(), |handover| handover.finished())
    }
}
