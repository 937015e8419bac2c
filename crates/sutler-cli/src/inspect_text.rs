//! `sutler inspect` for files of text: how many lines there are, how long, and which cannot be read.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use sutler_engine::count_tokens;
use sutler_media::text::{TextError, TextReader, Tokenizer};
use sutler_store::{Lines, LinesOptions, Source, is_json_lines, is_text_file, text_files_in};

use crate::boxes::is_annotation_file;
use crate::dataset::{ListingBar, open_any};
use crate::inspect::{Broken, Spread, broken_listed, none_broken};
use crate::{Failed, report};

/// The longest line that is read, as a loader's default is.
const BYTES_MAX: u64 = 1 << 30;

/// How much of a file is looked at for whether it is a manifest: more than any of its lines may have.
const FIRST_LINE_BYTES_MAX: u64 = 2 << 20;

/// What to look for in files of text.
#[derive(Clone, Debug, clap::Args)]
pub struct TextArguments {
    /// For JSON lines: the field that holds the text.
    #[arg(long, value_name = "NAME")]
    field: Option<String>,
    /// For text: count its tokens, too, by this tokenizer.json.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
}

#[derive(Serialize)]
struct TextFacts {
    files: u64,
    samples: u64,
    bytes: u64,
    line_bytes: Spread,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line_tokens: Option<Spread>,
    fingerprint: String,
    broken: Vec<Broken>,
}

impl TextArguments {
    /// The files of text at a path, if that is what is there rather than images, sound or a manifest.
    pub fn files_at(&self, path: &Path) -> Option<Vec<PathBuf>> {
        let asked = self.field.is_some() || self.tokenizer.is_some();
        if is_annotation_file(path) && !asked {
            return None;
        }
        if path.is_dir() {
            let other = open_any(path, None).is_ok_and(|(files, _)| !files.is_empty());
            return if other { None } else { text_files_in(path).ok() };
        }
        let is_text =
            path.is_file() && is_text_file(path) && (asked || !is_json_lines(path) || !is_manifest(path));
        is_text.then(|| vec![path.to_owned()])
    }

    /// Reads all lines and tells about them.
    pub fn inspect(&self, files: &[PathBuf], threads: usize, json: bool) -> Result<(), Failed> {
        let tokenizer = match &self.tokenizer {
            None => None,
            Some(path) => {
                let description = std::fs::read_to_string(path)
                    .map_err(|error| format!("Cannot read the tokenizer {}: {error}.", path.display()))?;
                let made = Tokenizer::new(&description, false, None);
                Some(Arc::new(made.map_err(|error| format!("{}: {error}.", path.display()))?))
            }
        };
        let all_json = files.iter().all(|file| is_json_lines(file));
        let field = self.field.clone().or_else(|| all_json.then(|| "text".to_owned()));
        let lines = open(files)?;
        let reader = TextReader { field, tokenizer };
        let bar = ListingBar::new(None, "reading");
        let counted = count_tokens(&lines, &reader, threads, &bar, &AtomicBool::new(false));
        bar.finish();
        let counts = || counted.counts.iter().map(|&count| u64::from(count));
        let has_tokens = reader.tokenizer.is_some();
        let facts = TextFacts {
            files: files.len() as u64,
            samples: lines.len() as u64,
            bytes: lines.bytes(),
            line_bytes: Spread::of(lines.line_bytes().map(u64::from).collect()),
            tokens: has_tokens.then(|| counts().sum()),
            line_tokens: has_tokens.then(|| Spread::of(counts().collect())),
            fingerprint: lines.fingerprint().to_string(),
            broken: counted
                .bad
                .into_iter()
                .map(|failure| Broken { path: failure.path, kind: failure.kind, reason: failure.reason })
                .collect(),
        };
        report::print(&if json { format!("{:#}\n", serde_json::to_value(&facts)?) } else { facts.text() });
        none_broken(facts.broken.len(), facts.samples, "line")
    }
}

impl TextFacts {
    fn text(&self) -> String {
        let tokens = self.tokens.map(|tokens| format!("{}, ", report::counted(tokens, "token")));
        let mut text = format!(
            "{} in {}, {}{}\n\n",
            report::counted(self.samples, "line"),
            report::counted(self.files, "file"),
            tokens.unwrap_or_default(),
            report::bytes(self.bytes)
        );
        let mut rows = vec![self.line_bytes.row("bytes in a line", report::count)];
        rows.extend(self.line_tokens.as_ref().map(|tokens| tokens.row("tokens in a line", report::count)));
        text += &report::table(&["", "min", "p50", "p99", "max"], &rows);
        text + &broken_listed(&self.broken, "line")
    }
}

fn open(files: &[PathBuf]) -> Result<Lines, Failed> {
    let bar = ListingBar::new(None, "looking for lines");
    let unpacked = std::env::temp_dir();
    let options = LinesOptions { keep_blank: false, bytes_max: BYTES_MAX, tables: None, unpacked };
    let lines = Lines::open(files, &options, &bar);
    bar.finish();
    Ok(lines?)
}

/// Whether the first line of a file of JSON lines names a file, as those of a manifest do.
fn is_manifest(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return true };
    let lines = BufReader::new(file.take(FIRST_LINE_BYTES_MAX)).split(b'\n').map_while(Result::ok);
    let first = lines.map(|line| line.trim_ascii().to_vec()).find(|line| !line.is_empty());
    let reader = TextReader { field: Some("path".to_owned()), tokenizer: None };
    // Whatever else is wrong, a manifest's errors explain; but none is compressed, and so no text.
    let first = first.unwrap_or_default();
    !matches!(reader.text(&first), Err(TextError::MissingField { .. } | TextError::NotUtf8 { .. }))
}
