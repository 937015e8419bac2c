//! Workers that are threads of this process: what they hand over as it is.
//!
//! Such a worker has the same conversation with its link as a process, over the same kind of socket: that is what lets us
//! hang up on one that is at a sample and cannot be ended. But nothing has to become bytes. What goes into no batch memory
//! is handed over as an object, and the batch memory is lent instead of mapped a second time.

use std::any::Any;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::Arena;

/// The counter between a worker thread and its link.
pub trait Handover: Send + Sync {
    /// The object that the worker left first among those not yet taken.
    fn take(&self) -> Option<Arc<dyn Any + Send + Sync>>;

    /// How many samples of the current order the worker has finished.
    fn finished(&self) -> usize;

    /// Lets the worker write to the memory of batches.
    fn lend(&self, arena: &Arc<Arena>);
}

/// The way to a worker.
pub struct Connection {
    /// Where orders and answers go.
    pub socket: UnixStream,
    /// What else there is between us and a worker that is a thread of this process.
    pub handover: Option<Arc<dyn Handover>>,
    /// The number of the process that it is, where it is one.
    pub process: Option<i32>,
}
