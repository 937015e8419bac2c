//! DLPack: how an array's memory is lent to PyTorch, NumPy or JAX without a copy.
//!
//! This module has all unsafe code of the crate. The structures are those of the DLPack 1.0 header; the capsule protocol
//! is the Python array API standard's: a consumer renames the capsule and calls the deleter when it is done,
//! otherwise the capsule's destructor does.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::ffi;
use pyo3::prelude::*;

/// Ordinary host memory.
pub const DEVICE_CPU: i32 = 1;

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

/// The type of the values: DLPack's code, bits and lanes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueType {
    code: u8,
    bits: u8,
    lanes: u16,
}

impl ValueType {
    /// Signed 64-bit integers.
    pub const I64: ValueType = ValueType { code: 0, bits: 64, lanes: 1 };
    /// Bytes.
    pub const U8: ValueType = ValueType { code: 1, bits: 8, lanes: 1 };
    /// 32-bit floats.
    pub const F32: ValueType = ValueType { code: 2, bits: 32, lanes: 1 };

    /// The type of this name, as NumPy and PyTorch call it.
    pub fn named(name: &str) -> Option<Self> {
        let (code, bits) = match name {
            "bool" => (6, 8),
            "bfloat16" => (4, 16),
            "complex64" => (5, 64),
            "complex128" => (5, 128),
            _ => {
                let digits = name.find(|letter: char| letter.is_ascii_digit())?;
                let bits: u8 = name[digits..].parse().ok().filter(|bits| matches!(bits, 8 | 16 | 32 | 64))?;
                match &name[..digits] {
                    "int" => (0, bits),
                    "uint" => (1, bits),
                    "float" if bits > 8 => (2, bits),
                    _ => return None,
                }
            }
        };
        Some(Self { code, bits, lanes: 1 })
    }

    /// Bytes per value.
    pub fn bytes(self) -> usize {
        usize::from(self.bits) / 8
    }

    /// NumPy's name for the type; `None` where NumPy has none.
    pub fn typestr(self) -> Option<String> {
        let letter = match self.code {
            0 => 'i',
            1 => 'u',
            2 => 'f',
            5 => 'c',
            6 => 'b',
            _ => return None,
        };
        let order = if self.bits == 8 { '|' } else { '<' };
        Some(format!("{order}{letter}{}", self.bytes()))
    }
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    value_type: ValueType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    manager_context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct ManagedVersioned {
    version: Version,
    manager_context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// What keeps the lent memory alive: anything that owns it.
pub type Keeper = Box<dyn Send + Sync>;

/// An array to lend.
pub struct Lent<'a> {
    /// Where the first value is.
    pub data: NonNull<u8>,
    /// Sizes, outermost first.
    pub shape: &'a [i64],
    /// Steps in values, outermost first.
    pub strides: &'a [i64],
    /// The type of the values.
    pub value_type: ValueType,
}

/// A managed tensor in one allocation with what it points to; `T` is the structure the consumer sees.
#[repr(C)]
struct Loan<T> {
    /// First, so that a pointer to it is a pointer to the loan.
    managed: T,
    shape: Vec<i64>,
    strides: Vec<i64>,
    keeper: Option<Keeper>,
}

fn tensor_of<T>(lent: &Lent<'_>, loan: &mut Loan<T>) -> Tensor {
    Tensor {
        data: lent.data.as_ptr().cast(),
        device: Device { kind: DEVICE_CPU, id: 0 },
        dimensions: lent.shape.len() as i32,
        value_type: lent.value_type,
        shape: loan.shape.as_mut_ptr(),
        strides: loan.strides.as_mut_ptr(),
        byte_offset: 0,
    }
}

fn empty_tensor() -> Tensor {
    Tensor {
        data: std::ptr::null_mut(),
        device: Device { kind: DEVICE_CPU, id: 0 },
        dimensions: 0,
        value_type: ValueType::U8,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    }
}

unsafe extern "C" fn delete_managed(managed: *mut Managed) {
    // SAFETY: the pointer is to the first field of a Loan that `capsule` leaked, and the protocol calls this once.
    drop(unsafe { Box::from_raw(managed.cast::<Loan<Managed>>()) });
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(managed.cast::<Loan<ManagedVersioned>>()) });
}

const NAME: &CStr = c"dltensor";
const NAME_VERSIONED: &CStr = c"dltensor_versioned";

/// Frees the loan of a capsule that nobody consumed; a consumer has renamed the capsule.
unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule being destroyed, holding whatever the interpreter needs held; a
    // capsule of either name still has the pointer that `capsule` gave it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) != 0 {
            delete_managed(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, NAME_VERSIONED.as_ptr()) != 0 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, NAME_VERSIONED.as_ptr()).cast());
        }
    }
}

/// A capsule over the array, versioned when the consumer understands it. `keeper` lives as long as the consumer's view.
pub fn capsule(py: Python<'_>, lent: &Lent<'_>, versioned: bool, keeper: Keeper) -> PyResult<Py<PyAny>> {
    let (shape, strides, keeper) = (lent.shape.to_vec(), lent.strides.to_vec(), Some(keeper));
    let (pointer, name) = if versioned {
        let managed = ManagedVersioned {
            version: Version { major: 1, minor: 0 },
            manager_context: std::ptr::null_mut(),
            deleter: Some(delete_versioned),
            flags: 0,
            tensor: empty_tensor(),
        };
        let mut loan = Box::new(Loan { managed, shape, strides, keeper });
        loan.managed.tensor = tensor_of(lent, &mut loan);
        (Box::into_raw(loan).cast::<c_void>(), NAME_VERSIONED)
    } else {
        let managed = Managed {
            tensor: empty_tensor(),
            manager_context: std::ptr::null_mut(),
            deleter: Some(delete_managed),
        };
        let mut loan = Box::new(Loan { managed, shape, strides, keeper });
        loan.managed.tensor = tensor_of(lent, &mut loan);
        (Box::into_raw(loan).cast::<c_void>(), NAME)
    };
    // SAFETY: the name is a static C string, the pointer is not null, and `destroy` frees it if nobody takes it.
    let capsule = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destroy)) };
    // SAFETY: PyCapsule_New returns a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }.map(Bound::unbind)
}

/// Takes over a file descriptor that its Python owner has given up.
pub fn take_descriptor(descriptor: i32) -> std::os::fd::OwnedFd {
    // SAFETY: the callers in `sutler._processes` pass what `socket.detach()` returned, which nobody else closes.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(descriptor) }
}
