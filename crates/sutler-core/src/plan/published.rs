//! The published model (Seneca, FAST'26), as printed.
//!
//! For each form it takes the slowest step of a pipeline that serves nothing but that form, and averages the four rates by how
//! many samples each form holds. It is kept for comparison, with these reservations:
//! - The arithmetic mean is not what a mixture does. When half of the samples come at 10,000 a second and half at 100, two take
//!   10.1 ms: that is 198 a second, and not 5,050.
//! - Every form gets the whole of every resource, although all draw on the same.
//! - An augmented entry costs nothing to make, although it must be made anew after each job has had it once.
//! - The printed rates do not lead to the printed splits. They lead to 100-0-0 in 14 of 15 cells (the tests recompute them): a
//!   decoded sample is five times as large, and in every cell but one the cache hands out fewer of them than the processors
//!   could decode.

use serde::{Deserialize, Serialize};

use super::{Plan, Prediction, Profile, Resource, Split};

/// A cluster, as the paper measures it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Platform {
    /// How many nodes train.
    pub nodes: f64,
    /// Samples that the accelerators of a node ingest.
    pub gpu_samples_per_s: f64,
    /// Samples that the processors of a node decode and augment.
    pub decode_augment_samples_per_s: f64,
    /// Samples that the processors of a node augment.
    pub augment_samples_per_s: f64,
    /// Of a node.
    pub network_bytes_per_s: f64,
    /// Of a node, from memory to the accelerators.
    pub bus_bytes_per_s: f64,
    /// Of the cache that all nodes share.
    pub cache_bytes_per_s: f64,
    /// Of the storage that all nodes share.
    pub storage_bytes_per_s: f64,
    /// Gradients that cross the network, per sample; 0 where a link of its own carries them.
    pub network_gradient_bytes: f64,
    /// Gradients that cross the bus, per sample.
    pub bus_gradient_bytes: f64,
}

/// What is trained on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dataset {
    /// How many samples.
    pub samples: f64,
    /// Of a sample as stored.
    pub encoded_bytes: f64,
    /// How many times larger a decoded or augmented sample is.
    pub inflation: f64,
}

/// Samples per second when all come from one form.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// All from storage.
    pub storage: f64,
    /// All from the cache, as stored.
    pub encoded: f64,
    /// All from the cache, decoded.
    pub decoded: f64,
    /// All from the cache, augmented.
    pub augmented: f64,
}

/// The four rates of the paper.
#[must_use]
pub fn rates(platform: &Platform, dataset: &Dataset) -> Rates {
    let nodes = platform.nodes;
    let small = dataset.encoded_bytes;
    let large = dataset.inflation * dataset.encoded_bytes;
    let through_network =
        |bytes: f64| nodes * platform.network_bytes_per_s / (bytes + platform.network_gradient_bytes);
    // Whatever is kept, tensors cross the bus.
    let to_device = (nodes * platform.bus_bytes_per_s / (large + platform.bus_gradient_bytes))
        .min(nodes * platform.gpu_samples_per_s);
    let augmented = (platform.cache_bytes_per_s / large).min(through_network(large)).min(to_device);
    let decoded = augmented.min(nodes * platform.augment_samples_per_s);
    let encoded = (platform.cache_bytes_per_s / small)
        .min(through_network(small))
        .min(nodes * platform.decode_augment_samples_per_s)
        .min(to_device);
    Rates { storage: encoded.min(platform.storage_bytes_per_s / small), encoded, decoded, augmented }
}

/// What the paper's model says of one split of a budget.
#[must_use]
pub fn predict(platform: &Platform, dataset: &Dataset, budget_bytes: f64, split: Split) -> Prediction {
    let large = dataset.inflation * dataset.encoded_bytes;
    let fractions = split.fractions(dataset.samples, budget_bytes, [dataset.encoded_bytes, large, large]);
    let rates = rates(platform, dataset);
    let samples_per_s = fractions.storage * rates.storage
        + fractions.encoded * rates.encoded
        + fractions.decoded * rates.decoded
        + fractions.augmented * rates.augmented;
    Prediction { split, fractions, samples_per_s, binds: None }
}

/// A rate that nothing reaches: for what the paper measures and a single machine does not have.
const UNLIMITED: f64 = 1e15;

/// What the paper's model makes of our measurements of one machine. It has one size for decoded and augmented samples, one way to read,
/// and no costs of reading or copying, so those are left out.
#[must_use]
pub fn plan_of(profile: &Profile, budget_bytes: f64) -> Plan {
    let cores = profile.capacity(Resource::Processors);
    let platform = Platform {
        nodes: 1.0,
        gpu_samples_per_s: profile.device_samples_per_s,
        decode_augment_samples_per_s: cores / (profile.decode_s + profile.augment_s).max(1e-12),
        augment_samples_per_s: cores / profile.augment_s.max(1e-12),
        network_bytes_per_s: profile.network.map_or(UNLIMITED, |network| network.bytes_per_s),
        bus_bytes_per_s: profile.bus_bytes_per_s.unwrap_or(UNLIMITED),
        cache_bytes_per_s: profile.cache_bytes_per_s,
        storage_bytes_per_s: profile.storage_bytes_per_s,
        network_gradient_bytes: 0.0,
        bus_gradient_bytes: 0.0,
    };
    let dataset = Dataset {
        samples: f64::from(profile.samples),
        encoded_bytes: profile.encoded_bytes,
        inflation: profile.decoded_bytes / profile.encoded_bytes,
    };
    plan(&platform, &dataset, budget_bytes)
}

/// What the paper's model says of every split.
#[must_use]
pub fn plan(platform: &Platform, dataset: &Dataset, budget_bytes: f64) -> Plan {
    Plan::search(|split| predict(platform, dataset, budget_bytes, split))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABIT: f64 = 1e9 / 8.0;

    /// Table 5, with one node and for two of the platforms with two: name, platform, cache size in bytes.
    fn platforms() -> Vec<(&'static str, Platform, f64)> {
        let platform =
            |nodes, [gpu, decode_augment, augment]: [f64; 3], network, cache, bus, storage| Platform {
                nodes,
                gpu_samples_per_s: gpu,
                decode_augment_samples_per_s: decode_augment,
                augment_samples_per_s: augment,
                network_bytes_per_s: network * GIGABIT,
                bus_bytes_per_s: bus * 1e9,
                cache_bytes_per_s: cache * GIGABIT,
                storage_bytes_per_s: storage * 1e6,
                network_gradient_bytes: 0.0,
                bus_gradient_bytes: 0.0,
            };
        let in_house = |nodes| platform(nodes, [4550.0, 2132.0, 4050.0], 10.0, 10.0, 32.0, 500.0);
        let aws = platform(1.0, [9989.0, 3432.0, 6520.0], 10.0, 10.0, 32.0, 256.0);
        let azure = |nodes| platform(nodes, [14301.0, 9783.0, 12930.0], 80.0, 30.0, 64.0, 250.0);
        vec![
            ("in-house", in_house(1.0), 115e9),
            ("two in-house", in_house(2.0), 115e9),
            ("AWS", aws, 400e9),
            ("Azure", azure(1.0), 400e9),
            ("two Azure", azure(2.0), 400e9),
        ]
    }

    fn datasets(kilobyte: f64) -> [(&'static str, Dataset); 3] {
        let dataset = |samples, kilobytes: f64| Dataset {
            samples,
            encoded_bytes: kilobytes * kilobyte,
            inflation: 5.12,
        };
        [
            ("ImageNet-1K", dataset(1_281_167.0, 114.0)),
            ("OpenImages", dataset(1.9e6, 316.0)),
            ("ImageNet-22K", dataset(14e6, 91.0)),
        ]
    }

    /// The cells in which the printed equations on the printed rates do not give 100-0-0.
    fn exceptions(kilobyte: f64) -> Vec<(&'static str, &'static str)> {
        let mut exceptions = Vec::new();
        for (platform_name, platform, cache_bytes) in platforms() {
            for (dataset_name, dataset) in datasets(kilobyte) {
                if plan(&platform, &dataset, cache_bytes).best.split != Split::new(100, 0, 0) {
                    exceptions.push((platform_name, dataset_name));
                }
            }
        }
        exceptions
    }

    #[test]
    fn the_printed_rates_give_all_encoded_in_14_of_15_cells() {
        assert_eq!(exceptions(1024.0), [("in-house", "ImageNet-22K")]);
        // With kilobytes of 1,000 bytes the network of the in-house node carries 2,142 decoded samples instead of 2,091, ten more
        // than its processors decode, and so that cell turns as well.
        assert_eq!(exceptions(1000.0), [("in-house", "ImageNet-1K"), ("in-house", "ImageNet-22K")]);
    }

    /// The printed splits are not the best of the printed model: in seven of the nine cells it expects less of them.
    #[test]
    fn the_printed_splits_do_not_follow() {
        let printed = [
            ("in-house", "ImageNet-1K", Split::new(58, 42, 0)),
            ("AWS", "ImageNet-1K", Split::new(0, 81, 19)),
            ("Azure", "ImageNet-1K", Split::new(0, 48, 52)),
            ("in-house", "OpenImages", Split::new(62, 37, 1)),
            ("AWS", "OpenImages", Split::new(52, 48, 0)),
            ("Azure", "OpenImages", Split::new(5, 95, 0)),
            ("in-house", "ImageNet-22K", Split::new(100, 0, 0)),
            ("AWS", "ImageNet-22K", Split::new(100, 0, 0)),
            ("Azure", "ImageNet-22K", Split::new(100, 0, 0)),
        ];
        let (platforms, datasets) = (platforms(), datasets(1024.0));
        let worse = printed.iter().filter(|(platform, dataset, split)| {
            let (_, platform, cache_bytes) = platforms.iter().find(|(name, ..)| name == platform).unwrap();
            let (_, dataset) = datasets.iter().find(|(name, _)| name == dataset).unwrap();
            let plan = plan(platform, dataset, *cache_bytes);
            plan.prediction(*split).unwrap().samples_per_s < plan.best.samples_per_s * 0.999
        });
        assert_eq!(worse.count(), 7);
    }

    /// By hand: one AWS node, ImageNet-1K, all encoded. All samples fit (146 GB of 400), and the processors are slowest.
    #[test]
    fn a_cell_by_hand() {
        let (_, aws, cache_bytes) = platforms().swap_remove(2);
        let [(_, imagenet), ..] = datasets(1000.0);
        let rates = rates(&aws, &imagenet);
        assert_eq!(rates.encoded, 3432.0);
        assert!((rates.storage - 256e6 / 114e3).abs() < 1e-9);
        assert!((rates.augmented - 1.25e9 / (5.12 * 114e3)).abs() < 1e-9);
        assert_eq!(rates.decoded, rates.augmented);
        let prediction = predict(&aws, &imagenet, cache_bytes, Split::new(100, 0, 0));
        assert_eq!((prediction.fractions.encoded, prediction.samples_per_s), (1.0, 3432.0));
        // Half of the memory augmented holds 200 GB / 583,680 B = 342,653 samples; the rest is encoded.
        let half = predict(&aws, &imagenet, cache_bytes, Split::new(50, 0, 50));
        let part = 200e9 / (5.12 * 114e3) / 1_281_167.0;
        assert!((half.samples_per_s - (part * rates.augmented + (1.0 - part) * 3432.0)).abs() < 1e-6);
    }
}
