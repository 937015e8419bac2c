//! Finished batches.

use std::sync::Arc;

use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use sutler_core::SampleId;
use sutler_engine::{Framing, Padding, Parcel, read_boxes, take_boxes};
use sutler_media::{Layout, OutputSpec};

use crate::array::Array;
use crate::dataset::Dataset;
use crate::detection::{Targets, no_boxes, targets};
use crate::handover::python_object;
use crate::pipeline::VolumeOutput;
use crate::served::Positions;

/// A sample that a worker prepared: its row, whether it is in the block there, and what is not.
type Row = (usize, bool, Option<Py<PyAny>>);

/// A finished batch; the arrays it hands out share its memory.
#[pyclass(frozen)]
pub struct Batch {
    pub inner: Arc<sutler_engine::Batch>,
    pub output: OutputSpec,
    /// What they are, where they are volumes.
    pub volumes: Option<VolumeOutput>,
    pub layout: Layout,
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.inner.len()
    }

    /// Whether all samples have one size, so that `images` is one array, and `volumes` two.
    #[getter]
    fn is_block(&self) -> bool {
        self.output.size.is_some() || self.volumes.is_some_and(|volumes| volumes.shape.is_some())
    }

    /// Whether the memory is part of the job's arena.
    #[getter]
    fn in_arena(&self) -> bool {
        self.inner.memory().is_some_and(sutler_engine::BatchMemory::in_arena)
    }

    /// All images as one array.
    fn images(&self) -> PyResult<Array> {
        let size = self.output.size.ok_or_else(|| PyValueError::new_err("the images differ in size"))?;
        Ok(Array::images(&self.inner, size, self.output.dtype, self.layout))
    }

    /// The images one by one, where they differ in size. The second call finds none.
    fn take_images(&self) -> Vec<Array> {
        let samples = self.inner.take_owned();
        samples.into_iter().map(|sample| Array::image(sample, self.output.dtype, self.layout)).collect()
    }

    /// All images and all labels of volumes of one size.
    fn volumes(&self) -> PyResult<(Array, Array)> {
        self.volumes
            .and_then(|volumes| Array::volumes(&self.inner, volumes.channels, volumes.shape?))
            .ok_or_else(|| PyValueError::new_err("the volumes differ in size"))
    }

    /// Images and labels one by one, where volumes differ in size. The second call finds none.
    fn take_volumes(&self) -> Vec<(Array, Array)> {
        let channels = self.volumes.map_or(1, |volumes| volumes.channels);
        self.inner.take_owned().into_iter().map(|sample| Array::volume(sample, channels)).collect()
    }

    /// The samples as one array, shorter ones followed by this value, and how long each is; `None` where they differ in more
    /// than their length.
    fn padded(&self, value: f32) -> Option<(Array, Array)> {
        let lengths = self.inner.padded(Padding::floats(value))?.lengths().to_vec();
        Some((Array::padded(&self.inner)?, Array::integers(lengths)))
    }

    /// The lines of text as one array of padded tokens, and how many tokens each has; `None` where they were not put together.
    fn padded_tokens(&self) -> Option<(Array, Array)> {
        let lengths = self.inner.block_of_padded()?.lengths().to_vec();
        Some((Array::padded(&self.inner)?, Array::integers(lengths)))
    }

    /// The lines of text one by one, as tokens. The second call finds none.
    fn take_tokens(&self) -> Vec<Array> {
        self.inner.take_owned().into_iter().map(Array::tokens).collect()
    }

    /// The lines of text one by one, as UTF-8. The second call finds none.
    fn take_text(&self) -> Vec<Array> {
        self.inner.take_owned().into_iter().map(|sample| Array::bytes(sample.data)).collect()
    }

    /// One plane of all blocks of packed text: their tokens, or what else they tell.
    fn plane(&self, length: usize, planes: usize, plane: usize) -> PyResult<Array> {
        Array::plane(&self.inner, length, planes, plane)
            .ok_or_else(|| PyValueError::new_err("the batch holds no blocks of this length"))
    }

    /// The pictures as one array, each in a frame whose sides are multiples of `multiple`, and what is on them.
    fn framed(&self, dataset: &Dataset, multiple: u32) -> PyResult<(Array, Targets)> {
        let annotations = dataset.files().listing().annotations().ok_or_else(no_boxes)?;
        let framing = Framing { multiple, dtype: self.output.dtype, layout: self.layout };
        let no_pictures = || {
            PyMemoryError::new_err(format!(
                "the {} pictures of a batch cannot be put into frames that are as wide as the widest and as high as the \
                 highest of them: there is no memory for it; resize them first, or lower batch_size",
                self.inner.len()
            ))
        };
        let framed = self.inner.framed(framing).ok_or_else(no_pictures)?;
        let boxes: Vec<_> = framed.beside().iter().map(|beside| read_boxes(beside)).collect();
        let targets = targets(annotations, self.inner.ids(), framed.sizes(), &boxes);
        let images = Array::framed(&self.inner, self.output.dtype, self.layout).ok_or_else(no_pictures)?;
        Ok((images, targets))
    }

    /// The pictures one by one, and what is on them. The second call finds none.
    fn take_detections(&self, dataset: &Dataset) -> PyResult<(Vec<Array>, Targets)> {
        let annotations = dataset.files().listing().annotations().ok_or_else(no_boxes)?;
        let mut samples = self.inner.take_owned();
        let dtype = self.output.dtype;
        let boxes: Vec<_> = samples.iter_mut().map(|sample| take_boxes(sample, dtype.size())).collect();
        let sizes: Vec<_> = samples.iter().map(|sample| [sample.shape[0], sample.shape[1]]).collect();
        let ids: &[SampleId] = self.inner.ids();
        let targets = targets(annotations, ids, &sizes, &boxes);
        let images = samples.into_iter().map(|sample| Array::image(sample, dtype, self.layout)).collect();
        Ok((images, targets))
    }

    /// The samples one by one, where they were not put together. The second call finds none.
    fn take_arrays(&self) -> Vec<Array> {
        self.inner.take_owned().into_iter().map(Array::floats).collect()
    }

    /// The samples that workers prepared: row in the block, whether it is there, and what is not; that as bytes from a
    /// process, and from a thread as the object it left.
    fn take_rows(&self, py: Python<'_>) -> PyResult<Vec<Row>> {
        let beside = |payload: Parcel| match payload {
            Parcel::Bytes(bytes) if bytes.is_empty() => Ok(None),
            Parcel::Bytes(bytes) => Py::new(py, Array::bytes(bytes)).map(|array| Some(array.into_any())),
            Parcel::Object(object) => Ok(python_object(&object, py)),
        };
        let rows = self.inner.take_foreign();
        rows.into_iter().map(|(row, sample)| Ok((row, sample.in_block, beside(sample.payload)?))).collect()
    }

    /// An array in the batch's shared memory.
    fn block(&self, offset: usize, shape: Vec<i64>, dtype: &str) -> PyResult<Array> {
        Array::block(&self.inner, offset, shape, dtype)
            .ok_or_else(|| PyValueError::new_err(format!("the batch has no {dtype} array there")))
    }

    /// The positions of the epoch that are done with this batch.
    fn positions(&self) -> Positions {
        Positions(self.inner.positions().to_vec())
    }

    fn labels(&self) -> Array {
        Array::integers(self.inner.labels().to_vec())
    }

    /// How often each sample was drawn before in the epoch.
    fn repeats(&self) -> Vec<u32> {
        (0..self.inner.len()).map(|row| self.inner.repeats().get(row)).collect()
    }

    fn ids(&self) -> Array {
        Array::integers(self.inner.ids().iter().map(|id| i64::from(id.0)).collect())
    }
}
