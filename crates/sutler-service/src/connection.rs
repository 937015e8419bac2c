//! A client's end of the conversation: requests go out, answers come back in order, whoever waits for them.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::channel::{Channel, Received};
use crate::client::ClientError;
use crate::message::{Answer, Answered, Asked, HELLO, PROTOCOL, Place, Refusal, Request};
use crate::rendezvous::trusted_peer;

/// How long an agent may take to say hello. It has a thread for every client, so that only a stopped one takes longer.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);

/// Whether a socket is there. Whoever connects to another kind of file is refused as if it were a dead one.
fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|there| there.file_type().is_socket())
}

/// An answer, and the file that came with it.
pub type Reply = (Answer, Option<OwnedFd>);

/// A connection to an agent.
pub struct Connection {
    channel: Channel,
    asked: u64,
    arrived: HashMap<u64, Reply>,
    /// Requests whose answers nobody waits for any more.
    unwanted: HashSet<u64>,
    /// Slots of the batch memory that nobody here uses any more. The batches themselves hold it, too.
    released: Arc<Mutex<Vec<usize>>>,
}

impl Connection {
    /// Connects and says hello; the answer to that comes with the first that is waited for.
    pub fn open(path: &Path) -> Result<Self, ClientError> {
        let no_agent = |reason: String| ClientError::NoAgent { path: path.to_owned(), reason };
        let socket = UnixStream::connect(path).map_err(|error| {
            no_agent(match error.kind() {
                ErrorKind::NotFound => "there is no such socket".to_owned(),
                ErrorKind::ConnectionRefused if is_socket(path) => {
                    "the agent that made the socket is gone".to_owned()
                }
                ErrorKind::ConnectionRefused => "that is no socket".to_owned(),
                _ => error.to_string(),
            })
        })?;
        trusted_peer(&socket).map_err(|reason| no_agent(format!("{reason}; it is not to be trusted")))?;
        let mut connection = Self {
            channel: Channel::new(socket).map_err(|error| no_agent(error.to_string()))?,
            asked: 0,
            arrived: HashMap::new(),
            unwanted: HashSet::new(),
            released: Arc::default(),
        };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        connection
            .ask(Request::Hello { protocol: PROTOCOL, version })
            .map_err(|error| no_agent(error.to_string()))?;
        Ok(connection)
    }

    /// Where slots go that are not used any more.
    pub fn released(&self) -> &Arc<Mutex<Vec<usize>>> {
        &self.released
    }

    /// Takes out the slots that are not used any more.
    pub fn take_released(&self) -> Vec<usize> {
        std::mem::take(&mut *self.released.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends a request and returns its number.
    pub fn ask(&mut self, request: Request) -> std::io::Result<u64> {
        self.asked += 1;
        self.channel.send(&Asked { id: self.asked, request }, None)?;
        Ok(self.asked)
    }

    /// Waits for the answer to a request; `None` when it has not come in time.
    pub fn wait(&mut self, id: u64, deadline: Instant) -> std::io::Result<Option<Reply>> {
        loop {
            if let Some(reply) = self.arrived.remove(&id) {
                return Ok(Some(reply));
            }
            match self.channel.receive::<Answered>(Some(deadline))? {
                Received::TimedOut => return Ok(None),
                Received::Closed => return Err(std::io::Error::from(ErrorKind::ConnectionReset)),
                Received::Message(Answered { id, answer }, file) => self.sort(id, answer, file),
            }
        }
    }

    fn sort(&mut self, id: u64, answer: Answer, file: Option<OwnedFd>) {
        if !self.unwanted.remove(&id) {
            self.arrived.insert(id, (answer, file));
        } else if let Answer::Batches(batches) = answer {
            let mut released = self.released.lock().unwrap_or_else(PoisonError::into_inner);
            released.extend(batches.iter().filter_map(|delivered| match delivered.place {
                Place::Slot(slot) => Some(slot),
                Place::File { .. } | Place::Each { .. } => None,
            }));
        }
    }

    /// Nobody waits for this answer any more.
    pub fn forget(&mut self, id: u64) {
        self.unwanted.insert(id);
        if let Some((answer, file)) = self.arrived.remove(&id) {
            self.sort(id, answer, file);
        }
    }

    /// The answer to an earlier request than one that has been answered; a refusal is an error.
    pub fn check(&mut self, id: u64) -> Result<(), ClientError> {
        match self.arrived.remove(&id) {
            Some((Answer::Refused { kind, reason }, _)) => Err(ClientError::Refused { kind, reason }),
            _ => Ok(()),
        }
    }

    /// Asks one thing and waits for the answer.
    fn ask_once(&mut self, request: Request, path: &Path) -> Result<Answer, ClientError> {
        let lost = |reason: String| ClientError::NoAgent { path: path.to_owned(), reason };
        let answer = self.ask(request).and_then(|id| self.wait(id, Instant::now() + HELLO_PATIENCE));
        self.check(HELLO)?;
        match answer.map_err(|error| lost(error.to_string()))? {
            None => Err(lost(format!("it does not answer within {} s", HELLO_PATIENCE.as_secs()))),
            Some((Answer::Refused { kind, reason }, _)) => Err(ClientError::Refused { kind, reason }),
            Some((answer, _)) => Ok(answer),
        }
    }
}

/// What an agent is doing, for all its clients.
///
/// # Errors
/// When no agent listens there, or it speaks another protocol.
pub fn status(path: &Path) -> Result<Value, ClientError> {
    match Connection::open(path)?.ask_once(Request::Status, path)? {
        Answer::Facts { facts } => Ok(facts),
        other => Err(ClientError::Refused { kind: Refusal::Value, reason: format!("it answered {other:?}") }),
    }
}
