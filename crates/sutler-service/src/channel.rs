//! Messages over a Unix socket: four bytes of length, JSON, and perhaps a file descriptor.

use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

const HEADER: usize = 4;

/// The largest message: descriptions and numbers only, so that anything near this is damage.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// How long a message may wait for the other side to make room for it.
const SEND_PATIENCE: Duration = Duration::from_secs(30);

/// A socket, and the message that is being received.
pub struct Channel {
    socket: UnixStream,
    /// The header and as much of the body as has come.
    incoming: Vec<u8>,
    descriptor: Option<OwnedFd>,
    outgoing: Vec<u8>,
}

/// What waiting for a message came to.
pub enum Received<T> {
    /// It is here.
    Message(T, Option<OwnedFd>),
    /// It did not come in time; what came of it is kept.
    TimedOut,
    /// The other side has hung up.
    Closed,
}

impl Channel {
    pub fn new(socket: UnixStream) -> std::io::Result<Self> {
        socket.set_write_timeout(Some(SEND_PATIENCE))?;
        Ok(Self { socket, incoming: Vec::new(), descriptor: None, outgoing: Vec::new() })
    }

    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Sends a message, and a descriptor along with it.
    pub fn send(
        &mut self,
        message: &impl Serialize,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> std::io::Result<()> {
        self.outgoing.clear();
        self.outgoing.extend([0; HEADER]);
        serde_json::to_writer(&mut self.outgoing, message)?;
        let length = self.outgoing.len() - HEADER;
        if length > MESSAGE_BYTES_MAX {
            return Err(std::io::Error::other(format!(
                "a message of {length} bytes is larger than the {MESSAGE_BYTES_MAX} bytes that are allowed"
            )));
        }
        self.outgoing[..HEADER].copy_from_slice(&(length as u32).to_le_bytes());
        let sent = match descriptor {
            None => 0,
            Some(descriptor) => self.send_with(descriptor)?,
        };
        (&self.socket).write_all(&self.outgoing[sent..])
    }

    /// Sends the descriptor with the first bytes of the message; tells how many went.
    fn send_with(&self, descriptor: BorrowedFd<'_>) -> std::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor];
        if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(std::io::Error::other("the descriptor does not fit its message"));
        }
        loop {
            let parts = [IoSlice::new(&self.outgoing)];
            match rustix::net::sendmsg(&self.socket, &parts, &mut ancillary, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                sent => return Ok(sent?),
            }
        }
    }

    /// Waits for a message until `deadline`, or for ever.
    pub fn receive<T: DeserializeOwned>(
        &mut self,
        deadline: Option<Instant>,
    ) -> std::io::Result<Received<T>> {
        loop {
            let wanted = self.wanted()?;
            if self.incoming.len() >= HEADER && wanted == 0 {
                let message = serde_json::from_slice(&self.incoming[HEADER..])?;
                self.incoming.clear();
                return Ok(Received::Message(message, self.descriptor.take()));
            }
            let start = self.incoming.len();
            self.incoming.resize(start + wanted, 0);
            let received = self.receive_into(start);
            let count = *received.as_ref().unwrap_or(&0);
            self.incoming.truncate(start + count);
            match received {
                Ok(0) => return Ok(Received::Closed),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if !wait_readable(self.socket.as_fd(), None, deadline)?.socket {
                        return Ok(Received::TimedOut);
                    }
                }
                Err(Errno::CONNRESET) => return Ok(Received::Closed),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// How many bytes the header or the body still lacks.
    fn wanted(&self) -> std::io::Result<usize> {
        let Some(header) = self.incoming.first_chunk::<HEADER>() else {
            return Ok(HEADER - self.incoming.len());
        };
        let length = u32::from_le_bytes(*header) as usize;
        if length > MESSAGE_BYTES_MAX {
            return Err(std::io::Error::other(format!("a message of {length} bytes was announced")));
        }
        Ok(HEADER + length - self.incoming.len())
    }

    /// Reads what is there, never past the end of the message: a descriptor belongs to the message it came with.
    fn receive_into(&mut self, start: usize) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut self.incoming[start..])];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let message = rustix::net::recvmsg(&self.socket, &mut parts, &mut ancillary, flags)?;
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = part {
                self.descriptor = descriptors.next().or(self.descriptor.take());
            }
        }
        Ok(message.bytes)
    }
}

/// Which of two descriptors have something to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Readable {
    pub socket: bool,
    pub other: bool,
}

/// Waits until a socket (or another descriptor) has something to read, or is closed, or time is up.
pub fn wait_readable(
    socket: BorrowedFd<'_>,
    other: Option<BorrowedFd<'_>>,
    deadline: Option<Instant>,
) -> std::io::Result<Readable> {
    let mut entries = vec![PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    entries.extend(other.map(|other| PollFd::from_borrowed_fd(other, PollFlags::IN)));
    loop {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        match rustix::event::poll(&mut entries, left.as_ref()) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) => {
                let ready =
                    |index: usize| entries.get(index).is_some_and(|entry| !entry.revents().is_empty());
                return Ok(Readable { socket: ready(0), other: ready(1) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Channel, Channel) {
        let (one, other) = UnixStream::pair().unwrap();
        (Channel::new(one).unwrap(), Channel::new(other).unwrap())
    }

    #[test]
    fn messages_keep_their_order_and_their_descriptors() {
        let (mut one, mut other) = pair();
        let file = std::fs::File::open("/dev/null").unwrap();
        one.send(&"first", None).unwrap();
        one.send(&"second", Some(file.as_fd())).unwrap();
        one.send(&"third", None).unwrap();
        let mut next = || match other.receive::<String>(None).unwrap() {
            Received::Message(text, descriptor) => (text, descriptor.is_some()),
            _ => panic!("no message"),
        };
        assert_eq!(next(), ("first".into(), false));
        assert_eq!(next(), ("second".into(), true));
        assert_eq!(next(), ("third".into(), false));
        drop(one);
        assert!(matches!(other.receive::<String>(None).unwrap(), Received::Closed));
    }

    #[test]
    fn what_came_of_a_message_is_kept_until_the_rest_comes() {
        let (one, mut other) = pair();
        let soon = || Some(Instant::now() + Duration::from_millis(5));
        (&one.socket).write_all(&[4, 0, 0, 0, b'"', b'h']).unwrap();
        assert!(matches!(other.receive::<String>(soon()).unwrap(), Received::TimedOut));
        (&one.socket).write_all(b"i\"").unwrap();
        assert!(
            matches!(other.receive::<String>(soon()).unwrap(), Received::Message(text, None) if text == "hi")
        );
    }

    #[test]
    fn nonsense_is_an_error() {
        let (one, mut other) = pair();
        (&one.socket).write_all(&[255, 255, 255, 255, 0]).unwrap();
        assert!(other.receive::<String>(None).is_err());
        let (one, mut other) = pair();
        (&one.socket).write_all(&[2, 0, 0, 0, b'{', b'{']).unwrap();
        assert!(other.receive::<String>(None).is_err());
    }
}
