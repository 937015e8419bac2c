//! `sutler bench`: what a pipeline reaches, by stage and in all, against the bare loop.

use std::time::Instant;

use serde_json::json;
use sutler_engine::{Engine, ServingOrder, bare_rate};

use crate::dataset::{DatasetPath, JobArguments, open, serve_epoch, shuffled};
use crate::{Failed, report};

/// Measure a pipeline's throughput, by stage and in all, against the bare decode loop
///
/// Epochs through the loader and through the bare loop (the same operations on the same threads and nothing else)
/// alternate in one run, so that their ratio means something on a noisy machine. One of each warms up uncounted.
#[derive(clap::Args)]
pub struct Bench {
    #[command(flatten)]
    dataset: DatasetPath,
    #[command(flatten)]
    job: JobArguments,
    /// How many times to go over the data.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10000))]
    epochs: u32,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub fn run(&self) -> Result<(), Failed> {
        let files = open(&self.dataset.path, false)?;
        let samples = u32::try_from(files.listing().len())?;
        let threads = self.job.thread_count();
        let preparation = self.job.preparation(&files)?;
        let engine = Engine::new(threads)?;

        // Warm up, and find broken samples, which the bare loop does not know how to leave out.
        let job = self.job.job(preparation.clone(), ServingOrder::Strict)?;
        serve_epoch(&engine, &job, samples, self.job.batch_size, 0)?;
        let failures = job.failures();
        if failures.len() == samples as usize {
            let which = if samples == 1 {
                "the only sample cannot be decoded".to_owned()
            } else {
                format!("none of the {samples} samples can be decoded; the first")
            };
            return Err(format!("{which}: {}", failures[0]).into());
        }
        let broken: std::collections::HashSet<_> = failures.iter().map(|failure| failure.sample).collect();

        let job = self.job.job(preparation.clone(), ServingOrder::Strict)?;
        let bar = report::progress(u64::from(self.epochs), "epochs");
        let (mut loader, mut bare) = (Vec::new(), Vec::new());
        for epoch in 1..=self.epochs {
            let started = Instant::now();
            let served = serve_epoch(&engine, &job, samples, self.job.batch_size, epoch)?;
            loader.push(served as f64 / started.elapsed().as_secs_f64());
            let mut order = shuffled(samples, epoch);
            order.retain(|sample| !broken.contains(sample));
            let took = bare_rate(&preparation, &order, epoch, threads)?;
            bare.push(order.len() as f64 / took.as_secs_f64());
            bar.inc(1);
        }
        bar.finish_and_clear();
        engine.close();

        let ratios: Vec<f64> = loader.iter().zip(&bare).map(|(loader, bare)| loader / bare).collect();
        let (loader_per_s, bare_per_s) = (report::median(&loader), report::median(&bare));
        let efficiency = report::median(&ratios);
        let snapshot = job.metrics().snapshot();
        if self.json {
            let stages: serde_json::Map<String, serde_json::Value> = snapshot
                .stages
                .iter()
                .map(|(name, summary)| Ok(((*name).to_owned(), serde_json::to_value(summary)?)))
                .collect::<Result<_, serde_json::Error>>()?;
            let facts = json!({
                "samples": samples,
                "broken": broken.len(),
                "threads": threads,
                "epochs": self.epochs,
                "loader_per_s": loader_per_s,
                "bare_per_s": bare_per_s,
                "efficiency": efficiency,
                "loader_rounds_per_s": loader,
                "bare_rounds_per_s": bare,
                "stages": stages,
                "slow_share": snapshot.slow_share,
            });
            report::print(&format!("{facts:#}\n"));
            return Ok(());
        }
        let mut text = format!(
            "{}, {}, batches of {}, {} each, interleaved\n\n",
            report::counted(u64::from(samples), "sample"),
            report::counted(threads as u64, "thread"),
            self.job.batch_size,
            report::counted(u64::from(self.epochs), "epoch")
        );
        let rows: Vec<Vec<String>> = snapshot
            .stages
            .iter()
            .map(|(name, stage)| {
                let cells = [stage.mean, stage.p50, stage.p99].map(report::seconds);
                [vec![(*name).to_owned()], cells.to_vec()].concat()
            })
            .collect();
        text += &report::table(&["stage, per sample", "mean", "p50", "p99"], &rows);
        text += "\n";
        text += &report::table(
            &["samples per second", "median"],
            &[
                vec!["loader".into(), format!("{loader_per_s:.0}")],
                vec!["bare loop".into(), format!("{bare_per_s:.0}")],
                vec!["loader / bare loop".into(), report::percent(efficiency)],
            ],
        );
        let slow = &snapshot.slow_share;
        if slow.mean > 0.0 {
            text += &format!(
                "\n{} of the samples took longer than {}: they are slow, and order=\"ready\" keeps batches from waiting for them.\n",
                report::percent(slow.mean),
                report::seconds(slow.threshold)
            );
        }
        if !broken.is_empty() {
            text += &format!(
                "\n{} {} broken and left out; `sutler inspect` lists what is.\n",
                report::counted(broken.len() as u64, "sample"),
                if broken.len() == 1 { "was" } else { "were" }
            );
        }
        report::print(&text);
        Ok(())
    }
}
