//! Listings of samples, and single samples.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pyo3::exceptions::{
    PyFileNotFoundError, PyNotADirectoryError, PyOSError, PyPermissionError, PyValueError,
};
use pyo3::prelude::*;
use sutler_core::{Draw, Fingerprint, SampleId};
use sutler_engine::{
    AudioPreparation, DetectionPreparation, ImagePreparation, OwnSample, Preparation, SampleRecord, Target,
    audio_headers, take_boxes,
};
use sutler_media::{Layout, Limits, audio};
use sutler_service::spec::{DatasetSpec, ListingSpec, MediaSpec};
use sutler_store::{
    ByteRate, Files, Io, LeftOut, Progress, ReadBuffer, Silent, Source, StoreError, Throttled,
};

use crate::array::Array;
use crate::detection::{Targets, no_boxes, targets};
use crate::errors::sample_error;
use crate::pipeline::{Native, Pipeline, VolumeOutput};

/// A listing of samples and the way to read them.
#[pyclass(frozen)]
pub struct Dataset {
    files: Arc<Files>,
    /// How fast it may be read, where that is limited.
    rate: Option<Arc<ByteRate>>,
    fingerprint: Fingerprint,
    spec: DatasetSpec,
}

/// The exception a user expects for what went wrong with a listing.
pub fn listing_error(error: &StoreError) -> PyErr {
    let text = error.to_string();
    match error.kind() {
        "missing" | "no_classes" | "empty_classes" | "no_pairs" => PyFileNotFoundError::new_err(text),
        "not_a_folder" => PyNotADirectoryError::new_err(text),
        "denied" => PyPermissionError::new_err(text),
        "manifest" | "too_many_samples" | "scheme" | "two_of_a_kind" | "compressed" | "too_large" => {
            PyValueError::new_err(text)
        }
        _ => PyOSError::new_err(text),
    }
}

/// Calls a Python function a few times a second with the number of files listed so far, or of whatever else is counted.
pub struct PythonProgress {
    callback: Py<PyAny>,
    files: AtomicU64,
    /// When the function was last called. Whoever finds it locked leaves the call to the one who holds it.
    called: Mutex<Instant>,
}

impl PythonProgress {
    /// Often enough to look alive, seldom enough to cost nothing.
    const INTERVAL: Duration = Duration::from_millis(100);

    pub fn new(callback: Py<PyAny>) -> Self {
        Self { callback, files: AtomicU64::new(0), called: Mutex::new(Instant::now()) }
    }
}

impl Progress for PythonProgress {
    fn listed(&self, files: u64) {
        let files = self.files.fetch_add(files, Ordering::Relaxed) + files;
        let Ok(mut called) = self.called.try_lock() else { return };
        if called.elapsed() < Self::INTERVAL {
            return;
        }
        *called = Instant::now();
        Python::attach(|py| {
            // A progress display must not end a listing.
            if let Err(error) = self.callback.call1(py, (files,)) {
                error.write_unraisable(py, None);
            }
        });
    }
}

fn other_media() -> PyErr {
    PyValueError::new_err(
        "images, sound and volumes each have pipelines of their own; this dataset was given another's",
    )
}

/// Whether files are read past the page cache.
fn parse_io(io: &str) -> PyResult<bool> {
    match io {
        "buffered" => Ok(false),
        "direct" => Ok(true),
        other => Err(PyValueError::new_err(format!("io should be 'buffered' or 'direct', got {other:?}"))),
    }
}

impl Dataset {
    fn list(py: Python<'_>, spec: DatasetSpec, progress: Option<Py<PyAny>>) -> PyResult<Self> {
        py.detach(|| {
            let listing = match progress {
                None => spec.list(&Silent),
                Some(callback) => spec.list(&PythonProgress::new(callback)),
            }?;
            let fingerprint = listing.fingerprint();
            Ok(Self { files: Arc::new(spec.files(listing)), rate: None, fingerprint, spec })
        })
        .map_err(|error: StoreError| listing_error(&error))
    }

    /// The listing, as a loader that is left alone by its agent needs it.
    pub fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// What another process needs to list the same samples.
    pub fn spec(&self) -> &DatasetSpec {
        &self.spec
    }

    /// The hash of the listing.
    pub fn listed(&self) -> Fingerprint {
        self.fingerprint
    }

    /// How many samples there are; listings are refused when that is more than an id can name.
    pub fn samples(&self) -> u32 {
        u32::try_from(self.files.len()).unwrap_or(u32::MAX)
    }

    fn source(&self, files: Arc<Files>) -> Arc<dyn Source> {
        match &self.rate {
            None => files,
            Some(rate) => Arc::new(Throttled::new(files, Arc::clone(rate))),
        }
    }

    /// Where the samples are read from.
    pub fn samples_source(&self) -> Arc<dyn Source> {
        self.source(Arc::clone(&self.files))
    }

    /// The same samples, read past the page cache.
    pub fn direct(&self) -> Arc<dyn Source> {
        let listing = Arc::clone(self.files.listing());
        self.source(Arc::new(Files::new(listing, Io::Direct, self.spec.bytes_max)))
    }

    /// What a worker does to the images of this dataset; raises where it has none.
    pub fn images(&self, pipeline: &Pipeline, layout: Layout, seed: u64) -> PyResult<ImagePreparation> {
        let MediaSpec::Image { pixels_max } = self.spec.media else { return Err(other_media()) };
        let source = self.samples_source();
        let limits = Limits { pixels_max, bytes_max: self.spec.bytes_max };
        let pipeline = Arc::clone(pipeline.image()?);
        Ok(ImagePreparation { source, pipeline, layout, limits, seed, cache: None, sizes: Arc::default() })
    }

    /// What a worker does to the samples of this dataset.
    pub fn preparation(&self, pipeline: &Pipeline, seed: u64) -> PyResult<Box<dyn Preparation>> {
        Ok(match (&pipeline.native, self.spec.media) {
            (Native::Image(_), MediaSpec::Image { .. }) => {
                let images = self.images(pipeline, Layout::Nchw, seed)?;
                let detection = DetectionPreparation::of(&images, None)
                    .map_err(|error| PyValueError::new_err(error.to_string()))?;
                match detection {
                    Some(detection) => Box::new(detection),
                    None => Box::new(images),
                }
            }
            (Native::Audio(operations), MediaSpec::Audio { values_max, mono, .. }) => {
                Box::new(AudioPreparation {
                    source: self.samples_source(),
                    pipeline: Arc::clone(operations),
                    limits: audio::Limits { values_max },
                    mono,
                    seed,
                    padding: None,
                    cache: None,
                })
            }
            (Native::Volume(operations), MediaSpec::Volume { .. }) => {
                let pipeline = Arc::clone(operations);
                let prepared = self.spec.volumes(self.samples_source(), pipeline, seed);
                Box::new(prepared.map_err(PyValueError::new_err)?)
            }
            _ => return Err(other_media()),
        })
    }

    /// What a pipeline makes of the volumes of this dataset, where it holds such.
    pub fn volumes_of(&self, pipeline: &Pipeline) -> Option<VolumeOutput> {
        match self.spec.media {
            MediaSpec::Volume { channels, .. } => pipeline.volumes(channels),
            _ => None,
        }
    }

    /// One sample, prepared as a loader would.
    fn prepare(
        &self,
        py: Python<'_>,
        index: u32,
        pipeline: &Pipeline,
        seed: u64,
        draw: Draw,
    ) -> PyResult<OwnSample> {
        let preparation = self.preparation(pipeline, seed)?;
        let prepared = py.detach(|| {
            let mut sample = OwnSample::default();
            let mut record = SampleRecord::start();
            let mut preparer = preparation.preparer();
            preparer
                .prepare(SampleId(index), draw, &mut Target::Own(&mut sample), &mut record)
                .map(|()| sample)
        });
        prepared.map_err(|failure| sample_error(py, &failure))
    }
}

#[pymethods]
impl Dataset {
    /// Lists one folder per class.
    #[staticmethod]
    #[allow(clippy::too_many_arguments)] // one call per dataset, by keyword
    #[pyo3(signature = (root, *, extensions, allow_empty, io, pixels_max, bytes_max, progress))]
    fn image_folder(
        py: Python<'_>,
        root: PathBuf,
        extensions: Option<Vec<String>>,
        allow_empty: bool,
        io: &str,
        pixels_max: u64,
        bytes_max: u64,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let listing = ListingSpec::ImageFolder { root, extensions, allow_empty };
        let media = MediaSpec::Image { pixels_max };
        let spec = DatasetSpec { listing, direct: parse_io(io)?, media, bytes_max };
        Self::list(py, spec, progress)
    }

    /// Lists one folder of sound files per class.
    #[staticmethod]
    #[allow(clippy::too_many_arguments)] // one call per dataset, by keyword
    #[pyo3(signature = (root, *, extensions, allow_empty, io, mono, seconds_max, values_max, bytes_max, progress))]
    fn audio_folder(
        py: Python<'_>,
        root: PathBuf,
        extensions: Option<Vec<String>>,
        allow_empty: bool,
        io: &str,
        mono: bool,
        seconds_max: Option<f64>,
        values_max: u64,
        bytes_max: u64,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let listing = ListingSpec::ImageFolder { root, extensions, allow_empty };
        let media = MediaSpec::Audio { values_max, mono, seconds_max };
        let spec = DatasetSpec { listing, direct: parse_io(io)?, media, bytes_max };
        Self::list(py, spec, progress)
    }

    /// What the headers of all sound files say: values in each channel (0 where that is not known), sample rate, channels;
    /// `None` for files that cannot be read.
    fn audio_headers(&self, py: Python<'_>, threads: usize) -> Vec<Option<(u64, u32, u16)>> {
        let headers = py.detach(|| audio_headers(&*self.samples_source(), threads));
        let fields = |header: audio::Header| (header.frames.unwrap_or(0), header.rate, header.channels);
        headers.into_iter().map(|header| header.map(fields)).collect()
    }

    /// Lists the pictures of a COCO annotation file.
    #[staticmethod]
    #[pyo3(signature = (path, *, root, contiguous, keep_empty, keep_crowds, refuse_empty_boxes, io, pixels_max, bytes_max, progress))]
    #[allow(clippy::too_many_arguments)] // one call per dataset, by keyword
    fn coco(
        py: Python<'_>,
        path: PathBuf,
        root: PathBuf,
        contiguous: bool,
        keep_empty: bool,
        keep_crowds: bool,
        refuse_empty_boxes: bool,
        io: &str,
        pixels_max: u64,
        bytes_max: u64,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let listing =
            ListingSpec::Coco { path, root, contiguous, keep_empty, keep_crowds, refuse_empty_boxes };
        let media = MediaSpec::Image { pixels_max };
        let spec = DatasetSpec { listing, direct: parse_io(io)?, media, bytes_max };
        Self::list(py, spec, progress)
    }

    /// Lists volumes and their labels.
    #[staticmethod]
    #[pyo3(signature = (root, *, extensions, channels, values_max, bytes_max, progress))]
    fn volume_folder(
        py: Python<'_>,
        root: PathBuf,
        extensions: Option<Vec<String>>,
        channels: usize,
        values_max: u64,
        bytes_max: u64,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let listing = ListingSpec::VolumeFolder { root, extensions };
        let media = MediaSpec::Volume { values_max, channels };
        Self::list(py, DatasetSpec { listing, direct: false, media, bytes_max }, progress)
    }

    /// Where the labels of a volume are; `None` in a dataset of anything else.
    fn labels_path(&self, index: u32) -> Option<OsString> {
        self.files.listing().partners().map(|labels| labels.path(SampleId(index)).into_os_string())
    }

    /// Lists the rows of a manifest.
    #[staticmethod]
    #[pyo3(signature = (path, *, columns, root, io, pixels_max, bytes_max, progress))]
    #[allow(clippy::too_many_arguments)] // one call per dataset, by keyword
    fn manifest(
        py: Python<'_>,
        path: PathBuf,
        columns: Option<Vec<String>>,
        root: Option<PathBuf>,
        io: &str,
        pixels_max: u64,
        bytes_max: u64,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let listing = ListingSpec::Manifest { path, columns, root };
        let media = MediaSpec::Image { pixels_max };
        let spec = DatasetSpec { listing, direct: parse_io(io)?, media, bytes_max };
        Self::list(py, spec, progress)
    }

    /// The same dataset on storage that delivers no more than so many bytes per second.
    fn throttled(&self, bytes_per_s: f64) -> PyResult<Self> {
        let rate = ByteRate::new(bytes_per_s).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self {
            files: Arc::clone(&self.files),
            rate: Some(Arc::new(rate)),
            fingerprint: self.fingerprint,
            spec: self.spec.clone(),
        })
    }

    /// Changes the rate of a throttled dataset, for everybody who reads from it.
    fn set_rate(&self, bytes_per_s: f64) -> PyResult<()> {
        let Some(rate) = &self.rate else {
            return Err(PyValueError::new_err("this dataset has no rate to change; make it with throttled"));
        };
        rate.set(bytes_per_s).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    fn __len__(&self) -> usize {
        self.files.len()
    }

    #[getter]
    fn classes(&self) -> Vec<String> {
        self.files.listing().classes().to_vec()
    }

    #[getter]
    fn fingerprint(&self) -> String {
        self.fingerprint.to_string()
    }

    /// Where a sample is: a string, as torchvision has it, with undecodable bytes escaped as `os.fsdecode` does.
    fn path(&self, index: u32) -> OsString {
        self.files.listing().path(SampleId(index)).into_os_string()
    }

    /// A sample's label.
    fn label(&self, index: u32) -> i64 {
        self.files.label(SampleId(index))
    }

    /// Every sample's label.
    fn labels(&self) -> Vec<i64> {
        (0..self.samples()).map(|index| self.files.label(SampleId(index))).collect()
    }

    /// One picture and its boxes, prepared as a loader would.
    #[pyo3(signature = (index, pipeline, *, seed, epoch, repeat = 0))]
    fn load_detection(
        &self,
        py: Python<'_>,
        index: u32,
        pipeline: &Pipeline,
        seed: u64,
        epoch: u32,
        repeat: u32,
    ) -> PyResult<(Array, Targets)> {
        let annotations = self.files.listing().annotations().ok_or_else(no_boxes)?;
        let mut sample = self.prepare(py, index, pipeline, seed, Draw { epoch, repeat })?;
        let dtype = pipeline.output().dtype;
        let boxes = take_boxes(&mut sample, dtype.size());
        let size = [sample.shape[0], sample.shape[1]];
        let targets = targets(annotations, &[SampleId(index)], &[size], &[boxes]);
        Ok((Array::image(sample, dtype, Layout::Nchw), targets))
    }

    /// The label and the name of every category, in the order of their ids; nothing where pictures have no boxes.
    #[getter]
    fn categories(&self) -> Vec<(i64, String)> {
        let categories = self.files.listing().annotations().map_or(&[][..], |all| all.categories());
        categories.iter().map(|category| (category.label, category.name.clone())).collect()
    }

    /// The id, width and height of every picture as the annotations have them; nothing where pictures have no boxes.
    #[getter]
    fn pictures(&self) -> Vec<(i64, u32, u32)> {
        let pictures = self.files.listing().annotations().map_or(&[][..], |all| all.pictures());
        pictures.iter().map(|picture| (picture.id, picture.width, picture.height)).collect()
    }

    /// How many boxes there are, and how many of what was left out: boxes without area, crowds, annotations of
    /// pictures that are not listed, pictures without boxes.
    #[getter]
    fn box_counts(&self) -> (usize, u64, u64, u64, u64) {
        self.files.listing().annotations().map_or_else(Default::default, |all| {
            let LeftOut { empty_boxes, crowds, strays, pictures } = all.left_out();
            (all.boxes(), empty_boxes, crowds, strays, pictures)
        })
    }

    /// The encoded bytes of a sample.
    fn read(&self, py: Python<'_>, index: u32) -> PyResult<Vec<u8>> {
        py.detach(|| {
            let mut buffer = ReadBuffer::default();
            self.files.read(SampleId(index), &mut buffer).map(<[u8]>::to_vec)
        })
        .map_err(|error| listing_error(&error))
    }

    /// One sample, prepared as a loader would.
    #[pyo3(signature = (index, pipeline, *, seed, epoch, repeat = 0))]
    fn load(
        &self,
        py: Python<'_>,
        index: u32,
        pipeline: &Pipeline,
        seed: u64,
        epoch: u32,
        repeat: u32,
    ) -> PyResult<Array> {
        let sample = self.prepare(py, index, pipeline, seed, Draw { epoch, repeat })?;
        Ok(match pipeline.native {
            Native::Image(_) => Array::image(sample, pipeline.output().dtype, Layout::Nchw),
            Native::Audio(_) | Native::Volume(_) => Array::floats(sample),
        })
    }

    /// One volume and its labels, prepared as a loader would.
    #[pyo3(signature = (index, pipeline, *, seed, epoch, repeat = 0))]
    fn load_volume(
        &self,
        py: Python<'_>,
        index: u32,
        pipeline: &Pipeline,
        seed: u64,
        epoch: u32,
        repeat: u32,
    ) -> PyResult<(Array, Array)> {
        let volumes = self.volumes_of(pipeline).ok_or_else(other_media)?;
        Ok(Array::volume(self.prepare(py, index, pipeline, seed, Draw { epoch, repeat })?, volumes.channels))
    }
}
