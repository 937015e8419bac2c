//! Files of text and their tokens.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sutler_core::{Draw, Fingerprint, FingerprintBuilder, Packing, SampleId};
use sutler_engine::{
    BlockFormat, Failure, LinePreparation, OwnSample, PackedPreparation, Padding, Planes, Preparation,
    SampleRecord, Target, TokenCounts, count_tokens,
};
use sutler_media::text::TextReader;
use sutler_store::cache::Cache;
use sutler_store::{Lines, LinesOptions, Progress, ReadBuffer, SavedTables, Silent, Source};

use crate::array::Array;
use crate::dataset::{PythonProgress, listing_error};
use crate::errors::sample_error;
use crate::run::SIGNAL_CHECK;

/// Makes tokens of text, as a `tokenizer.json` describes.
#[pyclass(frozen)]
pub struct Tokenizer {
    inner: Arc<sutler_media::text::Tokenizer>,
}

#[pymethods]
impl Tokenizer {
    #[new]
    #[pyo3(signature = (json, *, add_special_tokens, max_length=None))]
    fn new(
        py: Python<'_>,
        json: &str,
        add_special_tokens: bool,
        max_length: Option<usize>,
    ) -> PyResult<Self> {
        py.detach(|| sutler_media::text::Tokenizer::new(json, add_special_tokens, max_length))
            .map(|inner| Self { inner: Arc::new(inner) })
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// The number of a token, if there is such a token.
    fn id(&self, token: &str) -> Option<u32> {
        self.inner.id(token)
    }

    /// The token of a number, if there is such a number.
    fn token(&self, number: u32) -> Option<String> {
        self.inner.token(number)
    }

    /// How many tokens there are.
    #[getter]
    fn vocabulary(&self) -> usize {
        self.inner.vocabulary()
    }

    /// The token that the description pads with.
    #[getter]
    fn padding(&self) -> Option<u32> {
        self.inner.padding()
    }

    /// The tokens of a text.
    fn tokens(&self, text: &str) -> PyResult<Vec<u32>> {
        self.inner.tokens(text).map_err(|error| PyValueError::new_err(error.to_string()))
    }
}

/// How lines become blocks.
#[derive(Clone)]
struct Packed {
    packing: Packing,
    format: BlockFormat,
}

/// The lines of some files, or blocks of them.
#[pyclass(frozen)]
pub struct Text {
    lines: Arc<Lines>,
    reader: TextReader,
    packed: Option<Packed>,
    tables: SavedTables,
    fingerprint: Fingerprint,
    /// The lines that were left out.
    bad: Vec<Failure>,
    /// Why something could not be kept for next time.
    not_saved: Option<String>,
}

fn listener(progress: Option<Py<PyAny>>) -> Box<dyn Progress> {
    match progress {
        None => Box::new(Silent),
        Some(callback) => Box::new(PythonProgress::new(callback)),
    }
}

impl Text {
    /// How many samples there are; files with more than an id can name are refused.
    pub fn samples(&self) -> u32 {
        match &self.packed {
            Some(packed) => packed.packing.blocks(),
            None => u32::try_from(self.lines.len()).unwrap_or(u32::MAX),
        }
    }

    /// What a worker does to them.
    pub fn preparation(
        &self,
        shuffle: Option<u64>,
        padding: Option<Padding>,
        cache: Option<Arc<Cache>>,
    ) -> Arc<dyn Preparation> {
        let source: Arc<dyn Source> = self.lines.clone();
        let reader = self.reader.clone();
        match self.packed.clone() {
            None => Arc::new(LinePreparation { source, reader, padding, cache }),
            Some(Packed { packing, format }) => {
                Arc::new(PackedPreparation::new(source, reader, packing, format, shuffle, cache))
            }
        }
    }

    /// What the number of tokens of each line depends on.
    fn counts_name(&self) -> Fingerprint {
        let mut name = FingerprintBuilder::default();
        name.add("counts").add(self.lines.fingerprint().0.to_le_bytes());
        name.add(self.reader.field.as_deref().unwrap_or_default())
            .add([u8::from(self.reader.field.is_some())]);
        if let Some(tokenizer) = &self.reader.tokenizer {
            name.add(tokenizer.fingerprint().0.to_le_bytes());
        }
        name.finish()
    }

    /// Counts the tokens of all lines, unless that was done before; Ctrl-C ends it. Also tells why the counts could not be kept.
    fn count(
        &self,
        py: Python<'_>,
        threads: usize,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(TokenCounts, Option<String>)> {
        let name = self.counts_name();
        let known = py.detach(|| self.tables.load_counts(name));
        if let Some(counts) = known.filter(|counts| counts.len() == self.lines.len()) {
            return Ok((TokenCounts { counts, bad: Vec::new() }, None));
        }
        let progress = listener(progress);
        let cancelled = AtomicBool::new(false);
        let counted = std::thread::scope(|scope| {
            let work = || count_tokens(&*self.lines, &self.reader, threads, &*progress, &cancelled);
            let counting = scope.spawn(work);
            let mut interrupted = Ok(());
            while !counting.is_finished() {
                if interrupted.is_ok() {
                    interrupted = py.check_signals();
                    cancelled.store(interrupted.is_err(), Ordering::Relaxed);
                }
                py.detach(|| std::thread::park_timeout(SIGNAL_CHECK / 10));
            }
            let counted = counting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            interrupted.map(|()| counted)
        })?;
        // Lines that are bad are to be told of every time.
        let saved = if counted.bad.is_empty() {
            py.detach(|| self.tables.save_counts(name, &counted.counts))
        } else {
            Ok(())
        };
        Ok((counted, saved.err().map(|error| self.unsaved(&error))))
    }

    fn unsaved(&self, error: &std::io::Error) -> String {
        format!("{}: {error}", self.tables.folder().display())
    }
}

#[pymethods]
impl Text {
    /// Opens files and finds their lines.
    #[staticmethod]
    #[pyo3(signature = (paths, *, field, tokenizer, keep_blank, bytes_max, cache_folder, progress))]
    #[allow(clippy::too_many_arguments)] // one call per dataset, by keyword
    fn open(
        py: Python<'_>,
        paths: Vec<PathBuf>,
        field: Option<String>,
        tokenizer: Option<&Tokenizer>,
        keep_blank: bool,
        bytes_max: u64,
        cache_folder: PathBuf,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let tables = SavedTables::new(&cache_folder);
        let unpacked = cache_folder;
        let options = LinesOptions { keep_blank, bytes_max, tables: Some(tables.clone()), unpacked };
        let progress = listener(progress);
        let lines =
            py.detach(|| Lines::open(&paths, &options, &*progress)).map_err(|error| listing_error(&error))?;
        let tokenizer = tokenizer.map(|tokenizer| Arc::clone(&tokenizer.inner));
        let not_saved = lines.not_saved().map(|error| format!("{}: {error}", tables.folder().display()));
        let mut text = Self {
            lines: Arc::new(lines),
            reader: TextReader { field, tokenizer },
            packed: None,
            tables,
            fingerprint: Fingerprint(0),
            bad: Vec::new(),
            not_saved,
        };
        text.fingerprint = text.counts_name();
        Ok(text)
    }

    /// The same lines in blocks of `length` tokens, each line closed by the token `end`. The last block is filled up with `padding`, or left out without
    /// it. Raises for the first line that cannot be read, unless such are to be left out. A line without tokens leaves nothing, unless
    /// such are to be closed as well.
    #[pyo3(signature = (length, *, end, padding, documents, positions, skip_bad, close_empty, threads, progress))]
    #[allow(clippy::too_many_arguments)] // one call per dataset, by keyword
    fn pack(
        &self,
        py: Python<'_>,
        length: u32,
        end: u32,
        padding: Option<i64>,
        documents: bool,
        positions: bool,
        skip_bad: bool,
        close_empty: bool,
        threads: usize,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let (TokenCounts { mut counts, bad }, not_saved) = self.count(py, threads, progress)?;
        if let (false, Some(failure)) = (skip_bad, bad.first()) {
            return Err(sample_error(py, failure));
        }
        // The token at the end. Lines that cannot be read are in order, have no tokens either, and are never closed.
        let mut unread = bad.iter().map(|failure| failure.sample.index()).peekable();
        for (line, count) in counts.iter_mut().enumerate() {
            let is_read = unread.next_if_eq(&line).is_none();
            *count += u32::from(*count > 0 || (close_empty && is_read));
        }
        let packing = Packing::new(counts.into(), length, padding.is_some())
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let planes = Planes { documents, positions };
        let fingerprint = FingerprintBuilder::default()
            .add(self.fingerprint.0.to_le_bytes())
            .add(length.to_le_bytes())
            .add(end.to_le_bytes())
            .add(padding.unwrap_or(i64::MIN).to_le_bytes())
            .add([u8::from(skip_bad) | u8::from(close_empty) << 1])
            .finish();
        Ok(Self {
            lines: Arc::clone(&self.lines),
            reader: self.reader.clone(),
            packed: Some(Packed {
                packing,
                format: BlockFormat { planes, end, padding: padding.unwrap_or_default() },
            }),
            tables: self.tables.clone(),
            fingerprint,
            bad,
            not_saved: not_saved.or_else(|| self.not_saved.clone()),
        })
    }

    /// How many tokens each line has.
    fn token_counts(
        &self,
        py: Python<'_>,
        threads: usize,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<u32>> {
        self.count(py, threads, progress).map(|(counted, _)| counted.counts)
    }

    fn __len__(&self) -> usize {
        self.samples() as usize
    }

    /// How many lines there are, also where they are packed.
    #[getter]
    fn lines(&self) -> usize {
        self.lines.len()
    }

    /// How many tokens all blocks have, where lines are packed.
    #[getter]
    fn total_tokens(&self) -> Option<u64> {
        self.packed.as_ref().map(|packed| packed.packing.total())
    }

    /// The files, in order.
    #[getter]
    fn files(&self) -> Vec<PathBuf> {
        self.lines.files().map(PathBuf::from).collect()
    }

    #[getter]
    fn fingerprint(&self) -> String {
        self.fingerprint.to_string()
    }

    /// Why something could not be kept for next time.
    #[getter]
    fn not_saved(&self) -> Option<&str> {
        self.not_saved.as_deref()
    }

    /// The lines that were left out when packing: number, path, kind, reason.
    fn bad_lines(&self) -> Vec<(u32, String, &'static str, String)> {
        let told = |f: &Failure| (f.sample.0, f.path.clone(), f.kind, f.reason.clone());
        self.bad.iter().map(told).collect()
    }

    /// Where a sample comes from.
    fn path(&self, index: u32) -> String {
        self.preparation(None, None, None).describe(SampleId(index))
    }

    /// How many bytes each line takes in its file.
    fn line_bytes(&self) -> Vec<u32> {
        self.lines.line_bytes().collect()
    }

    /// The text of a line.
    fn text(&self, py: Python<'_>, line: u32) -> PyResult<String> {
        let id = SampleId(line);
        let failure = |kind, reason| Failure::new(id, self.lines.describe(id), kind, reason);
        py.detach(|| {
            let mut buffer = ReadBuffer::default();
            let read = self.lines.read(id, &mut buffer);
            let bytes = read.map_err(|error| failure(error.kind(), error.to_string()))?;
            let text = self.reader.text(bytes).map(std::borrow::Cow::into_owned);
            text.map_err(|error| failure(error.kind(), error.to_string()))
        })
        .map_err(|failure: Failure| sample_error(py, &failure))
    }

    /// A sample's tokens, as a loader that does not shuffle would deliver them: `[tokens]`, or `[planes, tokens]` where a block tells more.
    fn load(&self, py: Python<'_>, index: u32) -> PyResult<Array> {
        let preparation = self.preparation(None, None, None);
        let prepared = py.detach(|| {
            let mut sample = OwnSample::default();
            let mut record = SampleRecord::start();
            let mut preparer = preparation.preparer();
            preparer
                .prepare(SampleId(index), Draw::first(0), &mut Target::Own(&mut sample), &mut record)
                .map(|()| sample)
        });
        prepared.map(Array::tokens).map_err(|failure| sample_error(py, &failure))
    }
}

/// The files of text anywhere below a folder.
#[pyfunction]
pub fn text_files_in(folder: PathBuf) -> PyResult<Vec<PathBuf>> {
    sutler_store::text_files_in(&folder).map_err(|error| listing_error(&error))
}

/// Whether a file has a JSON object on each line by its name.
#[pyfunction]
pub fn is_json_lines(path: PathBuf) -> bool {
    sutler_store::is_json_lines(&path)
}
