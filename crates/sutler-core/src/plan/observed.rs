//! A profile that grows old: what the engine sees while it serves tells when, and how to mend it without measuring again.

use serde::{Deserialize, Serialize};

use super::Profile;

/// By which factor an observation may miss a profile. A split that was best stays nearly best within it, and figures of a busy machine
/// differ by this much from one moment to the next.
const TOLERANCE: f64 = 1.25;

/// Below this many samples an average says little.
const SAMPLES_MIN: u64 = 16;

/// What serving some samples took; of an epoch in which nothing new was kept, as keeping a sample costs extra.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// How many samples came from storage.
    pub storage: u64,
    /// How many from memory, as stored.
    pub encoded: u64,
    /// How many from memory, decoded.
    pub decoded: u64,
    /// Seconds that all reads together kept their threads.
    pub fetch_s: f64,
    /// Seconds that decoding and augmenting took, all samples together.
    pub prepare_s: f64,
}

impl Profile {
    /// The profile as the observation corrects it; `None` while they agree within a quarter.
    #[must_use]
    pub fn corrected(&self, observed: &Observed) -> Option<Profile> {
        let prepare = self.prepare_ratio(observed);
        let fetch = self.fetch_ratio(observed);
        if prepare.is_none() && fetch.is_none() {
            return None;
        }
        let (prepare, fetch) = (prepare.unwrap_or(1.0), fetch.unwrap_or(1.0));
        // What a sample costs was told by the processors' own clocks, so what has changed is how much of them there is. Only where there
        // is all of it and samples are still prepared faster, they must cost less than it seemed.
        let share = (self.share / prepare).min(1.0);
        let cost = (prepare * share / self.share).min(1.0);
        Some(Profile {
            storage_bytes_per_s: self.storage_bytes_per_s / fetch,
            read_s: self.read_s * fetch,
            recall_s: self.recall_s * cost,
            decode_s: self.decode_s * cost,
            augment_s: self.augment_s * cost,
            copy_s: self.copy_s * cost,
            share,
            ..*self
        })
    }

    /// How many times as long as expected preparation took, where that is news.
    fn prepare_ratio(&self, observed: &Observed) -> Option<f64> {
        let undecoded = observed.storage + observed.encoded;
        let samples = undecoded + observed.decoded;
        let work = undecoded as f64 * self.decode_s + samples as f64 * (self.augment_s + self.copy_s);
        // What was observed is time, and threads that have to share processors take longer for the same work.
        let expected = work / self.share * (self.threads / self.cores).max(1.0);
        let ratio = observed.prepare_s / expected;
        (samples >= SAMPLES_MIN && is_news(ratio)).then_some(ratio)
    }

    /// The same for reads. How long a read takes depends on how many others are under way: none at the least, all other threads' at the
    /// most. Only what lies outside says that storage has changed.
    fn fetch_ratio(&self, observed: &Observed) -> Option<f64> {
        let mean = observed.fetch_s / observed.storage as f64;
        let queue = (self.threads - 1.0).max(0.0) * self.encoded_bytes / self.storage_bytes_per_s;
        let ratio =
            if mean < self.read_s { mean / self.read_s } else { (mean / (self.read_s + queue)).max(1.0) };
        (observed.storage >= SAMPLES_MIN && is_news(ratio)).then_some(ratio)
    }
}

fn is_news(ratio: f64) -> bool {
    ratio.is_finite() && ratio > 0.0 && !(1.0 / TOLERANCE..=TOLERANCE).contains(&ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        Profile {
            samples: 1_000,
            encoded_bytes: 1e5,
            encoded_kept_bytes: 1e5,
            decoded_bytes: 6e5,
            augmented_bytes: 6e5,
            storage_bytes_per_s: 1e8,
            cache_bytes_per_s: 1e10,
            network: None,
            read_s: 1e-3,
            read_work_s: 0.0,
            recall_s: 0.0,
            decode_s: 3e-3,
            augment_s: 0.9e-3,
            copy_s: 0.1e-3,
            threads: 4.0,
            cores: 4.0,
            share: 1.0,
            bus_bytes_per_s: None,
            device_samples_per_s: 1e9,
            jobs: 1,
            window: false,
        }
    }

    /// 100 samples from each place, as the profile expects them with one read at a time.
    fn as_expected() -> Observed {
        Observed { storage: 100, encoded: 100, decoded: 100, fetch_s: 0.1, prepare_s: 0.9 }
    }

    #[test]
    fn what_was_expected_changes_nothing() {
        assert_eq!(profile().corrected(&as_expected()), None);
        let a_fifth_slower = Observed { prepare_s: 1.08, ..as_expected() };
        assert_eq!(profile().corrected(&a_fifth_slower), None);
        assert_eq!(profile().corrected(&Observed::default()), None);
    }

    #[test]
    fn processors_that_others_use_are_believed() {
        let close = |left: Profile, share: f64| {
            let ratios =
                [left.share / share, left.decode_s / profile().decode_s, left.copy_s / profile().copy_s];
            ratios.iter().all(|ratio| (ratio - 1.0).abs() < 1e-9)
        };
        let slower = profile().corrected(&Observed { prepare_s: 1.8, ..as_expected() }).unwrap();
        assert!(close(slower, 0.5), "{slower:?}");
        // They are gone again: samples cost what they cost, and the processors are there.
        let disturbed = Profile { share: 0.5, ..profile() };
        let alone = disturbed.corrected(&as_expected()).unwrap();
        assert!(close(alone, 1.0), "{alone:?}");
        assert_eq!(disturbed.corrected(&Observed { prepare_s: 1.8, ..as_expected() }), None);
    }

    #[test]
    fn samples_that_cost_less_are_believed() {
        let faster = profile().corrected(&Observed { prepare_s: 0.45, ..as_expected() }).unwrap();
        let costs = [faster.decode_s / 1.5e-3, faster.augment_s / 0.45e-3, faster.copy_s / 0.05e-3];
        assert!(costs.iter().all(|ratio| (ratio - 1.0).abs() < 1e-9), "{faster:?}");
        assert_eq!((faster.share, faster.read_s, faster.storage_bytes_per_s), (1.0, 1e-3, 1e8));
    }

    /// Four threads that all read wait for three others each: 4 ms instead of 1, and storage is what it was.
    #[test]
    fn a_queue_is_no_slower_storage() {
        assert_eq!(profile().corrected(&Observed { fetch_s: 0.4, ..as_expected() }), None);
        let slower = profile().corrected(&Observed { fetch_s: 0.8, ..as_expected() }).unwrap();
        assert!((slower.storage_bytes_per_s / 5e7 - 1.0).abs() < 1e-9);
        assert_eq!(slower.decode_s, 3e-3);
        let faster = profile().corrected(&Observed { fetch_s: 0.05, ..as_expected() }).unwrap();
        assert!((faster.storage_bytes_per_s / 2e8 - 1.0).abs() < 1e-9);
    }
}
