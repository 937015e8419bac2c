//! The conversation with one worker.
//!
//! Messages are a kind (1 byte), the length of the body (8 bytes, little-endian) and the body. File descriptors travel
//! beside a header, as the socket allows. To the worker go `S` (the schema, with the shared memory), `C` (the cache), `K`
//! (the keys of the samples that follow, where those are not numbers), `T` (samples, how often each was drawn before where one was, what the cache has of them, and the
//! rows they go into), `L` (rows asked for), `G` (go on with the next transform), `H` (let the sample stand), `U` (take up
//! one that stands) and `F` (forget some that stand);
//! back come `D` (what the worker's copy of the dataset has come to with this order), `N` (what the steps of samples are called), `B` (a sample that has taken long is between two transforms), `W` (where do the finished samples go? sent where the order did not say), `M` (the mailbox, when new or grown), `P` (a proposed schema) and one `R` or `E` for each sample in order. A
//! worker answers an order as a whole; while it works, the first number in its mailbox tells how far it is.
//!
//! A worker that is a thread of this process has no mailbox: see `handover.rs`.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use sutler_core::{SampleId, StepTimes};

use sutler_store::cache::{Extent, Memory};

use super::handover::{Connection, Handover};
use super::kept::{Looked, Prepared};
use super::mailbox::{Mailbox, Watch};
use super::standing::Forgotten;
use crate::{Arena, Order, Parcel, Rows};

const HEADER: usize = 9;

/// The largest message body: only descriptions and numbers travel here, so anything near this is damage.
const BODY_MAX: u64 = 64 << 20;

/// What a worker says of a sample's deterministic part: it has it from the cache, or the dataset has made it.
const PREPARED_RECALLED: u64 = 1;
const PREPARED_MADE: u64 = 2;

/// How many numbers there are in the answer about a sample that is done, before the times of its steps.
const DONE_NUMBERS: usize = 6;

/// The length of what is not in the mailbox, because it was handed over as an object.
const HANDED_OVER: u64 = u64::MAX;

/// How often a silent worker is looked for: a process that it forked may hold the socket, which then outlives it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How many links there have been.
static BIRTHS: AtomicU64 = AtomicU64::new(0);

/// Why a worker cannot be talked to.
pub enum LinkError {
    /// It has hung up, which a process does when it ends.
    Closed,
    /// It says things that make no sense, or the socket fails.
    Broken(String),
}

/// What a worker says.
pub enum Answer {
    /// About the next sample of the order.
    Row(RowAnswer),
    /// It has finished the samples of the order and asks for their rows.
    Where,
    /// The sample that it is at is between two transforms and has taken long.
    Between {
        /// What it is called if it is let stand.
        token: u64,
        /// How many steps are done.
        done: usize,
    },
    /// What it calls the steps of samples, in order.
    Steps(Vec<String>),
    /// A proposal for the layout of batches.
    Schema {
        /// The memory a batch needs.
        batch_bytes: usize,
        /// The layout, in words that only workers and consumers understand.
        description: Vec<u8>,
    },
}

/// What became of a sample.
pub enum RowAnswer {
    /// It is done.
    Done {
        /// Its arrays are in the batch's memory.
        in_block: bool,
        /// What is not.
        payload: Parcel,
        /// Where its deterministic part comes from, if the dataset has marked one.
        prepared: Option<Prepared>,
        /// What its steps took, where the worker tells them apart.
        steps: StepTimes,
    },
    /// It raised.
    Raised {
        /// The last line of the traceback.
        text: String,
        /// The exception itself.
        exception: Parcel,
    },
}

/// One worker's socket and mailbox.
pub struct Link {
    worker: usize,
    /// Which of all links this is: a worker that was started anew has another one.
    birth: u64,
    /// The set of workers it belongs to.
    generation: u64,
    socket: UnixStream,
    process: Option<i32>,
    schema_sent: bool,
    cache_sent: bool,
    /// The counter between us, where it is a thread of this process.
    handover: Option<Arc<dyn Handover>>,
    mailbox: Arc<Mailbox>,
    /// What the worker's copy of the dataset had come to with the latest order, where it tells.
    dataset_state: Option<Vec<u8>>,
    scratch: Vec<u8>,
}

impl Link {
    pub fn new(worker: usize, generation: u64, connection: Connection) -> Self {
        let Connection { socket, handover, process } = connection;
        // Only a duration of zero is refused.
        let _ = socket.set_read_timeout(Some(LOOK_EVERY));
        Self {
            worker,
            birth: BIRTHS.fetch_add(1, Ordering::Relaxed),
            generation,
            socket,
            process,
            schema_sent: false,
            cache_sent: false,
            handover,
            mailbox: Arc::default(),
            dataset_state: None,
            scratch: Vec::new(),
        }
    }

    /// The same, to a worker that takes the place of one that had come to this.
    pub fn beginning_from(mut self, dataset_state: Option<Vec<u8>>) -> Self {
        self.dataset_state = dataset_state;
        self
    }

    /// What the worker's copy of the dataset has come to, as far as it has told.
    pub fn dataset_state(&self) -> Option<&[u8]> {
        self.dataset_state.as_deref()
    }

    /// The same for whoever takes its place.
    pub fn into_dataset_state(self) -> Option<Vec<u8>> {
        self.dataset_state
    }

    /// Whether the worker is a thread of this process.
    pub fn is_thread(&self) -> bool {
        self.handover.is_some()
    }

    pub fn worker(&self) -> usize {
        self.worker
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn birth(&self) -> u64 {
        self.birth
    }

    /// The number of the worker's process, where it is one.
    pub fn process(&self) -> Option<i32> {
        self.process
    }

    /// Tells the worker about shared memory, once.
    pub fn announce_schema(&mut self, description: &[u8], arena: &Arc<Arena>) -> Result<(), LinkError> {
        if self.schema_sent {
            return Ok(());
        }
        let (_, bytes) = arena.range();
        if let Some(handover) = &self.handover {
            handover.lend(arena);
            self.begin(b'S');
            self.scratch.extend((bytes as u64).to_le_bytes());
            self.scratch.extend(description);
            self.end();
            self.schema_sent = true;
            return (&self.socket).write_all(&self.scratch).map_err(|error| failed(&error));
        }
        let Some(file) = arena.file() else { return Ok(()) };
        self.begin(b'S');
        self.scratch.extend((bytes as u64).to_le_bytes());
        self.scratch.extend(description);
        self.end();
        self.send_with(file)?;
        self.schema_sent = true;
        Ok(())
    }

    /// Tells the worker about the memory of a cache, once.
    pub fn announce_cache(&mut self, memory: &Memory) -> Result<(), LinkError> {
        let Some(file) = memory.file().filter(|_| !self.cache_sent) else { return Ok(()) };
        let Extent { blocks, slots } = memory.extent();
        self.begin(b'C');
        self.scratch.extend(u64::from(blocks).to_le_bytes());
        self.scratch.extend(slots.to_le_bytes());
        self.end();
        self.send_with(file)?;
        self.cache_sent = true;
        Ok(())
    }

    /// Sends the message in the scratch buffer and a descriptor beside it.
    fn send_with(&self, file: BorrowedFd<'_>) -> Result<(), LinkError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [file];
        if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(LinkError::Broken("the descriptor does not fit its message".to_owned()));
        }
        let parts = [IoSlice::new(&self.scratch)];
        let sent = rustix::net::sendmsg(&self.socket, &parts, &mut ancillary, SendFlags::NOSIGNAL)
            .map_err(|errno| failed(&errno.into()))?;
        (&self.socket).write_all(&self.scratch[sent..]).map_err(|error| failed(&error))?;
        Ok(())
    }

    /// Tells the worker what to ask the dataset for where that is not the sample's number.
    pub fn send_keys<'k>(
        &mut self,
        keys: impl Iterator<Item = (SampleId, &'k [u8])>,
    ) -> Result<(), LinkError> {
        self.begin(b'K');
        for (sample, key) in keys {
            self.scratch.extend(sample.0.to_le_bytes());
            self.scratch.extend((key.len() as u64).to_le_bytes());
            self.scratch.extend(key);
        }
        if self.scratch.len() == HEADER {
            return Ok(());
        }
        self.end();
        (&self.socket).write_all(&self.scratch).map_err(|error| failed(&error))
    }

    pub fn send_order(
        &mut self,
        order: &Order<'_>,
        rows: &mut dyn Rows,
        kept: Option<&Looked<'_>>,
        asks_after: Option<Duration>,
    ) -> Result<(), LinkError> {
        self.begin(b'T');
        self.scratch.extend(order.epoch.to_le_bytes());
        let flags = u32::from(rows.are_late())
            | u32::from(order.whole_batch) << 1
            | u32::from(kept.is_some()) << 2
            | u32::from(!order.repeats.are_none()) << 3;
        self.scratch.extend(flags.to_le_bytes());
        // How long a sample may take before the worker asks, in microseconds; it never does after the longest there is.
        let asks_after = asks_after.and_then(|after| u64::try_from(after.as_micros()).ok());
        self.scratch.extend(asks_after.unwrap_or(u64::MAX).to_le_bytes());
        for sample in order.samples {
            self.scratch.extend(sample.0.to_le_bytes());
        }
        if !order.repeats.are_none() {
            for index in 0..order.samples.len() {
                self.scratch.extend(order.repeats.get(index).to_le_bytes());
            }
        }
        for mark in kept.into_iter().flat_map(Looked::marks) {
            self.scratch.extend(mark.to_le_bytes());
        }
        if !rows.are_late() {
            self.add_rows(order.samples.len(), rows);
        }
        self.end();
        (&self.socket).write_all(&self.scratch).map_err(|error| failed(&error))
    }

    /// Tells the worker where the samples go that it has finished.
    pub fn send_rows(&mut self, count: usize, rows: &mut dyn Rows) -> Result<(), LinkError> {
        self.begin(b'L');
        self.add_rows(count, rows);
        self.end();
        (&self.socket).write_all(&self.scratch).map_err(|error| failed(&error))
    }

    /// Answers a worker that is between two transforms.
    pub fn send_verdict(&mut self, parks: bool) -> Result<(), LinkError> {
        self.send_tokens(if parks { b'H' } else { b'G' }, &[])
    }

    /// Has the worker go on with a sample that it let stand.
    pub fn send_go_on(&mut self, token: u64) -> Result<(), LinkError> {
        self.send_tokens(b'U', &[token])
    }

    /// Has the worker forget the samples that nobody will come back for.
    pub fn forget(&mut self, forgotten: &Forgotten) -> Result<(), LinkError> {
        let tokens = forgotten.take(self.birth);
        if tokens.is_empty() { Ok(()) } else { self.send_tokens(b'F', &tokens) }
    }

    fn send_tokens(&mut self, kind: u8, tokens: &[u64]) -> Result<(), LinkError> {
        self.begin(kind);
        for token in tokens {
            self.scratch.extend(token.to_le_bytes());
        }
        self.end();
        (&self.socket).write_all(&self.scratch).map_err(|error| failed(&error))
    }

    /// Adds where the batch of each sample begins, and the sample's row in it. A worker that does not know the shared
    /// memory cannot write there, nor can a sample that nobody wants any more.
    fn add_rows(&mut self, count: usize, rows: &mut dyn Rows) {
        for index in 0..count {
            let place = rows.row(index);
            let offset = place.and_then(|place| place.offset).filter(|_| self.schema_sent);
            self.scratch.extend(offset.map_or(-1, |offset| offset as i64).to_le_bytes());
            self.scratch.extend(place.map_or(0, |place| place.row as u64).to_le_bytes());
        }
    }

    /// The worker's next word on the current order. `is_alive` is asked now and then while there is none.
    pub fn receive(&mut self, is_alive: &dyn Fn() -> bool) -> Result<Answer, LinkError> {
        loop {
            let (kind, descriptor) = self.receive_message(is_alive)?;
            let body = Body(&self.scratch);
            match kind {
                b'W' => return Ok(Answer::Where),
                b'B' => {
                    return Ok(Answer::Between { token: body.number(0)?, done: body.number(1)? as usize });
                }
                b'N' => {
                    let names = String::from_utf8_lossy(body.0).lines().map(str::to_owned).collect();
                    return Ok(Answer::Steps(names));
                }
                b'D' => self.dataset_state = Some(body.0.to_vec()),
                b'M' => self.mailbox.open(body.number(0)? as usize, descriptor)?,
                b'P' => {
                    return Ok(Answer::Schema {
                        batch_bytes: body.number(0)? as usize,
                        description: body.0[8..].to_vec(),
                    });
                }
                b'R' => {
                    let payload = self.take_parcel(body.number(1)?, body.number(2)?)?;
                    let prepared = match body.number(3)? {
                        PREPARED_RECALLED => Some(Prepared::Recalled),
                        PREPARED_MADE => {
                            let bytes = self.collect(body.number(4)? as usize, body.number(5)? as usize)?;
                            Some(Prepared::Made((!bytes.is_empty()).then_some(bytes)))
                        }
                        _ => None,
                    };
                    let in_block = body.number(0)? != 0;
                    let mut steps = StepTimes::default();
                    for (step, index) in (DONE_NUMBERS..body.0.len() / 8).enumerate() {
                        steps.add(step, body.number(index)?);
                    }
                    return Ok(Answer::Row(RowAnswer::Done { in_block, payload, prepared, steps }));
                }
                b'E' => {
                    let exception = self.take_parcel(body.number(0)?, body.number(1)?)?;
                    let text = String::from_utf8_lossy(&body.0[16..]).into_owned();
                    return Ok(Answer::Row(RowAnswer::Raised { text, exception }));
                }
                other => return Err(LinkError::Broken(format!("it sent a message of unknown kind {other}"))),
            }
        }
    }

    /// How many samples of the current order the worker has finished.
    pub fn progress(&self) -> usize {
        self.watch().finished()
    }

    /// The same for somebody else to ask.
    pub fn watch(&self) -> Watch {
        Watch { mailbox: Arc::clone(&self.mailbox), handover: self.handover.clone() }
    }

    fn begin(&mut self, kind: u8) {
        self.scratch.clear();
        self.scratch.push(kind);
        self.scratch.extend([0; 8]);
    }

    fn end(&mut self) {
        let length = (self.scratch.len() - HEADER) as u64;
        self.scratch[1..HEADER].copy_from_slice(&length.to_le_bytes());
    }

    /// Reads a message's body into the scratch buffer; returns its kind and the descriptor that came with it.
    fn receive_message(&mut self, is_alive: &dyn Fn() -> bool) -> Result<(u8, Option<OwnedFd>), LinkError> {
        let mut header = [0u8; HEADER];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut header)];
            match rustix::net::recvmsg(&self.socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) => break message.bytes,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) if is_alive() => {}
                Err(rustix::io::Errno::AGAIN) => return Err(LinkError::Closed),
                Err(errno) => return Err(failed(&errno.into())),
            }
        };
        if received == 0 {
            return Err(LinkError::Closed);
        }
        let descriptor = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        self.fill(&mut header[received..], is_alive)?;
        let length = Body(&header[1..]).number(0)?;
        if length > BODY_MAX {
            return Err(LinkError::Broken(format!("it announced a message of {length} bytes")));
        }
        let mut body = std::mem::take(&mut self.scratch);
        body.resize(length as usize, 0);
        let filled = self.fill(&mut body, is_alive);
        self.scratch = body;
        filled.map(|()| (header[0], descriptor))
    }

    /// Reads exactly this much.
    fn fill(&self, mut rest: &mut [u8], is_alive: &dyn Fn() -> bool) -> Result<(), LinkError> {
        while !rest.is_empty() {
            match (&self.socket).read(rest) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(read) => rest = &mut rest[read..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && is_alive() => {}
                Err(error) => return Err(failed(&error)),
            }
        }
        Ok(())
    }

    /// What a worker left for us: in its mailbox, or on the counter.
    fn take_parcel(&self, offset: u64, length: u64) -> Result<Parcel, LinkError> {
        if length != HANDED_OVER {
            return self.collect(offset as usize, length as usize).map(Parcel::Bytes);
        }
        let object = self.handover.as_ref().and_then(|handover| handover.take());
        object
            .map(Parcel::Object)
            .ok_or_else(|| LinkError::Broken("it said that it had handed something over".to_owned()))
    }

    fn collect(&self, offset: usize, bytes: usize) -> Result<Vec<u8>, LinkError> {
        if bytes == 0 {
            return Ok(Vec::new());
        }
        self.mailbox
            .copy_out(offset, bytes)
            .ok_or_else(|| LinkError::Broken(format!("bytes {offset}+{bytes} are not in its mailbox")))
    }
}

/// A message's body, read as numbers of 8 bytes.
struct Body<'a>(&'a [u8]);

impl Body<'_> {
    fn number(&self, index: usize) -> Result<u64, LinkError> {
        self.0
            .get(index * 8..index * 8 + 8)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u64::from_le_bytes)
            .ok_or_else(|| LinkError::Broken("it sent a message that is too short".to_owned()))
    }
}

pub(super) fn failed(error: &std::io::Error) -> LinkError {
    match error.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::WouldBlock => LinkError::Closed,
        _ => LinkError::Broken(error.to_string()),
    }
}
