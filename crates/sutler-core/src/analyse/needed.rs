//! How much of one resource it takes until another one binds, in closed form.
//!
//! With a fraction x of the samples in a cache of C samples a second and storage of S, a sample is fetched in x/C + (1−x)/S seconds on
//! average; the trainer takes M = min(P, G) of them a second at the most. Each form below is that equation solved for one of its terms.

/// The fraction of the samples that has to be cached so that fetching keeps up with `wanted`; `None` where not even all of them would do.
#[must_use]
pub fn cache_needed(storage: f64, cache: f64, wanted: f64) -> Option<f64> {
    if storage >= wanted {
        return Some(0.0);
    }
    if cache < wanted {
        return None;
    }
    Some(((1.0 / storage - 1.0 / wanted) / (1.0 / storage - 1.0 / cache)).clamp(0.0, 1.0))
}

/// What storage has to deliver so that fetching keeps up with `wanted`; `None` where the cache alone is too slow for it.
#[must_use]
pub fn storage_needed(cached: f64, cache: f64, wanted: f64) -> Option<f64> {
    let left = 1.0 / wanted - cached / cache;
    let missing = 1.0 - cached;
    if missing <= 0.0 {
        return (left >= 0.0).then_some(0.0);
    }
    (left > 0.0).then(|| missing / left)
}

/// How many processors it takes to prepare `wanted` samples a second where one prepares `alone`.
#[must_use]
pub fn cores_needed(alone: f64, wanted: f64) -> u32 {
    // A hundredth of a processor too few is none too few: rates are not known that well.
    (wanted / alone - 0.01).ceil().clamp(1.0, f64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetched(cached: f64, cache: f64, storage: f64) -> f64 {
        1.0 / (cached / cache + (1.0 - cached) / storage)
    }

    #[test]
    fn what_is_needed_is_just_enough() {
        for (storage, cache, wanted) in [(100.0, 1e4, 300.0), (50.0, 1e5, 51.0), (10.0, 400.0, 399.0)] {
            let cached = cache_needed(storage, cache, wanted).unwrap();
            assert!((fetched(cached, cache, storage) / wanted - 1.0).abs() < 1e-9, "{cached}");
        }
        for (cached, cache, wanted) in [(0.0, 1e4, 300.0), (0.5, 1e4, 300.0), (0.9, 1e3, 700.0)] {
            let storage = storage_needed(cached, cache, wanted).unwrap();
            assert!((fetched(cached, cache, storage) / wanted - 1.0).abs() < 1e-9, "{storage}");
        }
    }

    #[test]
    fn what_is_not_needed_is_nothing_and_what_cannot_be_is_none() {
        assert_eq!(cache_needed(500.0, 1e4, 300.0), Some(0.0));
        assert_eq!(cache_needed(100.0, 200.0, 300.0), None);
        assert_eq!(storage_needed(1.0, 400.0, 300.0), Some(0.0));
        assert_eq!(storage_needed(1.0, 200.0, 300.0), None);
        assert_eq!(storage_needed(0.5, 100.0, 300.0), None);
    }

    #[test]
    fn cores_come_whole() {
        assert_eq!(cores_needed(100.0, 1000.0), 10);
        assert_eq!(cores_needed(100.0, 1000.5), 10);
        assert_eq!(cores_needed(100.0, 1010.0), 11);
        assert_eq!(cores_needed(100.0, 5.0), 1);
    }
}
