//! `sutler demo`: the main job in one go. Two training jobs at once, fed from one engine that prepares each sample once for both.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use sutler_core::Policy;
use sutler_engine::{Counts, Engine, ImagePreparation, Job, Pool, ServingOrder, Snapshot, Stalls};
use sutler_service::pool_here;
use sutler_store::Files;
use sutler_store::cache::{Backing, Cache, CacheFigures, CacheOptions};

use crate::dataset::{JobArguments, open, serve_epoch};
use crate::photos::PhotoSet;
use crate::{Failed, report};

/// How many jobs are fed.
const JOBS: usize = 2;

/// By how many batches a sample may come later than those begun after it: a loader's default.
const LATENESS: u32 = 8;

/// The window where prepared samples wait for the other job, in batches. A loader has two batches ahead, so that one of two jobs may be two batches before
/// the other at any time; twice as much is enough for both to wander.
const WINDOW_BATCHES: u64 = 4;

/// Feed two training jobs at once from one engine, with generated photos if no dataset is given, and show what they got, beside PyTorch where that is installed
#[derive(clap::Args)]
pub struct Demo {
    /// A folder with one folder per class, or a manifest. Without it photo-like pictures are made.
    path: Option<PathBuf>,
    #[command(flatten)]
    job: JobArguments,
    /// How many times each job goes over the data.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10000))]
    epochs: u32,
    /// Memory for samples that are kept from one epoch to the next.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = crate::plan::size)]
    memory: u64,
    /// How many pictures to make where no dataset is given.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    images: u32,
    /// Leave PyTorch out even if it is installed.
    #[arg(long)]
    no_peers: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// What two jobs got, and what that took.
struct Fed {
    /// How many samples came, by job.
    served: Vec<u64>,
    snapshots: Vec<Snapshot>,
    /// From the first request to the last batch of the last job.
    seconds: f64,
    cache: CacheFigures,
    window_bytes: u64,
    batch_bytes: u64,
}

impl Fed {
    fn counts(&self) -> Counts {
        self.snapshots.iter().fold(Counts::default(), |all, each| all.plus(each.counts()))
    }

    fn per_s(&self) -> f64 {
        self.served.iter().sum::<u64>() as f64 / self.seconds.max(1e-9)
    }

    fn failed(&self) -> u64 {
        self.snapshots.iter().map(|each| each.failed).sum()
    }

    /// The times of both together.
    fn stalls(&self) -> Stalls {
        self.snapshots.iter().fold(Stalls::default(), |all, each| Stalls {
            fetch: all.fetch + each.stalls.fetch,
            prep: all.prep + each.stalls.prep,
            transport: all.transport + each.stalls.transport,
            trainer: all.trainer + each.stalls.trainer,
        })
    }
}

/// PyTorch's side.
enum Peer {
    Measured(Value),
    /// There is none, for this reason.
    Absent(String),
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
                let classes = PhotoSet::default().classes.min(self.images);
                let set = PhotoSet { count: self.images, classes, ..PhotoSet::default() };
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
            "{}; two jobs at once, each {} of the {} pipeline at {} pixels in batches of {}; {}.\n\n",
            report::counted(u64::from(samples), "sample"),
            report::counted(u64::from(self.epochs), "epoch"),
            self.job.pipeline.name(),
            self.job.size,
            self.job.batch_size,
            report::counted(threads as u64, "thread")
        ));
        let fed = self.feed(&files, samples)?;
        let peer = match python {
            _ if self.no_peers => None,
            Some(python) => Some(self.run_peer(python, path)?),
            None => Some(Peer::Absent("no Python runs this command".to_owned())),
        };
        if self.json {
            let facts = self.facts(samples, &fed, peer.as_ref());
            report::print(&format!("{facts:#}\n"));
        } else {
            report::print(&self.text(samples, &fed, peer.as_ref()));
        }
        Ok(())
    }

    /// Feeds the jobs, each from a thread of its own.
    fn feed(&self, files: &Arc<Files>, samples: u32) -> Result<Fed, Failed> {
        let cache = Arc::new(Cache::new(&CacheOptions {
            budget_bytes: self.memory,
            samples: samples as usize,
            split: [100, 0],
            policy: Policy::Pinned,
            seed: 0,
            backing: Backing::Private,
        })?);
        let engine = Engine::new(self.job.thread_count())?;
        let jobs = self.jobs(files, samples, &cache)?;
        let bar = report::progress(u64::from(self.epochs) * JOBS as u64, "sutler, epochs");
        let started = Instant::now();
        let served: Vec<Result<u64, Failed>> = std::thread::scope(|scope| {
            let consumers: Vec<_> = jobs
                .iter()
                .map(|job| {
                    let (engine, bar) = (&engine, &bar);
                    scope.spawn(move || {
                        (0..self.epochs).try_fold(0, |served, epoch| {
                            let count = serve_epoch(engine, job, samples, self.job.batch_size, epoch)?;
                            bar.inc(1);
                            Ok(served + count)
                        })
                    })
                })
                .collect();
            let ended = |_| Err("a job's thread ended before its time; please report this.".into());
            consumers.into_iter().map(|consumer| consumer.join().unwrap_or_else(ended)).collect()
        });
        let seconds = started.elapsed().as_secs_f64();
        bar.finish_and_clear();
        engine.close();
        Ok(Fed {
            served: served.into_iter().collect::<Result<_, _>>()?,
            snapshots: jobs.iter().map(|job| job.metrics().snapshot()).collect(),
            seconds,
            cache: cache.figures(),
            window_bytes: jobs[0].pool().map_or(0, |pool| pool.window_bytes()),
            batch_bytes: jobs.iter().filter_map(|job| Some(job.arena()?.range().1 as u64)).sum(),
        })
    }

    /// Jobs that differ in their random numbers only, as those of a search do.
    fn jobs(&self, files: &Arc<Files>, samples: u32, cache: &Arc<Cache>) -> Result<Vec<Arc<Job>>, Failed> {
        let sample_bytes = u64::from(self.job.size).pow(2) * 3 * size_of::<f32>() as u64;
        let pool: Arc<Pool> =
            pool_here(samples, WINDOW_BATCHES * u64::from(self.job.batch_size) * sample_bytes);
        (0..JOBS)
            .map(|seed| {
                let cache = Some(Arc::clone(cache));
                let preparation =
                    ImagePreparation { seed: seed as u64, cache, ..self.job.preparation(files)? };
                let job = self.job.job(preparation, ServingOrder::Shared { lateness: LATENESS })?;
                Ok(job.sharing(Arc::clone(&pool), pool.new_job()))
            })
            .collect()
    }

    /// PyTorch's figures for the same data, jobs and transforms, with as many worker processes in all as there are threads here.
    fn run_peer(&self, python: &str, path: &Path) -> Result<Peer, Failed> {
        let bar = report::progress(1, "PyTorch");
        let output = Command::new(python)
            .args(["-m", "sutler._peer"])
            .arg(path)
            .args(["--jobs", &JOBS.to_string()])
            .args(["--pipeline", self.job.pipeline.name()])
            .args(["--size", &self.job.size.to_string()])
            .args(["--batch-size", &self.job.batch_size.to_string()])
            .args(["--workers", &self.job.thread_count().to_string()])
            .args(["--epochs", &self.epochs.to_string()])
            .stderr(Stdio::inherit())
            .output();
        bar.finish_and_clear();
        let output = output?;
        if !output.status.success() {
            return Err(
                "PyTorch's side of the comparison failed; its message is above. --no-peers leaves it out."
                    .into(),
            );
        }
        let facts: Value = serde_json::from_slice(&output.stdout)?;
        Ok(match facts["absent"].as_str() {
            Some(reason) => Peer::Absent(reason.to_owned()),
            None => Peer::Measured(facts),
        })
    }

    fn facts(&self, samples: u32, fed: &Fed, peer: Option<&Peer>) -> Value {
        let counts = fed.counts();
        let jobs: Vec<Value> = fed
            .snapshots
            .iter()
            .zip(&fed.served)
            .map(|(snapshot, served)| {
                json!({
                    "per_s": *served as f64 / snapshot.seconds.max(1e-9),
                    "samples": served,
                    "failed": snapshot.failed,
                    "seconds": snapshot.seconds,
                    "wait_seconds": snapshot.wait_seconds,
                    "stalls": snapshot.stalls,
                    "served": snapshot.served,
                    "storage_reads": snapshot.fetched,
                })
            })
            .collect();
        json!({
            "samples": samples,
            "served": fed.served.iter().sum::<u64>(),
            "failed": fed.failed(),
            "threads": self.job.thread_count(),
            "epochs": self.epochs,
            "per_s": fed.per_s(),
            "wall_seconds": fed.seconds,
            "jobs": jobs,
            "stalls": fed.stalls(),
            "wait_seconds": fed.snapshots.iter().map(|each| each.wait_seconds).sum::<f64>(),
            "seconds": fed.snapshots.iter().map(|each| each.seconds).sum::<f64>(),
            "served_from": counts.served,
            "storage_reads": counts.fetched,
            "cache": fed.cache,
            "window_bytes": fed.window_bytes,
            "memory_bytes": fed.batch_bytes,
            "peer": match peer {
                Some(Peer::Measured(facts)) => facts.clone(),
                _ => Value::Null,
            },
        })
    }

    fn text(&self, samples: u32, fed: &Fed, peer: Option<&Peer>) -> String {
        let mut heading = vec!["", "job 1", "job 2", "together"];
        let mut rate = vec!["samples per second".to_owned()];
        rate.extend(
            fed.snapshots
                .iter()
                .zip(&fed.served)
                .map(|(snapshot, served)| format!("{:.0}", *served as f64 / snapshot.seconds.max(1e-9))),
        );
        rate.push(format!("{:.0}", fed.per_s()));
        if let Some(Peer::Measured(peer)) = peer
            && let Some(peer_rate) = peer["per_s"].as_f64()
        {
            heading.extend(["PyTorch", "Sutler / PyTorch"]);
            rate.extend([format!("{peer_rate:.0}"), format!("{:.2}×", fed.per_s() / peer_rate)]);
        }
        let mut rows = vec![rate];
        let line = |name: &str, of: &dyn Fn(&Stalls) -> f64| -> Vec<String> {
            let seconds = fed.snapshots.iter().map(|each| each.seconds).sum::<f64>();
            let each = fed.snapshots.iter().map(|each| of(&each.stalls) / each.seconds.max(1e-9));
            let shares = each.chain([of(&fed.stalls()) / seconds.max(1e-9)]);
            std::iter::once(name.to_owned()).chain(shares.map(report::percent)).collect()
        };
        rows.extend([
            line("waiting for storage", &|stalls| stalls.fetch),
            line("waiting for decoding and transforms", &|stalls| stalls.prep),
            line("waiting for batches to arrive", &|stalls| stalls.transport),
            line("the trainer's own time", &|stalls| stalls.trainer),
        ]);
        let found = |name: &str, of: &dyn Fn(&Counts) -> u64| -> Vec<String> {
            let counts = fed.snapshots.iter().map(Snapshot::counts).chain([fed.counts()]);
            std::iter::once(name.to_owned()).chain(counts.map(|each| report::count(of(&each)))).collect()
        };
        rows.extend([
            found("samples read from storage", &|counts| counts.served.storage),
            found("… from the cache", &|counts| counts.served.encoded + counts.served.decoded),
            found("… that the other job had prepared", &|counts| counts.served.augmented),
        ]);
        let mut text = report::table(&heading, &rows);
        text += &format!(
            "\nIn the cache: {} of {} samples, {} of {}. Batches take {}, and samples on their way to the other job at most {}.\n",
            report::count(fed.cache.encoded.entries),
            report::count(u64::from(samples)),
            report::bytes(fed.cache.used_bytes),
            report::bytes(fed.cache.budget_bytes),
            report::bytes(fed.batch_bytes),
            report::bytes(fed.window_bytes),
        );
        match peer {
            Some(Peer::Measured(peer)) => {
                text += &format!(
                    "PyTorch {}: two processes at once, DataLoader with {} each, torchvision transforms on Pillow images.\n",
                    peer["torch"].as_str().unwrap_or("?"),
                    report::counted(peer["workers"].as_u64().unwrap_or(0), "worker")
                );
            }
            Some(Peer::Absent(reason)) => {
                text += &format!("There is nothing to compare with: {reason}.\n");
            }
            None => {}
        }
        text += &format!(
            "Every epoch of each job served each sample once: {} served and {} failed in 2 × {} epochs of {} samples.\n",
            report::count(fed.served.iter().sum()),
            report::count(fed.failed()),
            self.epochs,
            report::count(u64::from(samples))
        );
        text
    }
}
