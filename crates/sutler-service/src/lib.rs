//! Many processes: the host agent, which prepares samples for all jobs of a machine, and its clients.
//!
//! An [`Agent`] owns one engine and listens on a Unix socket. A client's [`RemoteJob`] is one connection: it describes a
//! dataset, a pipeline and an order ([`spec`]), and receives batches in memory that it shares with the agent, so that no
//! value is copied on the way. What a client holds belongs to its connection and ends with it, whatever way the client ends.
//!
//! The agent remembers nothing that a client could not tell it again. A client knows what was delivered to it; when its
//! agent is restarted it attaches to the new one and asks for the rest of the epoch, so that no sample is lost or repeated.

mod agent;
mod catalogue;
mod channel;
mod client;
mod connection;
mod drawn;
mod exposition;
mod figures;
mod http;
mod message;
mod namesakes;
mod remote_run;
mod rendezvous;
mod session;
mod shelf;
pub mod spec;

pub use agent::{Agent, AgentError, AgentOptions, Listening};
pub use client::{ClientError, RemoteJob, RemoteJobOptions};
pub use connection::status;
pub use http::{HttpError, HttpOptions};
pub use message::Refusal;
pub use remote_run::RemoteRun;
pub use rendezvous::{BindError, default_socket, stop_signal};
pub use shelf::{ShelfOptions, SplitChoice, pool_here};
