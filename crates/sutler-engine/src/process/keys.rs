//! Samples that a dataset knows by something else than a number: a word, a tuple, a negative index.

use std::sync::{Arc, PoisonError, RwLock};

use sutler_core::SampleId;

/// The number of the first sample that has a key. Numbers below it are what the dataset is asked for.
pub const FIRST_KEYED: u32 = 1 << 31;

/// What a dataset is asked for.
#[derive(Clone, Debug)]
pub struct Key {
    /// The key in words that only workers understand.
    pub bytes: Vec<u8>,
    /// The key as users read it.
    pub text: String,
}

/// All keys that were drawn so far. It only grows, since an epoch that is still running may need any of them.
#[derive(Default)]
pub struct Keys(RwLock<Vec<Arc<Key>>>);

impl Keys {
    pub fn add(&self, keys: Vec<Key>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).extend(keys.into_iter().map(Arc::new));
    }

    fn get(&self, sample: SampleId) -> Option<Arc<Key>> {
        let position = sample.0.checked_sub(FIRST_KEYED)? as usize;
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(position).cloned()
    }

    /// The keys of those samples that have one.
    pub fn of(&self, samples: &[SampleId]) -> Vec<(SampleId, Arc<Key>)> {
        samples.iter().filter_map(|&sample| Some((sample, self.get(sample)?))).collect()
    }

    /// How messages refer to a sample.
    pub fn name(&self, sample: SampleId) -> String {
        self.get(sample).map_or_else(|| format!("index {}", sample.0), |key| format!("key {}", key.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_their_own_keys() {
        let keys = Keys::default();
        keys.add(vec![Key { bytes: vec![1, 2], text: "'three'".to_owned() }]);
        let named = SampleId(FIRST_KEYED);
        assert_eq!(keys.name(SampleId(7)), "index 7");
        assert_eq!(keys.name(named), "key 'three'");
        let found = keys.of(&[SampleId(7), named]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].0, found[0].1.bytes.as_slice()), (named, [1, 2].as_slice()));
    }
}
