//! What the steps of samples are called that worker processes prepare.

use std::sync::{Mutex, PoisonError};

/// The names of steps, in order.
#[derive(Default)]
pub struct StepNames {
    /// Written when a worker has a new name for one, which is once for most jobs, and read by whoever asks for figures.
    names: Mutex<Vec<String>>,
}

impl StepNames {
    /// A worker calls the steps so. One that has several names, because samples go different ways, goes by its number.
    pub fn tell(&self, told: Vec<String>) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, name) in told.into_iter().enumerate() {
            match names.get_mut(index) {
                None => names.push(name),
                Some(known) if *known != name => *known = format!("step {}", index + 1),
                Some(_) => {}
            }
        }
    }

    pub fn get(&self) -> Vec<String> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_workers_call_differently_goes_by_its_number() {
        let names = StepNames::default();
        let tell = |told: &[&str]| names.tell(told.iter().map(ToString::to_string).collect());
        tell(&["load", "Resize"]);
        tell(&["load", "Resize", "Crop"]);
        assert_eq!(names.get(), ["load", "Resize", "Crop"]);
        tell(&["load", "Flip"]);
        tell(&["load", "Resize"]);
        assert_eq!(names.get(), ["load", "step 2", "Crop"]);
    }
}
