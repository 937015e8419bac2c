//! `sutler serve`: the host agent.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::json;
use sutler_core::Policy;
use sutler_core::plan::Split;
use sutler_engine::usable_cores;
use sutler_service::{
    Agent, AgentOptions, HttpOptions, ShelfOptions, SplitChoice, default_socket, stop_signal,
};

use sutler_store::cache::{Backing, Cache, CacheOptions};

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
    /// Memory for samples that are kept from one epoch to the next, such as 8GiB; none by default.
    #[arg(long, value_name = "SIZE", value_parser = crate::plan::size)]
    memory: Option<u64>,
    /// How that memory is shared out over encoded, decoded and augmented samples, in percent, or "auto": measured for each dataset when its
    /// first job comes, and planned anew when jobs come or go, or rates change. Augmented ones wait in the window for the jobs that lack them, so
    /// their share is the window's size [default: 100-0-0].
    #[arg(long, value_name = "auto|E-D-A", value_parser = split)]
    split: Option<SplitChoice>,
    /// The window of prepared samples that jobs with order="shared" share, as a share of each dataset and beside --memory;
    /// where --split has a share for augmented samples, that says it instead [default: 0.02].
    #[arg(long, value_name = "SHARE", value_parser = window)]
    window: Option<f64>,
    /// Serve a page for people to look at (/), its figures (/status.json), and metrics for Prometheus (/metrics) at this address of this machine,
    /// such as 127.0.0.1:8080; port 0 takes any that is free.
    #[arg(long, value_name = "ADDRESS:PORT")]
    http: Option<SocketAddr>,
    /// Let other machines see that page, too: it has the names of jobs and the paths of datasets.
    #[arg(long, requires = "http")]
    http_public: bool,
    /// Print a line of JSON when ready.
    #[arg(long)]
    json: bool,
}

/// The window of an agent that nobody has told how large it should be: with 2 % of the samples jobs of equal speed read no more
/// than they must, at any distance from each other.
const WINDOW: f64 = 0.02;

fn split(text: &str) -> Result<SplitChoice, String> {
    if text == "auto" {
        return Ok(SplitChoice::Auto);
    }
    let shares: Vec<Option<u32>> = text.split('-').map(|share| share.parse().ok()).collect();
    match shares[..] {
        [Some(encoded), Some(decoded), Some(augmented)]
            if u64::from(encoded) + u64::from(decoded) + u64::from(augmented) == 100 =>
        {
            Ok(SplitChoice::Fixed(Split::new(encoded, decoded, augmented)))
        }
        _ => Err(format!(
            "{text:?} is no split; write auto, or the percentages of encoded, decoded and augmented samples, which add up to 100, \
             like 58-42-0"
        )),
    }
}

fn window(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("{text:?} is no share of a dataset; write a number from 0 to 1 like 0.02")),
    }
}

impl Serve {
    /// What is wrong with the arguments together, if anything is.
    pub fn contradiction(&self) -> Option<String> {
        let choice = self.split?;
        if self.memory.is_none() {
            return Some(format!(
                "--split {choice} shares out memory, and there is none; say how much with --memory, such as 8GiB"
            ));
        }
        let SplitChoice::Fixed(split) = choice else { return None };
        self.window.filter(|_| split.augmented > 0).map(|window| {
            format!(
                "--split {split} gives the window {} % of --memory, and --window {window} asks for another one; leave one \
                 of them out",
                split.augmented
            )
        })
    }

    pub fn run(&self) -> Result<(), Failed> {
        let options = AgentOptions {
            socket: self.socket.clone().unwrap_or_else(default_socket),
            threads: self.threads.map_or_else(usable_cores, usize::from),
            shelf: ShelfOptions {
                memory: self.memory.unwrap_or(0),
                split: self.split.unwrap_or_else(|| ShelfOptions::default().split),
                window: self.window.unwrap_or(WINDOW),
                ..ShelfOptions::default()
            },
            http: self.http.map(|address| HttpOptions { address, public: self.http_public }),
        };
        if let Some(budget_bytes) = self.memory {
            // What no dataset could have is known before anybody asks for it.
            let split = [100, 0];
            let (policy, backing) = (Policy::Pinned, Backing::Private);
            Cache::new(&CacheOptions { budget_bytes, samples: 1, split, policy, seed: 0, backing })?;
        }
        // Before anybody can see that we are ready, so that nobody tells us to end and is not heard.
        let stop = stop_signal()?;
        let listening = Agent::listen(&options)?;
        let socket = listening.socket().display().to_string();
        let http = listening.http().map(|address| format!("http://{address}"));
        let mut out = std::io::stdout().lock();
        if self.json {
            writeln!(out, "{}", json!({ "ready": true, "socket": socket, "http": http }))?;
        } else {
            let page = http.map_or_else(String::new, |http| format!(", see {http}"));
            writeln!(out, "listening at {socket} with {} threads{page}; Ctrl-C ends it", options.threads)?;
        }
        out.flush()?;
        drop(out);
        listening.serve(&stop)?;
        Ok(())
    }
}
