//! `sutler prepare`: what is done to a dataset once, before training.

use std::path::PathBuf;

use crate::volumes::{Prepared, SettingError, Settings, prepare};
use crate::{Failed, report};

/// How many broken pairs the table names; `--json` names them all.
const BROKEN_SHOWN: usize = 20;

/// Prepare a dataset once, before training
#[derive(clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Prepare {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Volumes(Volumes),
}

/// Resample, clip, normalise and pad volumes and their labels, as MLPerf's 3D-UNet does
///
/// Each pair below SRC (case_x.npy and case_y.npy, imaging.nii.gz and segmentation.nii.gz, or images/ and labels/) becomes NAME_x.npy (float32)
/// and NAME_y.npy (uint8) in DST, of which crops can be read without reading the rest. Files appear when they are complete, with the
/// modification times of their sources. What is there already is left alone unless its source has another time, newer or older, so an interrupted run goes on. Pairs that cannot be prepared are listed, and the exit code is
/// then 1.
#[derive(clap::Args)]
struct Volumes {
    /// The folder below which the volumes lie.
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Where the prepared ones go.
    #[arg(value_name = "DST")]
    destination: PathBuf,
    /// Distances of values along the axes, in millimetres, such as 1,1,1.
    #[arg(long, value_name = "D,H,W", default_value = "1.6,1.2,1.2", value_parser = numbers::<f64, 3>)]
    spacing: [f64; 3],
    /// The least and the largest value that are kept.
    #[arg(long, value_name = "MIN,MAX", default_value = "-79,304", value_parser = numbers::<f64, 2>, allow_hyphen_values = true)]
    clip: [f64; 2],
    /// What is subtracted from values then.
    #[arg(long, default_value_t = 101.0, allow_hyphen_values = true)]
    mean: f64,
    /// What they are divided by then.
    #[arg(long, default_value_t = 76.9)]
    std: f64,
    /// Pad smaller volumes to this shape by repeating their edges.
    #[arg(long, value_name = "D,H,W", default_value = "128,128,128", value_parser = numbers::<usize, 3>)]
    min_shape: [usize; 3],
    /// How many channels each image has.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65535))]
    channels: u32,
    /// Volumes to work on at a time; by default one per usable core. Each takes memory for several copies of its volume.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// `N` numbers with commas between them.
fn numbers<T: std::str::FromStr + Copy, const N: usize>(text: &str) -> Result<[T; N], String> {
    let parts: Option<Vec<T>> = text.split(',').map(|part| part.trim().parse().ok()).collect();
    parts
        .and_then(|parts| <[T; N]>::try_from(parts).ok())
        .ok_or_else(|| format!("{text:?} should be {N} numbers with commas between them"))
}

impl Volumes {
    fn settings(&self) -> Settings {
        Settings {
            spacing: self.spacing,
            clip: self.clip,
            mean: self.mean,
            std: self.std,
            min_shape: self.min_shape,
            channels: self.channels as usize,
        }
    }
}

impl Prepare {
    /// What is wrong with the arguments that only all of them together show.
    pub fn contradiction(&self) -> Option<String> {
        let What::Volumes(volumes) = &self.what;
        let error = volumes.settings().check().err()?;
        let option = format!("--{}", error.setting.replace('_', "-"));
        Some(SettingError { setting: option, ..error }.to_string())
    }

    pub fn run(&self) -> Result<(), Failed> {
        let What::Volumes(volumes) = &self.what;
        let threads = volumes.threads.map_or_else(sutler_engine::usable_cores, |threads| threads as usize);
        let nobody_asks = || false;
        let done =
            prepare(&volumes.source, &volumes.destination, &volumes.settings(), threads, None, &nobody_asks)?;
        report::print(&if volumes.json {
            format!("{:#}\n", serde_json::to_value(&done)?)
        } else {
            text(&done)
        });
        match done.broken.len() {
            0 => Ok(()),
            broken => Err(format!(
                "{broken} of {} volumes could not be prepared. Repair them or take them out, and run this again.",
                done.samples
            )
            .into()),
        }
    }
}

fn text(done: &Prepared) -> String {
    let count = |number: u64| report::count(number);
    let mut text = format!(
        "{} volumes: {} prepared, {} there already, {} broken\n",
        count(done.samples),
        count(done.prepared),
        count(done.unchanged),
        count(done.broken.len() as u64)
    );
    for broken in done.broken.iter().take(BROKEN_SHOWN) {
        text += &format!("  {}: {}\n", broken.path, broken.reason);
    }
    if done.broken.len() > BROKEN_SHOWN {
        text += &format!("  … and {} more; --json lists all.\n", done.broken.len() - BROKEN_SHOWN);
    }
    text
}
