//! Volumes of different scanners made alike: resampled, clipped, normalised, padded, and written so that crops of them can be read.
//!
//! A pair is finished when both of its files are there: each is written under another name and renamed, so what is there is complete.
//! Each carries the modification time of the file it was made from. A source with any other time, an older one included, is
//! another source: `cp -p` and rsync bring their times along. A small file beside them says with which settings they were made, so that
//! a folder never holds two kinds. Whoever finds somebody else at work in a folder, such as all ranks of a job but the first, waits until
//! that one has done.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sutler_core::SampleId;
use sutler_engine::{Failure, read_volume};
use sutler_media::volume::{DIVISOR_RANGE, Kind, Limits, SPACING_RANGE, VALUE_RANGE, Volume, npy_start};
use sutler_media::written;
use sutler_store::{Files, FolderOptions, Io, Listing, Source, StoreError};

use crate::dataset::ListingBar;
use crate::report;

/// The file that says how the others were made.
const SETTINGS_FILE: &str = "sutler-volumes.json";

/// The file that is locked by whoever prepares. Datasets leave out names with a dot in front.
const LOCK_FILE: &str = ".sutler-volumes.lock";

/// A file larger than this is refused, as a loader's default is.
pub(crate) const BYTES_MAX: u64 = 1 << 33;

/// The longest side that padding makes.
const SIDE_MAX: usize = 4096;

/// The most channels: what a header can say.
const CHANNELS_MAX: usize = 65_535;

/// How often somebody may say that it is enough.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// How finely file systems keep times, in nanoseconds: most of them, NTFS, older NFS, exFAT, older ext, FAT.
const TIME_STEPS: [i128; 6] = [1, 100, 1_000, 10_000_000, 1_000_000_000, 2_000_000_000];

/// What is done to each volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Distances of values along the axes, in millimetres.
    pub spacing: [f64; 3],
    /// The least and the largest value that are kept.
    pub clip: [f64; 2],
    /// What is subtracted from values then.
    pub mean: f64,
    /// What they are divided by then.
    pub std: f64,
    /// What smaller volumes are padded to.
    pub min_shape: [usize; 3],
    /// How many channels each image has.
    pub channels: usize,
}

impl std::fmt::Display for Settings {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { spacing, clip, min_shape, channels, .. } = self;
        let [mean, std] = [self.mean, self.std].map(written);
        write!(
            formatter,
            "spacing={spacing:?}, clip={clip:?}, mean={mean}, std={std}, min_shape={min_shape:?}, channels={channels}"
        )
    }
}

impl Settings {
    /// Whether they make sense.
    ///
    /// # Errors
    /// When they do not: which one, and why.
    pub fn check(&self) -> Result<(), SettingError> {
        let within = |range: [f64; 2], value: &f64| *value >= range[0] && *value <= range[1];
        let from = |[least, most]: [f64; 2]| format!("from {} to {}", written(least), written(most));
        let Self { spacing, clip, mean, std, min_shape, channels } = self;
        if !spacing.iter().all(|distance| within(SPACING_RANGE, distance)) {
            let demand = format!("have distances {} millimetres", from(SPACING_RANGE));
            return wrong("spacing", demand, &spacing.map(written));
        }
        if !clip.iter().all(|bound| within(VALUE_RANGE, bound)) {
            return wrong("clip", format!("have bounds {}", from(VALUE_RANGE)), &clip.map(written));
        }
        if clip[0] > clip[1] {
            return wrong(
                "clip",
                "have the lower bound first and then the upper one".to_owned(),
                &clip.map(written),
            );
        }
        if !within(VALUE_RANGE, mean) {
            return wrong("mean", format!("be {}", from(VALUE_RANGE)), &[written(*mean)]);
        }
        if !within(DIVISOR_RANGE, std) {
            return wrong("std", format!("be {}", from(DIVISOR_RANGE)), &[written(*std)]);
        }
        if !min_shape.iter().all(|side| (1..=SIDE_MAX).contains(side)) {
            return wrong(
                "min_shape",
                format!("have sides from 1 to {SIDE_MAX}"),
                &min_shape.map(|side| side.to_string()),
            );
        }
        if !(1..=CHANNELS_MAX).contains(channels) {
            return wrong("channels", format!("be from 1 to {CHANNELS_MAX}"), &[channels.to_string()]);
        }
        Ok(())
    }

    fn apply(&self, volume: &mut Volume) -> Result<(), String> {
        volume.resample(self.spacing)?;
        volume.clip_normalize(self.clip[0], self.clip[1], self.mean, self.std);
        volume.pad_edges(self.min_shape);
        Ok(())
    }
}

/// A setting that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting} should {demand}, but is {found}")]
pub struct SettingError {
    /// Which one, as whoever reads the sentence writes it.
    pub setting: String,
    /// What it should be or have.
    pub demand: String,
    /// What it is, with commas between several numbers.
    pub found: String,
}

fn wrong(setting: &str, demand: String, found: &[String]) -> Result<(), SettingError> {
    Err(SettingError { setting: setting.to_owned(), demand, found: found.join(",") })
}

/// A pair that could not be prepared.
#[derive(Debug, Serialize)]
pub struct BrokenPair {
    /// The image.
    pub path: String,
    /// A short word for what is wrong.
    pub kind: &'static str,
    /// The same as a sentence.
    pub reason: String,
}

/// What became of a folder of volumes.
#[derive(Debug, Default, Serialize)]
pub struct Prepared {
    /// How many pairs there are.
    pub samples: u64,
    /// Those that were prepared now.
    pub prepared: u64,
    /// Those that were there already.
    pub unchanged: u64,
    /// Those that could not be, in order.
    pub broken: Vec<BrokenPair>,
}

/// Why nothing more could be done.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The volumes cannot be listed.
    #[error(transparent)]
    Listing(#[from] StoreError),
    /// The settings make no sense, or not for this folder.
    #[error("{0}")]
    Settings(String),
    /// A file cannot be written.
    #[error("Cannot write {}: {source}. Check that the folder may be written to and that its disk has room.", path.display())]
    Write {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody said that it is enough.
    #[error("The preparation was interrupted; run it again to go on where it was.")]
    Interrupted,
}

/// Prepares all volumes below `source` into `destination`. `progress` shows a bar, by default on a terminal only; `is_enough` is asked now and
/// then, by the thread that called.
///
/// # Errors
/// When the volumes cannot be listed, the settings make no sense, or a file cannot be written.
pub fn prepare(
    source: &Path,
    destination: &Path,
    settings: &Settings,
    threads: usize,
    progress: Option<bool>,
    is_enough: &dyn Fn() -> bool,
) -> Result<Prepared, PrepareError> {
    settings.check().map_err(|error| PrepareError::Settings(error.to_string()))?;
    if is_within(destination, source) {
        return Err(PrepareError::Settings(format!(
            "{} is inside of {}, or is that folder itself, so what is prepared would be taken for scans the next time. Choose a \
             folder beside it.",
            destination.display(),
            source.display()
        )));
    }
    let bar = ListingBar::new(progress, "listing");
    let listing = Listing::volume_folder(source, &FolderOptions::volumes(), &bar);
    bar.finish();
    let files = Files::new(listing?, Io::Buffered, BYTES_MAX);
    let outputs = outputs(files.listing(), destination)?;
    fs::create_dir_all(destination)
        .map_err(|source| PrepareError::Write { path: destination.to_owned(), source })?;
    let _turn = wait_for_turn(destination, is_enough)?;
    claim(destination, settings, &outputs)?;

    let work = Work {
        files: &files,
        outputs: &outputs,
        settings,
        next: AtomicU32::new(0),
        prepared: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        broken: Mutex::default(),
        failed: Mutex::default(),
        bar: report::progress_if(progress, outputs.len() as u64, "preparing"),
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(|| work.run())).collect();
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            if is_enough() {
                work.stop.store(true, Ordering::Relaxed);
            }
            std::thread::park_timeout(ASK_EVERY);
        }
    });
    work.bar.finish_and_clear();
    let stopped = work.stop.into_inner();
    if let Some(error) = into_inner(work.failed) {
        return Err(error);
    }
    if stopped {
        return Err(PrepareError::Interrupted);
    }
    let mut broken = into_inner(work.broken);
    broken.sort_by_key(|(sample, _)| *sample);
    let (samples, prepared) = (outputs.len() as u64, work.prepared.into_inner());
    Ok(Prepared {
        samples,
        prepared,
        unchanged: samples - prepared - broken.len() as u64,
        broken: broken.into_iter().map(|(_, broken)| broken).collect(),
    })
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Image and labels of a finished pair.
type Output = [PathBuf; 2];

/// Where each sample goes.
fn outputs(listing: &Listing, destination: &Path) -> Result<Vec<Output>, PrepareError> {
    let mut named = std::collections::HashMap::new();
    let mut outputs = Vec::with_capacity(listing.len());
    for entry in listing.iter() {
        let name = listing.pair_name(entry.id);
        if let Some(other) = named.insert(name.clone(), entry.id) {
            return Err(PrepareError::Settings(format!(
                "{} and {} would both become {name}. Rename one of them.",
                listing.path(other).display(),
                listing.path(entry.id).display()
            )));
        }
        outputs.push(["x", "y"].map(|part| destination.join(format!("{name}_{part}.npy"))));
    }
    Ok(outputs)
}

/// Whether a folder, which need not be there yet, is another one or below it.
fn is_within(folder: &Path, other: &Path) -> bool {
    let Ok(other) = fs::canonicalize(other) else { return false };
    let Ok(folder) = std::path::absolute(folder) else { return false };
    let there = folder.ancestors().find_map(|above| fs::canonicalize(above).ok());
    there.is_some_and(|found| found.starts_with(&other))
}

/// Waits until nobody else prepares into the folder. Where nothing can be locked, as in a folder that may only be read, there is nobody to
/// wait for, as far as can be known.
fn wait_for_turn(destination: &Path, is_enough: &dyn Fn() -> bool) -> Result<Option<fs::File>, PrepareError> {
    let Ok(file) =
        fs::File::options().write(true).create(true).truncate(false).open(destination.join(LOCK_FILE))
    else {
        return Ok(None);
    };
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(fs::TryLockError::Error(_)) => return Ok(None),
            Err(fs::TryLockError::WouldBlock) if is_enough() => return Err(PrepareError::Interrupted),
            Err(fs::TryLockError::WouldBlock) => std::thread::sleep(ASK_EVERY),
        }
    }
}

/// Finds that what is in the folder was made with the same settings, or writes down that it is going to be.
fn claim(destination: &Path, settings: &Settings, outputs: &[Output]) -> Result<(), PrepareError> {
    let path = destination.join(SETTINGS_FILE);
    match fs::read(&path) {
        Ok(text) => {
            let found: Result<Settings, _> = serde_json::from_slice(&text);
            if found.as_ref().ok() == Some(settings) {
                return Ok(());
            }
            let found = found.map_or_else(|_| "nobody knows what".to_owned(), |found| found.to_string());
            Err(PrepareError::Settings(format!(
                "{} holds volumes that were prepared with {found}, and not with {settings}. Choose another folder, or \
                 delete this one.",
                destination.display()
            )))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(there) = outputs.iter().flatten().find(|path| path.exists()) {
                return Err(PrepareError::Settings(format!(
                    "{} is there already, and nothing says how it was made. Choose another folder, or move it away.",
                    there.display()
                )));
            }
            let text = serde_json::to_vec_pretty(settings).map_err(io::Error::from);
            text.and_then(|text| write(&path, |file| file.write_all(&text)))
                .map_err(|source| PrepareError::Write { path, source })
        }
        Err(source) => Err(StoreError::Read { path, source }.into()),
    }
}

/// Writes a file that is there as a whole or not at all.
fn write(path: &Path, fill: impl FnOnce(&mut fs::File) -> io::Result<()>) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default();
    // Datasets leave out names with a dot in front; one that a crash leaves behind is overwritten by the next run.
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(".part");
    let hidden = path.with_file_name(hidden);
    let written = fs::File::create(&hidden).and_then(|mut file| {
        fill(&mut file)?;
        // A name that leads to nothing after a power cut would count as finished.
        file.sync_all()
    });
    let moved = written.and_then(|()| fs::rename(&hidden, path));
    if moved.is_err() {
        let _ = fs::remove_file(&hidden);
    }
    moved
}

/// When a file was last changed, in nanoseconds.
fn changed_at(path: &Path) -> Option<i128> {
    let file = fs::metadata(path).ok()?;
    Some(i128::from(file.mtime()) * 1_000_000_000 + i128::from(file.mtime_nsec()))
}

/// Whether one file carries the time of another, as finely as its file system keeps it.
fn carries_time(made: i128, source: i128) -> bool {
    TIME_STEPS.iter().any(|step| source.div_euclid(*step) * step == made)
}

struct Work<'a> {
    files: &'a Files,
    outputs: &'a [Output],
    settings: &'a Settings,
    /// The next sample that nobody has taken.
    next: AtomicU32,
    prepared: AtomicU64,
    /// Somebody has failed for good, or said that it is enough.
    stop: AtomicBool,
    broken: Mutex<Vec<(SampleId, BrokenPair)>>,
    failed: Mutex<Option<PrepareError>>,
    bar: indicatif::ProgressBar,
}

impl Work<'_> {
    fn run(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let sample = SampleId(self.next.fetch_add(1, Ordering::Relaxed));
            let Some(output) = self.outputs.get(sample.index()) else { return };
            match self.one(sample, output) {
                Ok(Ok(())) => {}
                Ok(Err(Failure { path, kind, reason, .. })) => {
                    let broken = (sample, BrokenPair { path, kind, reason });
                    self.broken.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(broken);
                }
                Err(error) => {
                    *self.failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
                    self.stop.store(true, Ordering::Relaxed);
                }
            }
            self.bar.inc(1);
        }
    }

    fn one(&self, sample: SampleId, output: &Output) -> Result<Result<(), Failure>, PrepareError> {
        if self.is_finished(sample, output) {
            return Ok(Ok(()));
        }
        // Looked at before the files are read: what is changed in the meantime is prepared anew the next time.
        let times =
            self.sources(sample).map(|path| fs::metadata(path?).and_then(|file| file.modified()).ok());
        let limits = Limits::default();
        let made =
            read_volume(self.files, sample, limits, Some(self.settings.channels)).and_then(|mut volume| {
                self.settings.apply(&mut volume).map_err(|reason| {
                    Failure::new(sample, self.files.describe(sample), "transform", reason)
                })?;
                Ok(volume)
            });
        let volume = match made {
            Ok(volume) => volume,
            Err(failure) => return Ok(Err(failure)),
        };
        let (image_bytes, label_bytes) = volume.bytes();
        let (mut image, mut label) = (vec![0; image_bytes], vec![0; label_bytes]);
        volume.write(&mut image, &mut label);
        let files = [(volume.channels, Kind::F32, image), (1, Kind::U8, label)];
        // The image comes last: labels are resampled as the header of the image says, so they must not be those of an earlier image once
        // the time of the image says that all is done.
        for ((path, time), (channels, kind, values)) in output.iter().zip(times).zip(files).rev() {
            write(path, |file| {
                file.write_all(&npy_start(channels, volume.shape, kind))?;
                file.write_all(&values)?;
                // Where times cannot be set, the pair is prepared anew the next time, and what was written is good all the same.
                let _ = time.map(|time: SystemTime| file.set_modified(time));
                Ok(())
            })
            .map_err(|source| PrepareError::Write { path: path.clone(), source })?;
        }
        self.prepared.fetch_add(1, Ordering::Relaxed);
        Ok(Ok(()))
    }

    /// Where the image and the labels of a sample are.
    fn sources(&self, sample: SampleId) -> [Option<PathBuf>; 2] {
        let listing = self.files.listing();
        [Some(listing.path(sample)), listing.partners().map(|labels| labels.path(sample))]
    }

    /// Whether both files are there, and each was made from its source as that is now.
    fn is_finished(&self, sample: SampleId, output: &Output) -> bool {
        self.sources(sample).iter().zip(output).all(|(source, output)| {
            let times = source.as_deref().and_then(changed_at).zip(changed_at(output));
            times.is_some_and(|(source, made)| carries_time(made, source))
        })
    }
}

#[cfg(test)]
mod tests {
    use sutler_media::volume::{Op, Pipeline};

    use super::*;

    const GOOD: Settings = Settings {
        spacing: [1.6, 1.2, 1.2],
        clip: [-79.0, 304.0],
        mean: 101.0,
        std: 76.9,
        min_shape: [128; 3],
        channels: 1,
    };

    #[test]
    fn what_makes_no_sense_is_told_by_its_name() {
        let told = |settings: Settings| settings.check().unwrap_err().to_string();
        for (settings, sentence) in [
            (
                Settings { spacing: [0.0, 1.5, 1.0], ..GOOD },
                "spacing should have distances from 0.001 to 1000 millimetres, but is 0,1.5,1",
            ),
            (
                Settings { clip: [3.0, 1.0], ..GOOD },
                "clip should have the lower bound first and then the upper one, but is 3,1",
            ),
            (
                Settings { clip: [-1e31, 1.0], ..GOOD },
                "clip should have bounds from -1e30 to 1e30, but is -1e31,1",
            ),
            (Settings { mean: f64::NAN, ..GOOD }, "mean should be from -1e30 to 1e30, but is NaN"),
            (Settings { std: 0.0, ..GOOD }, "std should be from 1e-30 to 1e30, but is 0"),
            (
                Settings { min_shape: [0, 1, 5000], ..GOOD },
                "min_shape should have sides from 1 to 4096, but is 0,1,5000",
            ),
            (Settings { channels: 0, ..GOOD }, "channels should be from 1 to 65535, but is 0"),
        ] {
            assert_eq!(told(settings), sentence);
        }
    }

    #[test]
    fn what_makes_sense_is_what_the_transforms_take() {
        let numbers = [0.0, 1e-31, 1e-30, 1e-4, 1e-3, 1.0, 1e3, 1e4, 1e30, 1e31, f64::INFINITY, f64::NAN];
        let both = || numbers.into_iter().chain(numbers.map(|number| -number));
        let takes = |Settings { spacing, clip: [min, max], mean, std, .. }: &Settings| {
            let clip = Op::ClipNormalize { min: *min, max: *max, mean: *mean, std: *std };
            Pipeline::new(vec![Op::Resample { spacing: *spacing }, clip]).is_ok()
        };
        let pairs = both().flat_map(|one| both().map(move |other| [one, other]));
        let all = pairs.map(|clip| Settings { clip, ..GOOD }).chain(both().flat_map(|number| {
            [
                Settings { spacing: [1.0, number, 1.0], ..GOOD },
                Settings { mean: number, ..GOOD },
                Settings { std: number, ..GOOD },
            ]
        }));
        for settings in all {
            assert_eq!(settings.check().is_ok(), takes(&settings), "{settings}");
        }
    }

    #[test]
    fn a_time_may_be_kept_less_finely_than_that_of_the_source() {
        let source = 1_700_000_001_234_567_891;
        for kept in [source, 1_700_000_001_234_567_800, 1_700_000_001_000_000_000, 1_700_000_000_000_000_000]
        {
            assert!(carries_time(kept, source), "{kept}");
        }
        for other in [source + 1, source - 1, 1_700_000_002_000_000_000, 1_699_999_998_000_000_000] {
            assert!(!carries_time(other, source), "{other}");
        }
        assert!(carries_time(-1_500_000_000, -1_500_000_000), "a file from before 1970");
    }
}
