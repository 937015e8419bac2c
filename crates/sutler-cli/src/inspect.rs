//! `sutler inspect`: what is in a dataset.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::Serialize;
use sutler_core::SampleId;
use sutler_engine::read_volume;
use sutler_media::{
    DecodeError, Decoder, Format, Limits, Pixels, Rect, Request, Scale, audio, probe, volume,
};
use sutler_store::{Files, ReadBuffer, Source, StoreError};

use crate::boxes::BoxFacts;
use crate::dataset::{Content, DatasetPath, open_any};
use crate::inspect_text::TextArguments;
use crate::{Failed, report};

/// How many broken files the table names; `--json` names them all.
const BROKEN_SHOWN: usize = 20;

/// The most values a clip may have, as a loader's default is.
const VALUES_MAX: u64 = 1 << 28;

/// What tells the format of a volume.
const FORMAT_BYTES: usize = 16;

/// Show what is in a dataset: counts, sizes, formats, broken files
///
/// Images and sound lie in one folder per class, volumes in pairs with their labels. Every file is read and decoded in full, as what its
/// name says (image, sound or volume; which format it is, its content tells), so a file that is not listed as broken can be served. Files of text, and folders of nothing else, are read line by line. PATH may
/// also be a COCO annotation file (.json): then its boxes and categories are counted, and pictures compared with what it says of them.
///
/// The exit code is 0 where nothing is broken, and 1 where something is, or where there is nothing to inspect.
#[derive(clap::Args)]
pub struct Inspect {
    #[command(flatten)]
    dataset: DatasetPath,
    #[command(flatten)]
    text: TextArguments,
    /// The folder that holds the pictures of a COCO annotation file; by default where they are most likely.
    #[arg(long, value_name = "FOLDER")]
    images: Option<PathBuf>,
    /// Threads to decode with; by default one per usable core.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
pub struct Broken {
    pub path: String,
    pub kind: &'static str,
    pub reason: String,
}

/// What one file turned out to be.
struct Finding {
    bytes: u64,
    /// Format, width and height, where there is a header.
    image: Option<(&'static str, u32, u32)>,
    /// Format and length in milliseconds, where it is sound that was decoded.
    sound: Option<(&'static str, u64)>,
    /// Format and the three axes, where it is a volume that was read with its labels.
    volume: Option<(&'static str, [u64; 3])>,
    warned: bool,
    /// The extension belongs to another format.
    misnamed: bool,
}

impl Finding {
    /// Depth, height or width.
    fn side(&self, axis: usize) -> Option<u64> {
        let image = self.image.map(|(_, width, height)| [0, u64::from(height), u64::from(width)]);
        image.or(self.volume.map(|(_, shape)| shape)).map(|shape| shape[axis])
    }
}

#[derive(Default)]
struct Findings {
    found: Vec<Finding>,
    broken: Vec<(SampleId, Broken)>,
}

impl Inspect {
    pub fn run(&self) -> Result<(), Failed> {
        let threads = self.threads.map_or_else(sutler_engine::usable_cores, |threads| threads as usize);
        if self.images.is_none()
            && let Some(files) = self.text.files_at(&self.dataset.path)
        {
            return self.text.inspect(&files, threads, self.json);
        }
        let (files, content) = open_any(&self.dataset.path, self.images.as_deref())?;
        let mut findings = examine(&files, content, threads)?;
        findings.broken.sort_by_key(|(sample, _)| *sample);
        let broken: Vec<Broken> = findings.broken.into_iter().map(|(_, broken)| broken).collect();
        let found = findings.found;

        let mut formats: BTreeMap<&str, u64> = BTreeMap::new();
        let images = found.iter().filter_map(|finding| finding.image.map(|(format, _, _)| format));
        let sounds = found.iter().filter_map(|finding| finding.sound.map(|(format, _)| format));
        let volumes = found.iter().filter_map(|finding| finding.volume.map(|(format, _)| format));
        for format in images.chain(sounds).chain(volumes) {
            *formats.entry(format).or_default() += 1;
        }
        let (has_volumes, has_sound) = (content == Content::Volumes, content == Content::Sound);
        let bytes: u64 = found.iter().map(|finding| finding.bytes).sum();
        let spread =
            |value: fn(&Finding) -> Option<u64>| Spread::of(found.iter().filter_map(value).collect());
        let facts = Facts {
            samples: found.len() as u64,
            classes: files.listing().classes().len() as u64,
            bytes,
            file_bytes: spread(|finding| Some(finding.bytes)),
            depth: has_volumes.then(|| spread(|finding| finding.side(0))),
            width: spread(|finding| finding.side(2)),
            height: spread(|finding| finding.side(1)),
            milliseconds: has_sound.then(|| spread(|finding| finding.sound.map(|(_, length)| length))),
            formats,
            misnamed: found.iter().filter(|finding| finding.misnamed).count() as u64,
            warned: found.iter().filter(|finding| finding.warned).count() as u64,
            fingerprint: files.fingerprint().to_string(),
            boxes: files.annotations().map(|annotations| BoxFacts::of(annotations)),
            broken,
        };
        report::print(&if self.json {
            format!("{:#}\n", serde_json::to_value(&facts)?)
        } else {
            facts.text()
        });
        none_broken(facts.broken.len(), facts.samples, "file")
    }
}

#[derive(Serialize)]
pub struct Spread {
    min: u64,
    p50: u64,
    p99: u64,
    max: u64,
}

impl Spread {
    pub fn of(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        let at = |share: f64| {
            // The nearest rank: of two values the larger one is the 99th percentile.
            let rank = (values.len() as f64 * share).ceil().max(1.0) as usize - 1;
            values.get(rank).copied().unwrap_or(0)
        };
        Self { min: at(0.0), p50: at(0.5), p99: at(0.99), max: at(1.0) }
    }

    /// A row of a table.
    pub fn row(&self, name: &str, show: fn(u64) -> String) -> Vec<String> {
        vec![name.to_owned(), show(self.min), show(self.p50), show(self.p99), show(self.max)]
    }
}

#[derive(Serialize)]
struct Facts {
    samples: u64,
    classes: u64,
    bytes: u64,
    file_bytes: Spread,
    #[serde(skip_serializing_if = "Option::is_none")]
    depth: Option<Spread>,
    width: Spread,
    height: Spread,
    #[serde(skip_serializing_if = "Option::is_none")]
    milliseconds: Option<Spread>,
    formats: BTreeMap<&'static str, u64>,
    misnamed: u64,
    warned: u64,
    fingerprint: String,
    /// What is on the pictures, where an annotation file says so.
    #[serde(flatten)]
    boxes: Option<BoxFacts>,
    broken: Vec<Broken>,
}

impl Facts {
    fn text(&self) -> String {
        let bytes = report::bytes(self.bytes);
        let mut text = match self.depth {
            Some(_) => format!("{} with labels, {bytes}\n\n", report::counted(self.samples, "volume")),
            None => format!(
                "{} in {} {}, {bytes}\n\n",
                report::counted(self.samples, "sample"),
                report::count(self.classes),
                if self.classes == 1 { "class" } else { "classes" },
            ),
        };
        if let Some(boxes) = &self.boxes {
            text += &boxes.text();
        }
        let mut rows = vec![self.file_bytes.row("file size", report::bytes)];
        rows.extend(self.depth.as_ref().map(|depth| depth.row("depth", report::count)));
        match &self.milliseconds {
            Some(length) => rows.push(length.row("milliseconds", report::count)),
            None => rows
                .extend([self.width.row("width", report::count), self.height.row("height", report::count)]),
        }
        text += &report::table(&["", "min", "p50", "p99", "max"], &rows);
        text += "\n";
        let formats: Vec<Vec<String>> = self
            .formats
            .iter()
            .map(|(format, files)| vec![(*format).to_owned(), report::count(*files)])
            .collect();
        text += &report::table(&["format", "files"], &formats);
        if self.misnamed > 0 {
            text += &format!(
                "\nNamed with the extension of another format, and decoded by content: {}.\n",
                report::counted(self.misnamed, "file")
            );
        }
        if self.warned > 0 {
            text += &format!(
                "\nWith damaged data that the decoder could work around, as Pillow does: {}.\n",
                report::counted(self.warned, "file")
            );
        }
        text + &broken_listed(&self.broken, "file")
    }
}

/// What to say of broken samples, which are files or something else.
pub fn broken_listed(broken: &[Broken], noun: &str) -> String {
    if broken.is_empty() {
        return format!("\nNo {noun} is broken.\n");
    }
    let are = if broken.len() == 1 { "is" } else { "are" };
    let mut text = format!("\n{} {are} broken:\n", report::counted(broken.len() as u64, noun));
    for broken in broken.iter().take(BROKEN_SHOWN) {
        text += &format!("  {}: {}\n", broken.path, broken.reason);
    }
    if broken.len() > BROKEN_SHOWN {
        text += &format!("  … and {} more; --json lists all.\n", broken.len() - BROKEN_SHOWN);
    }
    text
}

/// What the command comes to: a script that asks whether a dataset is sound looks at the exit code.
pub fn none_broken(broken: usize, samples: u64, noun: &str) -> Result<(), Failed> {
    let are = match broken {
        0 => return Ok(()),
        1 => "is",
        _ => "are",
    };
    let text = format!(
        "{} of {} {are} broken. Repair or remove what is; a loader leaves it out with errors=\"skip\".",
        report::count(broken as u64),
        report::counted(samples, noun)
    );
    Err(text.into())
}

fn examine(files: &Files, content: Content, threads: usize) -> Result<Findings, Failed> {
    let samples = u32::try_from(files.len())?;
    let next = AtomicU32::new(0);
    let all = Mutex::new(Findings::default());
    let bar = report::progress(u64::from(samples), "decoding");
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut examiner = Examiner {
                    buffer: ReadBuffer::default(),
                    decoder: Decoder::new(Limits::default()),
                    pixels: Pixels::default(),
                    sound: audio::Worker::new(audio::Limits { values_max: VALUES_MAX }, false),
                };
                let mut mine = Findings::default();
                loop {
                    let sample = SampleId(next.fetch_add(1, Ordering::Relaxed));
                    if sample.0 >= samples {
                        break;
                    }
                    let (finding, broken) = examiner.examine(files, content, sample);
                    mine.found.push(finding);
                    mine.broken.extend(broken.map(|broken| (sample, broken)));
                    bar.inc(1);
                }
                let mut all = all.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                all.found.append(&mut mine.found);
                all.broken.append(&mut mine.broken);
            });
        }
    });
    bar.finish_and_clear();
    Ok(all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// Whether a file is named as files of its format usually are.
fn has_extension_of(path: &str, format: Format) -> bool {
    let extension = path.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    match format {
        Format::Jpeg => matches!(extension.as_str(), "jpg" | "jpeg" | "jpe" | "jfif"),
        Format::Tiff => matches!(extension.as_str(), "tif" | "tiff"),
        Format::Pnm => matches!(extension.as_str(), "pbm" | "pgm" | "ppm" | "pnm"),
        other => extension == other.name(),
    }
}

struct Examiner {
    buffer: ReadBuffer,
    decoder: Decoder,
    pixels: Pixels,
    sound: audio::Worker,
}

impl Examiner {
    fn examine(&mut self, files: &Files, content: Content, sample: SampleId) -> (Finding, Option<Broken>) {
        let path = files.describe(sample);
        let mut finding =
            Finding { bytes: 0, image: None, sound: None, volume: None, warned: false, misnamed: false };
        let decoded = match content {
            Content::Images => self.picture(files, sample, &path, &mut finding),
            Content::Sound => self.clip(files, sample, &path, &mut finding),
            Content::Volumes => self.volume(files, sample, &path, &mut finding),
        };
        (finding, decoded.err().map(|(kind, reason)| Broken { path, kind, reason }))
    }

    fn clip(&mut self, files: &Files, sample: SampleId, path: &str, finding: &mut Finding) -> Examined {
        let bytes = files.read(sample, &mut self.buffer).map_err(unreadable)?;
        finding.bytes = bytes.len() as u64;
        let format = audio::sniff(bytes);
        let clip = self.sound.decode(bytes).map_err(|error| (error.kind(), error.to_string()))?;
        let length = clip.frames() as u64 * 1000 / u64::from(clip.rate.max(1));
        finding.sound = format.map(|format| (format.name(), length));
        let extension = path.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
        finding.misnamed = format.is_some_and(|format| {
            extension != format.name() && !(format == audio::Format::Ogg && extension == "oga")
        });
        Ok(())
    }

    fn picture(&mut self, files: &Files, sample: SampleId, path: &str, finding: &mut Finding) -> Examined {
        let bytes = files.read(sample, &mut self.buffer).map_err(unreadable)?;
        finding.bytes = bytes.len() as u64;
        let undecodable = |error: DecodeError| (error.kind(), error.to_string());
        let header = probe(bytes, &Limits::default()).map_err(undecodable)?;
        finding.image = Some((header.format.name(), header.width, header.height));
        finding.misnamed = !has_extension_of(path, header.format);
        if let Some(annotations) = files.annotations() {
            let picture = annotations.picture(sample);
            picture.check(header.width, header.height).map_err(|reason| ("annotation", reason))?;
        }
        let request = Request { region: Rect::whole(header.width, header.height), scale: Scale::Full };
        let decoded = self.decoder.decode(bytes, &header, &request, &mut self.pixels).map_err(undecodable)?;
        finding.warned = decoded.warnings > 0;
        Ok(())
    }

    fn volume(&mut self, files: &Files, sample: SampleId, path: &str, finding: &mut Finding) -> Examined {
        let labels = files.partners();
        let bytes = [files.encoded_bytes(sample), labels.and_then(|labels| labels.encoded_bytes(sample))];
        finding.bytes = bytes.into_iter().flatten().sum();
        let found = read_volume(files, sample, volume::Limits::default(), None)
            .map_err(|failure| (failure.kind, failure.reason))?;
        let (start, _) = files.read_start(sample, FORMAT_BYTES, &mut self.buffer).map_err(unreadable)?;
        let format = volume::sniff(start).map_err(|error| (error.kind(), error.to_string()))?.name();
        finding.misnamed = !path.to_ascii_lowercase().ends_with(&format!(".{format}"));
        finding.volume = Some((format, found.shape.map(|side| side as u64)));
        Ok(())
    }
}

/// Nothing, or why a file is broken: a word and a sentence.
type Examined = Result<(), (&'static str, String)>;

fn unreadable(error: StoreError) -> (&'static str, String) {
    (error.kind(), error.to_string())
}
