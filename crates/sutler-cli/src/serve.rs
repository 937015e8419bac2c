//! `sutler serve`: the host agent.

use std::io::Write;
use std::path::PathBuf;

use serde_json::json;
use sutler_engine::usable_cores;
use sutler_service::{Agent, AgentOptions, default_socket, stop_signal};

use crate::Failed;

/// Prepare samples for all jobs of this machine
///
/// Loaders with `agent="auto"` attach to it and receive their batches in shared memory. Only processes of the same user
/// (and of root) are served. It runs until it is told to end (Ctrl-C or SIGTERM); loaders then wait a while for another
/// one, and go on where they were.
#[derive(clap::Args)]
pub struct Serve {
    /// Where to listen [default: $SUTLER_AGENT, else sutler/agent.sock in $XDG_RUNTIME_DIR, else in a folder of your own
    /// below the one for temporary files].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Threads that prepare samples [default: one per usable core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Print a line of JSON when ready.
    #[arg(long)]
    json: bool,
}

impl Serve {
    pub fn run(&self) -> Result<(), Failed> {
        let options = AgentOptions {
            socket: self.socket.clone().unwrap_or_else(default_socket),
            threads: self.threads.map_or_else(usable_cores, usize::from),
        };
        // Before anybody can see that we are ready, so that nobody tells us to end and is not heard.
        let stop = stop_signal()?;
        let listening = Agent::listen(&options)?;
        let socket = listening.socket().display().to_string();
        if self.json {
            println!("{}", json!({ "ready": true, "socket": socket, "http": null }));
        } else {
            println!("listening at {socket} with {} threads; Ctrl-C ends it", options.threads);
        }
        std::io::stdout().flush()?;
        listening.serve(&stop)?;
        Ok(())
    }
}
