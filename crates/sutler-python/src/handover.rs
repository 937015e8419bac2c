//! The counter between a worker thread and the engine.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use sutler_engine::Arena;

use crate::array::Array;

#[derive(Default)]
struct Counter {
    /// What the worker left and the engine has not taken. Locked for a push or a pop.
    objects: Mutex<VecDeque<Arc<Py<PyAny>>>>,
    /// How many samples of the current order are finished.
    finished: AtomicUsize,
    /// The memory of batches, once there is a layout for it.
    arena: Mutex<Option<Arc<Arena>>>,
}

impl sutler_engine::Handover for Counter {
    fn take(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        let object = self.objects.lock().unwrap_or_else(PoisonError::into_inner).pop_front()?;
        Some(object)
    }

    fn finished(&self) -> usize {
        self.finished.load(Ordering::Acquire)
    }

    fn lend(&self, arena: &Arc<Arena>) {
        *self.arena.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(arena));
    }
}

/// What a worker that is a thread of this process leaves for the engine.
#[pyclass(frozen)]
#[derive(Default)]
pub struct Handover {
    counter: Arc<Counter>,
}

impl Handover {
    /// The engine's side.
    pub fn engine_side(&self) -> Arc<dyn sutler_engine::Handover> {
        Arc::clone(&self.counter) as Arc<dyn sutler_engine::Handover>
    }
}

#[pymethods]
impl Handover {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Leaves an object, to be mentioned in the next answer.
    fn leave(&self, value: Py<PyAny>) {
        self.counter.objects.lock().unwrap_or_else(PoisonError::into_inner).push_back(Arc::new(value));
    }

    /// So many samples of the current order are finished.
    fn mark(&self, finished: usize) {
        self.counter.finished.store(finished, Ordering::Release);
    }

    /// The memory of batches, once the engine has lent it; it stays for as long as the array.
    fn memory(&self) -> Option<Array> {
        let arena = self.counter.arena.lock().unwrap_or_else(PoisonError::into_inner).clone();
        arena.map(Array::memory)
    }
}

/// The Python object that a worker thread left.
pub fn python_object(object: &Arc<dyn Any + Send + Sync>, py: Python<'_>) -> Option<Py<PyAny>> {
    object.downcast_ref::<Py<PyAny>>().map(|object| object.clone_ref(py))
}
