//! `sutler demo`: the main job in one go.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use sutler_engine::{Engine, Snapshot};

use crate::dataset::{JobArguments, open, serve_epoch};
use crate::photos::PhotoSet;
use crate::{Failed, report};

/// Feed a job from a dataset, generated if none is given, and show what it got, beside PyTorch where that is installed
#[derive(clap::Args)]
pub struct Demo {
    /// A folder with one folder per class, or a manifest. Without it photo-like pictures are made.
    path: Option<PathBuf>,
    #[command(flatten)]
    job: JobArguments,
    /// How many pictures to make where no dataset is given.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    images: u32,
    /// Leave PyTorch out even if it is installed.
    #[arg(long)]
    no_peers: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

impl Demo {
    pub fn run(&self, python: Option<&str>) -> Result<(), Failed> {
        let say = |text: &str| {
            if !self.json {
                report::print(text);
            }
        };
        let made;
        let path: &Path = match &self.path {
            Some(path) => path,
            None => {
                made = tempfile::Builder::new().prefix("sutler-demo-").tempdir()?;
                let started = Instant::now();
                let bar = report::progress(u64::from(self.images), "making pictures");
                let set = PhotoSet { count: self.images, ..PhotoSet::default() };
                set.write(made.path(), &|| bar.inc(1))?;
                bar.finish_and_clear();
                say(&format!(
                    "Made {} photo-like JPEGs in {:.1} s.\n",
                    report::count(u64::from(self.images)),
                    started.elapsed().as_secs_f64()
                ));
                made.path()
            }
        };
        let files = open(path, false)?;
        let samples = u32::try_from(files.listing().len())?;
        let threads = self.job.thread_count();
        say(&format!(
            "{}; {} of the {} pipeline at {} pixels, batches of {}, {}.\n\n",
            report::counted(u64::from(samples), "sample"),
            report::counted(u64::from(self.job.epochs), "epoch"),
            self.job.pipeline.name(),
            self.job.size,
            self.job.batch_size,
            report::counted(threads as u64, "thread")
        ));

        let job = self.job.job(self.job.preparation(&files)?)?;
        let engine = Engine::new(threads)?;
        let mut rates = Vec::new();
        let mut served = 0;
        let bar = report::progress(u64::from(self.job.epochs), "sutler, epochs");
        for epoch in 0..self.job.epochs {
            let started = Instant::now();
            let count = serve_epoch(&engine, &job, samples, self.job.batch_size, epoch)?;
            rates.push(count as f64 / started.elapsed().as_secs_f64());
            served += count;
            bar.inc(1);
        }
        bar.finish_and_clear();
        engine.close();
        let snapshot = job.metrics().snapshot();
        let memory_bytes = job.arena().map_or(0, |arena| arena.range().1 as u64);
        let rate = report::median(&rates);
        let failed = snapshot.failed;

        let peer = match python {
            Some(python) if !self.no_peers => {
                let bar = report::progress(u64::from(self.job.epochs), "PyTorch, epochs");
                let peer = self.run_peer(python, path, threads);
                bar.finish_and_clear();
                peer?
            }
            _ => None,
        };
        if self.json {
            let facts = json!({
                "samples": samples,
                "served": served,
                "failed": failed,
                "threads": threads,
                "per_s": rate,
                "stalls": snapshot.stalls,
                "wait_seconds": snapshot.wait_seconds,
                "seconds": snapshot.seconds,
                "memory_bytes": memory_bytes,
                "peer": peer,
            });
            report::print(&format!("{facts:#}\n"));
            return Ok(());
        }
        report::print(&text(rate, &snapshot, memory_bytes, peer.as_ref()));
        report::print(&format!(
            "\nEvery epoch served each sample once: {} served and {} failed in {} of {}.\n",
            report::count(served),
            report::count(failed),
            report::counted(u64::from(self.job.epochs), "epoch"),
            report::counted(u64::from(samples), "sample")
        ));
        Ok(())
    }

    /// PyTorch's figures for the same data, threads and transforms; `None` where it is not installed.
    fn run_peer(&self, python: &str, path: &Path, workers: usize) -> Result<Option<Value>, Failed> {
        let output = Command::new(python)
            .args(["-m", "sutler._peer"])
            .arg(path)
            .args(["--pipeline", self.job.pipeline.name()])
            .args(["--size", &self.job.size.to_string()])
            .args(["--batch-size", &self.job.batch_size.to_string()])
            .args(["--workers", &workers.to_string()])
            .args(["--epochs", &self.job.epochs.to_string()])
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            return Err(
                "PyTorch's side of the comparison failed; its message is above. --no-peers leaves it out."
                    .into(),
            );
        }
        let facts: Value = serde_json::from_slice(&output.stdout)?;
        Ok((!facts.is_null()).then_some(facts))
    }
}

fn text(rate: f64, snapshot: &Snapshot, memory_bytes: u64, peer: Option<&Value>) -> String {
    let peer_figure = |key: &str| peer.and_then(|peer| peer[key].as_f64());
    let mut rows = vec![vec!["samples per second".to_owned(), format!("{rate:.0}")]];
    if let Some(peer_rate) = peer_figure("per_s") {
        rows[0].push(format!("{peer_rate:.0}"));
        rows[0].push(format!("{:.2}×", rate / peer_rate));
    }
    let share = |seconds: f64| report::percent(seconds / snapshot.seconds.max(1e-9));
    rows.extend([
        vec!["waiting for storage".to_owned(), share(snapshot.stalls.fetch)],
        vec!["waiting for decoding and transforms".to_owned(), share(snapshot.stalls.prep)],
        vec!["waiting for batches to arrive".to_owned(), share(snapshot.stalls.transport)],
        vec!["the consumer's own time".to_owned(), share(snapshot.stalls.trainer)],
        vec!["batch memory".to_owned(), report::bytes(memory_bytes)],
    ]);
    let mut heading = vec!["", "Sutler"];
    if peer.is_some() {
        heading.extend(["PyTorch", "Sutler / PyTorch"]);
    }
    let mut text = report::table(&heading, &rows);
    match peer {
        Some(peer) => {
            text += &format!(
                "\nPyTorch {}: DataLoader, {} workers, torchvision transforms on Pillow images.\n",
                peer["torch"].as_str().unwrap_or("?"),
                peer["workers"]
            );
        }
        None => text += "\nPyTorch is not installed, so there is nothing to compare with.\n",
    }
    text
}
