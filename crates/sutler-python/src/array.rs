//! Arrays whose memory belongs to a batch.

use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use sutler_media::{DType, Layout};

use crate::dlpack::{self, DEVICE_CPU, Lent, ValueType};

/// Who owns an array's values.
#[derive(Clone)]
enum Owner {
    /// The rows of a batch; its memory goes back to the job when the last array over it is gone.
    Batch(Arc<sutler_engine::Batch>),
    /// A batch whose samples were padded; the same.
    Padded(Arc<sutler_engine::Batch>),
    /// A batch whose pictures were framed; the same.
    Framed(Arc<sutler_engine::Batch>),
    /// All batches of a job.
    Memory(Arc<sutler_engine::Arena>),
    /// A sample with a buffer of its own.
    Bytes(Arc<Vec<u8>>),
    /// Labels or ids.
    Integers(Arc<Vec<i64>>),
    /// Boxes.
    Floats(Arc<Vec<f32>>),
}

impl Owner {
    fn data(&self) -> NonNull<u8> {
        let pointer = match self {
            Owner::Batch(batch) => {
                batch.memory().map_or(std::ptr::null_mut(), sutler_engine::BatchMemory::as_ptr)
            }
            Owner::Padded(batch) => batch
                .block_of_padded()
                .map_or(std::ptr::null_mut(), |padded| padded.values().as_ptr().cast_mut()),
            Owner::Framed(batch) => batch
                .block_of_framed()
                .map_or(std::ptr::null_mut(), |framed| framed.block().as_ptr().cast_mut()),
            Owner::Memory(arena) => arena.as_ptr(),
            Owner::Bytes(bytes) => bytes.as_ptr().cast_mut(),
            Owner::Integers(values) => values.as_ptr().cast_mut().cast(),
            Owner::Floats(values) => values.as_ptr().cast_mut().cast(),
        };
        NonNull::new(pointer).unwrap_or(NonNull::dangling())
    }
}

/// An array that lends its memory: through DLPack to anyone, through `__array_interface__` to NumPy.
#[pyclass(frozen)]
pub struct Array {
    owner: Owner,
    shape: Vec<i64>,
    /// Steps in values.
    strides: Vec<i64>,
    value_type: ValueType,
    /// Bytes before the first value.
    offset: usize,
}

/// Dense steps for a shape in its own order.
fn dense(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis].max(1);
    }
    strides
}

/// Shape and steps of images: channels before rows and columns, whatever the order in memory.
fn image_layout(leading: &[i64], height: u32, width: u32, layout: Layout) -> (Vec<i64>, Vec<i64>) {
    let (height, width) = (i64::from(height), i64::from(width));
    let shape: Vec<i64> = leading.iter().copied().chain([3, height, width]).collect();
    let strides = match layout {
        Layout::Nchw => dense(&shape),
        Layout::Nhwc => {
            let mut strides = vec![3 * height * width; leading.len()];
            strides.extend([1, 3 * width, 3]);
            strides
        }
    };
    (shape, strides)
}

fn value_type(dtype: DType) -> ValueType {
    match dtype {
        DType::U8 => ValueType::U8,
        DType::F32 => ValueType::F32,
    }
}

impl Array {
    /// All images of a batch whose samples have one size.
    pub fn images(
        batch: &Arc<sutler_engine::Batch>,
        [height, width]: [u32; 2],
        dtype: DType,
        layout: Layout,
    ) -> Self {
        let (shape, strides) = image_layout(&[batch.len() as i64], height, width, layout);
        Self {
            owner: Owner::Batch(Arc::clone(batch)),
            shape,
            strides,
            value_type: value_type(dtype),
            offset: 0,
        }
    }

    /// One image with a buffer of its own.
    pub fn image(sample: sutler_engine::OwnSample, dtype: DType, layout: Layout) -> Self {
        let (shape, strides) = image_layout(&[], sample.shape[0], sample.shape[1], layout);
        Self {
            owner: Owner::Bytes(Arc::new(sample.data)),
            shape,
            strides,
            value_type: value_type(dtype),
            offset: 0,
        }
    }

    /// The samples of a batch that were padded to one block.
    pub fn padded(batch: &Arc<sutler_engine::Batch>) -> Option<Self> {
        let padded = batch.block_of_padded()?;
        let shape: Vec<i64> = padded.shape().iter().map(|&side| side as i64).collect();
        let strides = dense(&shape);
        let value_type = match padded.values() {
            sutler_engine::Values::Floats(_) => ValueType::F32,
            sutler_engine::Values::Integers(_) => ValueType::I64,
        };
        let owner = Owner::Padded(Arc::clone(batch));
        Some(Self { owner, shape, strides, value_type, offset: 0 })
    }

    /// One plane of the blocks of a batch, each of which has `planes` rows of `length` whole numbers; `None` where there are none.
    pub fn plane(
        batch: &Arc<sutler_engine::Batch>,
        length: usize,
        planes: usize,
        plane: usize,
    ) -> Option<Self> {
        let row = length.checked_mul(planes)?;
        let bytes = row.checked_mul(batch.len())?.checked_mul(size_of::<i64>())?;
        if plane >= planes || bytes > batch.memory()?.len() {
            return None;
        }
        Some(Self {
            owner: Owner::Batch(Arc::clone(batch)),
            shape: vec![batch.len() as i64, length as i64],
            strides: vec![row as i64, 1],
            value_type: ValueType::I64,
            offset: plane * length * size_of::<i64>(),
        })
    }

    /// The pictures of a batch that were framed.
    pub fn framed(batch: &Arc<sutler_engine::Batch>, dtype: DType, layout: Layout) -> Option<Self> {
        let framed = batch.block_of_framed()?;
        let [height, width] = framed.size();
        let (shape, strides) = image_layout(&[framed.sizes().len() as i64], height, width, layout);
        let owner = Owner::Framed(Arc::clone(batch));
        Some(Self { owner, shape, strides, value_type: value_type(dtype), offset: 0 })
    }

    /// Rows of so many floats each.
    pub fn rows_of_floats(values: Vec<f32>, columns: usize) -> Self {
        let shape = vec![(values.len() / columns) as i64, columns as i64];
        let strides = dense(&shape);
        Self { owner: Owner::Floats(Arc::new(values)), shape, strides, value_type: ValueType::F32, offset: 0 }
    }

    /// A row of floats.
    pub fn row_of_floats(values: Vec<f32>) -> Self {
        let shape = vec![values.len() as i64];
        let owner = Owner::Floats(Arc::new(values));
        Self { owner, shape, strides: vec![1], value_type: ValueType::F32, offset: 0 }
    }

    /// Rows of so many integers each.
    pub fn rows_of_integers(values: Vec<i64>, columns: usize) -> Self {
        let shape = vec![(values.len() / columns) as i64, columns as i64];
        let strides = dense(&shape);
        Self {
            owner: Owner::Integers(Arc::new(values)),
            shape,
            strides,
            value_type: ValueType::I64,
            offset: 0,
        }
    }

    /// One sample of floats with a buffer of its own.
    pub fn floats(sample: sutler_engine::OwnSample) -> Self {
        Self::own(sample, ValueType::F32)
    }

    /// One sample of whole numbers with a buffer of its own.
    pub fn tokens(sample: sutler_engine::OwnSample) -> Self {
        Self::own(sample, ValueType::I64)
    }

    fn own(sample: sutler_engine::OwnSample, value_type: ValueType) -> Self {
        let [outer, inner, last] = sample.shape.map(i64::from);
        // Axes that the sample does not have are 0.
        let shape: Vec<i64> = [outer, inner].into_iter().filter(|&side| side > 0).chain([last]).collect();
        let strides = dense(&shape);
        let owner = Owner::Bytes(Arc::new(sample.data));
        Self { owner, shape, strides, value_type, offset: 0 }
    }

    /// All images of a batch of volumes of one size, and all their labels.
    pub fn volumes(
        batch: &Arc<sutler_engine::Batch>,
        channels: usize,
        shape: [usize; 3],
    ) -> Option<(Self, Self)> {
        let offset = batch.beside_start()?;
        let owner = Owner::Batch(Arc::clone(batch));
        Some(Self::image_and_labels(&owner, &[batch.len() as i64], channels, shape, offset))
    }

    /// One volume with a buffer of its own, and its labels.
    pub fn volume(sample: sutler_engine::OwnSample, channels: usize) -> (Self, Self) {
        let shape = sample.shape.map(|side| side as usize);
        let offset = channels * shape.iter().product::<usize>() * ValueType::F32.bytes();
        Self::image_and_labels(&Owner::Bytes(Arc::new(sample.data)), &[], channels, shape, offset)
    }

    fn image_and_labels(
        owner: &Owner,
        leading: &[i64],
        channels: usize,
        shape: [usize; 3],
        offset: usize,
    ) -> (Self, Self) {
        let array = |channels: usize, value_type, offset| {
            let sides = [channels, shape[0], shape[1], shape[2]].map(|side| side as i64);
            let shape: Vec<i64> = leading.iter().copied().chain(sides).collect();
            let strides = dense(&shape);
            Self { owner: owner.clone(), shape, strides, value_type, offset }
        };
        (array(channels, ValueType::F32, 0), array(1, ValueType::U8, offset))
    }

    /// An array that worker processes wrote to a batch's memory; `None` where it would not fit there.
    pub fn block(
        batch: &Arc<sutler_engine::Batch>,
        offset: usize,
        shape: Vec<i64>,
        name: &str,
    ) -> Option<Self> {
        let value_type = ValueType::named(name)?;
        let values =
            shape.iter().try_fold(1usize, |values, &side| values.checked_mul(usize::try_from(side).ok()?))?;
        let end = values.checked_mul(value_type.bytes())?.checked_add(offset)?;
        if end > batch.memory()?.len() || !offset.is_multiple_of(value_type.bytes()) {
            return None;
        }
        let strides = dense(&shape);
        Some(Self { owner: Owner::Batch(Arc::clone(batch)), shape, strides, value_type, offset })
    }

    /// The memory of all batches, for worker threads to write to.
    pub fn memory(arena: Arc<sutler_engine::Arena>) -> Self {
        let (_, bytes) = arena.range();
        let owner = Owner::Memory(arena);
        Self { owner, shape: vec![bytes as i64], strides: vec![1], value_type: ValueType::U8, offset: 0 }
    }

    /// Plain bytes.
    pub fn bytes(bytes: Vec<u8>) -> Self {
        let shape = vec![bytes.len() as i64];
        let owner = Owner::Bytes(Arc::new(bytes));
        Self { owner, shape, strides: vec![1], value_type: ValueType::U8, offset: 0 }
    }

    /// A row of integers.
    pub fn integers(values: Vec<i64>) -> Self {
        let shape = vec![values.len() as i64];
        Self {
            owner: Owner::Integers(Arc::new(values)),
            shape,
            strides: vec![1],
            value_type: ValueType::I64,
            offset: 0,
        }
    }
}

impl Array {
    fn data(&self) -> NonNull<u8> {
        // `map_addr` only moves the pointer; the constructors have checked that the array stays inside its memory.
        self.owner.data().map_addr(|address| address.saturating_add(self.offset))
    }
}

#[pymethods]
impl Array {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        if stream.is_some_and(|stream| !stream.is_none()) {
            return Err(PyValueError::new_err(
                "this array is in host memory, which has no streams; pass stream=None",
            ));
        }
        if dl_device.is_some_and(|device| device != (DEVICE_CPU, 0)) {
            return Err(PyBufferError::new_err(
                "this array is in host memory; export it there and copy it yourself",
            ));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err("this array only lends its memory; copy the result yourself"));
        }
        let lent = Lent {
            data: self.data(),
            shape: &self.shape,
            strides: &self.strides,
            value_type: self.value_type,
        };
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        dlpack::capsule(py, &lent, versioned, Box::new(self.owner.clone()))
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (DEVICE_CPU, 0)
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        let bytes = self.value_type.bytes() as i64;
        let strides: Vec<i64> = self.strides.iter().map(|step| step * bytes).collect();
        interface.set_item("version", 3)?;
        interface.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        interface.set_item("strides", PyTuple::new(py, strides)?)?;
        let typestr =
            self.value_type.typestr().ok_or_else(|| PyBufferError::new_err("NumPy has no such type"))?;
        interface.set_item("typestr", typestr)?;
        interface.set_item("data", (self.data().as_ptr() as usize, false))?;
        Ok(interface)
    }
}
