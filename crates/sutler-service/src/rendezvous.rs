//! Where agent and clients meet: a socket in the file system that only its owner may use.
//!
//! The socket's mode keeps other users out, and both sides check who the other one is: an agent serves its own user and
//! root, a client trusts an agent of its own user or of root, so that nobody can lie in wait under a well-known name.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, UCred};

/// Where an agent listens unless told otherwise: `$SUTLER_AGENT`, else `sutler/agent.sock` below `$XDG_RUNTIME_DIR`, else
/// in a folder of this user's below the one for temporary files.
#[must_use]
pub fn default_socket() -> PathBuf {
    variable("SUTLER_AGENT").unwrap_or_else(usual_socket)
}

/// The same without a word from the user.
fn usual_socket() -> PathBuf {
    match variable("XDG_RUNTIME_DIR") {
        Some(folder) => folder.join("sutler"),
        None => std::env::temp_dir().join(format!("sutler-{}", rustix::process::geteuid().as_raw())),
    }
    .join("agent.sock")
}

/// A path from the environment.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Why no socket could be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another agent is there.
    #[error(
        "an agent (process {pid}) already listens at {}; attach to it, stop it, or choose another --socket",
        path.display()
    )]
    Taken {
        /// Where.
        path: PathBuf,
        /// The other agent.
        pid: i32,
    },
    /// Something else is there.
    #[error("{} exists and is not a socket; remove it or choose another --socket", path.display())]
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// The folder can be written to by others, who could put a socket of their own in the place of ours.
    #[error(
        "{} belongs to another user or can be written to by others; choose a --socket in a folder of your own",
        folder.display()
    )]
    Unsafe {
        /// Which one.
        folder: PathBuf,
    },
    /// There is no such folder.
    #[error("there is no folder {} to put the socket {} in; make it first, or choose another --socket",
        folder.display(), path.display())]
    NoFolder {
        /// Where it should be.
        folder: PathBuf,
        /// The socket.
        path: PathBuf,
    },
    /// The system says no.
    #[error("the socket {} cannot be opened: {source}", path.display())]
    System {
        /// Where.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
}

/// A socket that is removed again when its agent ends, unless another one has taken its place.
pub struct Rendezvous {
    pub listener: UnixListener,
    path: PathBuf,
    /// Device and number of the file.
    identity: (u64, u64),
}

impl Rendezvous {
    /// Opens the socket. One that a dead agent left behind is replaced.
    pub fn open(path: &Path) -> Result<Self, BindError> {
        let failed = |source: std::io::Error| BindError::System { path: path.to_owned(), source };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if path == usual_socket() {
            own_folder(folder)?;
        }
        if !folder.is_dir() {
            return Err(BindError::NoFolder { folder: folder.to_owned(), path: path.to_owned() });
        }
        // Two agents that start at once must not both find the socket of a dead one and remove each other's.
        let lock =
            rustix::fs::open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(|errno| failed(errno.into()))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(|errno| failed(errno.into()))?;
        clear(path)?;
        let listener = listen(path).map_err(failed)?;
        let there = std::fs::symlink_metadata(path).map_err(failed)?;
        Ok(Self { listener, path: path.to_owned(), identity: (there.dev(), there.ino()) })
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|there| (there.dev(), there.ino()) == self.identity);
        if ours {
            // If it cannot be removed, the next agent finds that nobody answers there.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes the folder of the default socket, or checks that the one there is ours alone.
fn own_folder(folder: &Path) -> Result<(), BindError> {
    let failed = |source: std::io::Error| BindError::System { path: folder.to_owned(), source };
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    let there = std::fs::symlink_metadata(folder).map_err(failed)?;
    let ours = there.uid() == rustix::process::geteuid().as_raw();
    if there.is_dir() && ours && there.permissions().mode() & 0o022 == 0 {
        Ok(())
    } else {
        Err(BindError::Unsafe { folder: folder.to_owned() })
    }
}

/// Removes a socket at which nobody answers.
fn clear(path: &Path) -> Result<(), BindError> {
    let failed = |source: std::io::Error| BindError::System { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(there) if !there.file_type().is_socket() => {
            return Err(BindError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(live) => {
            let pid = socket_peercred(&live).map_or(0, |peer| peer.pid.as_raw_nonzero().get());
            Err(BindError::Taken { path: path.to_owned(), pid })
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

/// A listening socket. Its mode is set before anybody can connect.
fn listen(path: &Path) -> std::io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &address)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    rustix::net::listen(&socket, 128)?;
    Ok(UnixListener::from(socket))
}

/// Who is at the other end, if we may deal with them.
pub fn trusted_peer(socket: &UnixStream) -> Result<UCred, String> {
    let peer = socket_peercred(socket).map_err(|errno| format!("its user cannot be found out: {errno}"))?;
    let ours = rustix::process::geteuid();
    if peer.uid == ours || peer.uid.is_root() {
        Ok(peer)
    } else {
        Err(format!("it belongs to user {}, and we are user {}", peer.uid.as_raw(), ours.as_raw()))
    }
}

/// A descriptor that becomes readable when the process is asked to end (SIGTERM, SIGINT).
///
/// # Errors
/// When the system refuses.
pub fn stop_signal() -> std::io::Result<OwnedFd> {
    let (heard, rung) = UnixStream::pair()?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::low_level::pipe::register(signal, rung.try_clone()?)?;
    }
    Ok(heard.into())
}
