//! Pipelines of native operations.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sutler_core::{SampleId, SampleRng};
use sutler_media::{DType, OutputSpec, Plan, Size, audio, volume};

/// What a pipeline works on.
pub enum Native {
    /// Pictures.
    Image(Arc<sutler_media::Pipeline>),
    /// Sound.
    Audio(Arc<audio::Pipeline>),
    /// Volumes.
    Volume(Arc<volume::Pipeline>),
}

/// What the samples of a pipeline on volumes are.
#[derive(Clone, Copy)]
pub struct VolumeOutput {
    /// How many channels an image has; labels have one.
    pub channels: usize,
    /// The three axes, where they are the same for every sample.
    pub shape: Option<[usize; 3]>,
}

/// A checked pipeline of native operations.
#[pyclass(frozen)]
pub struct Pipeline {
    pub native: Native,
    /// What it was made from, for whoever has to make it again.
    pub operations: String,
    pub dct_scaling: bool,
}

impl Pipeline {
    /// The same for pictures; raises where it is for something else.
    pub fn image(&self) -> PyResult<&Arc<sutler_media::Pipeline>> {
        match &self.native {
            Native::Image(pipeline) => Ok(pipeline),
            Native::Audio(_) => Err(PyValueError::new_err(
                "this works for datasets of images, and the dataset is one of sound",
            )),
            Native::Volume(_) => Err(PyValueError::new_err(
                "this works for datasets of images, and the dataset is one of volumes",
            )),
        }
    }

    /// What comes out.
    pub fn output(&self) -> OutputSpec {
        match &self.native {
            Native::Image(pipeline) => pipeline.output(),
            Native::Audio(_) | Native::Volume(_) => OutputSpec { dtype: DType::F32, size: None },
        }
    }

    /// What comes out, where it is volumes of so many channels.
    pub fn volumes(&self, channels: usize) -> Option<VolumeOutput> {
        match &self.native {
            Native::Volume(pipeline) => Some(VolumeOutput { channels, shape: pipeline.output() }),
            _ => None,
        }
    }
}

#[pymethods]
impl Pipeline {
    /// Checks operations on sound, given as JSON.
    #[staticmethod]
    fn audio(operations: &str) -> PyResult<Self> {
        let pipeline = audio::Pipeline::from_json(operations)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let native = Native::Audio(Arc::new(pipeline));
        Ok(Self { native, operations: operations.to_owned(), dct_scaling: false })
    }

    /// Checks operations on volumes, given as JSON.
    #[staticmethod]
    fn volume(operations: &str) -> PyResult<Self> {
        let pipeline = volume::Pipeline::from_json(operations)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let native = Native::Volume(Arc::new(pipeline));
        Ok(Self { native, operations: operations.to_owned(), dct_scaling: false })
    }

    /// Checks operations given as JSON.
    #[new]
    #[pyo3(signature = (operations, *, dct_scaling=true))]
    fn new(operations: &str, dct_scaling: bool) -> PyResult<Self> {
        let options = sutler_media::PipelineOptions { dct_scaling };
        let inner = sutler_media::Pipeline::from_json(operations, options)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let native = Native::Image(Arc::new(inner));
        Ok(Self { native, operations: operations.to_owned(), dct_scaling })
    }

    /// `"uint8"` or `"float32"`.
    #[getter]
    fn dtype(&self) -> &'static str {
        match self.output().dtype {
            DType::U8 => "uint8",
            DType::F32 => "float32",
        }
    }

    /// Height and width, where they are the same for every sample.
    #[getter]
    fn size(&self) -> Option<(u32, u32)> {
        self.output().size.map(|[height, width]| (height, width))
    }

    /// The name of an operation that moves pixels in a way that boxes cannot follow, if there is one.
    #[getter]
    fn loses_boxes(&self) -> Option<&'static str> {
        match &self.native {
            Native::Image(pipeline) => pipeline.loses_boxes().map(|(_, name)| name),
            Native::Audio(_) | Native::Volume(_) => None,
        }
    }

    /// How many leading operations draw no random number.
    #[getter]
    fn static_prefix(&self) -> usize {
        match &self.native {
            Native::Image(pipeline) => pipeline.static_prefix(),
            Native::Audio(pipeline) => pipeline.static_prefix(),
            Native::Volume(pipeline) => pipeline.static_prefix(),
        }
    }
}

/// The random decisions that a pipeline makes for a sample of this size, as JSON.
#[pyfunction]
pub fn draw(
    operations: &str,
    width: u32,
    height: u32,
    seed: u64,
    epoch: u32,
    sample: u32,
) -> PyResult<String> {
    let pipeline = Pipeline::new(operations, true)?;
    let pipeline = pipeline.image()?;
    let mut plan = Plan::default();
    let mut rng = SampleRng::new(seed, epoch, SampleId(sample));
    pipeline
        .draw_decoded(Size { width, height }, &mut rng, &mut plan)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(plan.describe(pipeline).to_string())
}
