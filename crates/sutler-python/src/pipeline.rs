//! Image pipelines.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sutler_core::{SampleId, SampleRng};
use sutler_media::{DType, Plan, Size};

/// A checked pipeline of native operations.
#[pyclass(frozen)]
pub struct Pipeline {
    pub inner: Arc<sutler_media::Pipeline>,
    /// What it was made from, for whoever has to make it again.
    pub operations: String,
    pub dct_scaling: bool,
}

#[pymethods]
impl Pipeline {
    /// Checks operations given as JSON.
    #[new]
    #[pyo3(signature = (operations, *, dct_scaling=true))]
    fn new(operations: &str, dct_scaling: bool) -> PyResult<Self> {
        let options = sutler_media::PipelineOptions { dct_scaling };
        let inner = sutler_media::Pipeline::from_json(operations, options)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self { inner: Arc::new(inner), operations: operations.to_owned(), dct_scaling })
    }

    /// `"uint8"` or `"float32"`.
    #[getter]
    fn dtype(&self) -> &'static str {
        match self.inner.output().dtype {
            DType::U8 => "uint8",
            DType::F32 => "float32",
        }
    }

    /// Height and width, where they are the same for every sample.
    #[getter]
    fn size(&self) -> Option<(u32, u32)> {
        self.inner.output().size.map(|[height, width]| (height, width))
    }

    /// How many leading operations draw no random number.
    #[getter]
    fn static_prefix(&self) -> usize {
        self.inner.static_prefix()
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
    let pipeline = Pipeline::new(operations, true)?.inner;
    let mut plan = Plan::default();
    let mut rng = SampleRng::new(seed, epoch, SampleId(sample));
    pipeline
        .draw_decoded(Size { width, height }, &mut rng, &mut plan)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(plan.describe(&pipeline).to_string())
}
