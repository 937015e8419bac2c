//! The agent for people and for Prometheus: a page, its figures as JSON, and as metrics, over HTTP.
//!
//! Three addresses, read-only, one request for each connection: that takes no library. It listens on this machine alone unless it is told
//! otherwise, and then answers only requests that mean this machine, so that no page in a browser can ask under another name.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::agent::{Agent, say};
use crate::channel::wait_readable;
use crate::exposition;

/// The page. It asks for nothing from anywhere else.
const PAGE: &str = include_str!("../../../web/dashboard.html");

/// A request has no more than this: a browser's has a fiftieth.
const REQUEST_BYTES_MAX: u64 = 64 << 10;

/// Whoever takes longer over a line is not waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// More connections at once than people and scrapers have are turned away.
const CONNECTIONS_MAX: usize = 32;

/// Where the page is served, and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpOptions {
    /// The address; port 0 for any that is free.
    pub address: SocketAddr,
    /// Whether other machines may ask.
    pub public: bool,
}

/// Why it cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Others could see it.
    #[error(
        "{0} can be reached from other machines, and whoever reaches it sees the names of jobs and the paths of datasets; choose \
         127.0.0.1, or say --http-public if that is meant"
    )]
    Public(SocketAddr),
    /// The system said no.
    #[error("{address} cannot be listened at for HTTP: {source}; choose another port")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// What it said.
        source: std::io::Error,
    },
}

/// The open address.
pub struct Http {
    listener: TcpListener,
    address: SocketAddr,
    public: bool,
}

impl Http {
    /// Opens the address.
    ///
    /// # Errors
    /// When it is not this machine's alone, or taken.
    pub fn open(options: HttpOptions) -> Result<Self, HttpError> {
        let HttpOptions { address, public } = options;
        if !public && !address.ip().is_loopback() {
            return Err(HttpError::Public(address));
        }
        let bind = |source| HttpError::Bind { address, source };
        let listener = TcpListener::bind(address).map_err(bind)?;
        // Someone who connects and hangs up before we accept must not leave us waiting.
        listener.set_nonblocking(true).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        Ok(Self { listener, address, public })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until the returned guard is dropped.
    pub fn serve(self, agent: &Arc<Agent>) -> std::io::Result<Serving> {
        let (stop, stopped) = UnixStream::pair()?;
        let agent = Arc::clone(agent);
        let thread =
            std::thread::Builder::new().name("http".to_owned()).spawn(move || self.run(&agent, &stopped))?;
        Ok(Serving { stop: Some(stop), thread: Some(thread) })
    }

    fn run(&self, agent: &Arc<Agent>, stopped: &UnixStream) {
        let open = Arc::new(AtomicUsize::new(0));
        loop {
            match wait_readable(self.listener.as_fd(), Some(stopped.as_fd()), None) {
                Ok(ready) if ready.other => return,
                Ok(_) => {}
                Err(error) => return say(&format!("HTTP is not served any more: {error}")),
            }
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => {
                    // Out of descriptors: those that end give some back.
                    say(&format!("an HTTP connection could not be accepted: {error}"));
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
                open.fetch_sub(1, Ordering::Relaxed);
                continue; // hangs up
            }
            let (agent, open, public) = (Arc::clone(agent), Arc::clone(&open), self.public);
            let answering = std::thread::Builder::new().name("http-answer".to_owned()).spawn({
                let open = Arc::clone(&open);
                move || {
                    // Who hangs up early, or never says anything, gets no answer; that is no news.
                    let _ = answer(&agent, socket, public);
                    open.fetch_sub(1, Ordering::Relaxed);
                }
            });
            if answering.is_err() {
                open.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// A page that is being served; dropping it ends that.
pub struct Serving {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has told so.
            let _ = thread.join();
        }
    }
}

/// An answer, as HTTP has them.
struct Answer {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl Answer {
    fn text(status: &'static str, body: &str) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: format!("{body}\n") }
    }
}

fn answer(agent: &Agent, socket: TcpStream, public: bool) -> std::io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new((&socket).take(REQUEST_BYTES_MAX)).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let mut host = None;
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("host")
        {
            host = Some(value.trim().to_owned());
        }
    }
    let Answer { status, kind, body } = respond(agent, &first, host.as_deref(), public);
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nCache-Control: no-store\r\nConnection: close\r\n\
         X-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src \
         'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\r\n"
    );
    let mut socket = socket;
    socket.write_all(head.as_bytes())?;
    if !first.starts_with("HEAD ") {
        socket.write_all(body.as_bytes())?;
    }
    socket.flush()
}

fn respond(agent: &Agent, request: &str, host: Option<&str>, public: bool) -> Answer {
    let mut words = request.split(' ');
    let (Some(method), Some(target), Some(version)) = (words.next(), words.next(), words.next()) else {
        return Answer::text("400 Bad Request", "This is no HTTP request.");
    };
    if !version.starts_with("HTTP/1.") {
        return Answer::text("505 HTTP Version Not Supported", "HTTP/1.1 is spoken here.");
    }
    if !public && !host.is_some_and(means_this_machine) {
        return Answer::text(
            "403 Forbidden",
            "Ask for localhost or 127.0.0.1: other names are not answered.",
        );
    }
    if method != "GET" && method != "HEAD" {
        return Answer::text("405 Method Not Allowed", "There is nothing to change here; use GET.");
    }
    let path = target.split('?').next().unwrap_or_default();
    match path {
        "/" => Answer { status: "200 OK", kind: "text/html; charset=utf-8", body: PAGE.to_owned() },
        "/status.json" => {
            Answer { status: "200 OK", kind: "application/json", body: agent.status().to_string() }
        }
        "/metrics" => Answer {
            status: "200 OK",
            kind: "text/plain; version=0.0.4; charset=utf-8",
            body: exposition::of(&agent.status()),
        },
        _ => Answer::text("404 Not Found", "There are /, /status.json and /metrics."),
    }
}

/// Whether a `Host` header names this machine as seen from itself.
fn means_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => host.split(':').next(),
    };
    let name = name.unwrap_or_default();
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_answered() {
        for host in ["localhost", "localhost:8080", "127.0.0.1:80", "[::1]:80", "LOCALHOST"] {
            assert!(means_this_machine(host), "{host}");
        }
        for host in
            ["example.com", "localhost.example.com", "10.0.0.1:80", "", "[::2]:80", "127.0.0.1.nip.io"]
        {
            assert!(!means_this_machine(host), "{host}");
        }
    }

    #[test]
    fn addresses_that_others_can_reach_need_a_plain_word() {
        let address: SocketAddr = "0.0.0.0:0".parse().unwrap();
        let refused = Http::open(HttpOptions { address, public: false }).err().unwrap();
        assert!(refused.to_string().contains("--http-public"), "{refused}");
        assert!(Http::open(HttpOptions { address, public: true }).is_ok());
        let taken =
            Http::open(HttpOptions { address: "127.0.0.1:0".parse().unwrap(), public: false }).unwrap();
        let again = Http::open(HttpOptions { address: taken.address(), public: false }).err().unwrap();
        assert!(again.to_string().contains("choose another port"), "{again}");
    }
}
