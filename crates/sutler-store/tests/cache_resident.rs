//! A cache takes the memory it was given and no more, whatever goes through it. On its own, as it looks at the process.

use sutler_core::{Form, Policy, SampleId};
use sutler_store::cache::{Backing, Cache, CacheOptions, Offer};

/// What this process has in memory: private pages, shared ones and those of files.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn memory_stays_within_the_budget_and_comes_back() {
    const BUDGET: u64 = 48 << 20;
    const SAMPLES: u32 = 4_000;
    /// The policy's own notes, and what the test itself takes.
    const SLACK: u64 = 3 << 20;
    let content = vec![7; 200_000];
    for backing in [Backing::Private, Backing::Shared] {
        let before = resident_bytes();
        let options = CacheOptions {
            budget_bytes: BUDGET,
            samples: SAMPLES as usize,
            split: [50, 50],
            policy: Policy::Lru,
            seed: 0,
            backing,
        };
        let cache = Cache::new(&options).unwrap();
        assert!(resident_bytes().saturating_sub(before) < SLACK, "an empty cache takes no memory");
        // Ten times as much as fits.
        for sample in 0..SAMPLES {
            let bytes = 10_000 + sample as usize * 7919 % 190_000;
            if let Some(seat) = cache.reserve(
                SampleId(sample),
                &Offer { encoded_bytes: Some(bytes / 2), decoded_bytes: Some(bytes), ..Offer::default() },
            ) {
                let bytes = if seat.form() == Form::Encoded { bytes / 2 } else { bytes };
                seat.commit(&[&content[..bytes]]);
            }
        }
        let figures = cache.figures();
        assert!(figures.used_bytes > BUDGET * 9 / 10, "{figures:?}");
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown <= BUDGET + SLACK, "{backing:?}: {grown} bytes for a budget of {BUDGET}");
        cache.set_budget(BUDGET / 4);
        let shrunk = resident_bytes() - before;
        assert!(shrunk <= BUDGET / 4 + SLACK, "{backing:?}: {shrunk} bytes for a quarter of {BUDGET}");
        drop(cache);
        let left = resident_bytes().saturating_sub(before);
        assert!(left <= SLACK, "{backing:?}: {left} bytes stayed");
    }
}
