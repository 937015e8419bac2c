//! What a wait for a batch was for.
//!
//! A batch is waited for because some of its samples are not finished. At any moment of the wait some of them are being
//! fetched and some prepared, and the moment belongs to both in that proportion. So a wait is split by what was going on
//! *while it lasted*: a sample that was read long before the trainer asked, and is only being decoded now, makes the wait one
//! for decoding, whatever reading it took.
//!
//! At some moments nobody is at any of the samples, because the workers are at others or have yet to be started. These take
//! the proportion of the rest of the same wait.
//!
//! A [`Course`] keeps that for one batch, backwards from the moment it was ready, since that is where waits end: when they
//! began may be known only elsewhere, as by the client of an agent.

use serde::{Deserialize, Serialize};

/// When a sample was worked at, in nanoseconds of any one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// A worker took it up.
    pub begun: u64,
    /// Its bytes were there.
    pub fetched: u64,
    /// It was finished.
    pub finished: u64,
}

/// How a stretch of time divides, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Split {
    /// Getting bytes.
    pub fetch: f64,
    /// Decoding and transforming them.
    pub prep: f64,
    /// Nobody was at any sample at any time.
    pub idle: f64,
}

/// A stretch of time in which nothing changed. It is written without the names of its parts: there are several in what is said
/// of every batch that an agent delivers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "(u64, Option<f32>)", into = "(u64, Option<f32>)")]
struct Slice {
    nanos: u64,
    /// The share of fetching in what was going on; `None` when nothing was.
    fetch: Option<f32>,
}

impl From<(u64, Option<f32>)> for Slice {
    fn from((nanos, fetch): (u64, Option<f32>)) -> Self {
        Self { nanos, fetch }
    }
}

impl From<Slice> for (u64, Option<f32>) {
    fn from(slice: Slice) -> Self {
        (slice.nanos, slice.fetch)
    }
}

/// What went on while a batch was made, backwards from the moment it was ready.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Course {
    slices: Vec<Slice>,
}

impl Course {
    /// The course of a batch of these samples from a moment on until it was ready.
    #[must_use]
    pub fn of(spans: &[Span], from: u64, ready: u64) -> Self {
        let during = |span: &&Span| span.finished > from && span.begun < ready;
        if spans.iter().filter(during).all(|span| span.fetched <= span.begun.max(from)) {
            // Where nothing was fetched, as in worker processes that say nothing of it, there is nothing to tell apart.
            let worked = spans.iter().any(|span| during(&span));
            let slice = Slice { nanos: ready.saturating_sub(from), fetch: worked.then_some(0.0) };
            return Self { slices: vec![slice] };
        }
        // Each change is a moment and what it adds to the number of samples being fetched and being prepared.
        let mut changes: Vec<(u64, i32, i32)> = Vec::with_capacity(4 * spans.len());
        let within = |moment: u64| moment.clamp(from, ready.max(from));
        for span in spans {
            let begun = within(span.begun);
            let fetched = within(span.fetched.max(span.begun));
            let finished = within(span.finished.max(span.fetched));
            if begun < fetched {
                changes.extend([(begun, 1, 0), (fetched, -1, 0)]);
            }
            if fetched < finished {
                changes.extend([(fetched, 0, 1), (finished, 0, -1)]);
            }
        }
        changes.sort_unstable_by_key(|&(moment, ..)| moment);
        let mut slices: Vec<Slice> = Vec::with_capacity(changes.len() + 1);
        let mut add = |nanos: u64, fetching: i32, preparing: i32| {
            let all = fetching + preparing;
            let fetch = (all > 0).then(|| fetching as f32 / all as f32);
            match slices.last_mut() {
                _ if nanos == 0 => {}
                Some(last) if last.fetch == fetch => last.nanos += nanos,
                _ => slices.push(Slice { nanos, fetch }),
            }
        };
        let (mut fetching, mut preparing, mut moment) = (0, 0, from);
        for (at, fetch, prep) in changes {
            add(at - moment, fetching, preparing);
            moment = at;
            fetching += fetch;
            preparing += prep;
        }
        add(ready.saturating_sub(moment), fetching, preparing);
        slices.reverse();
        Self { slices }
    }

    /// Splits a wait that began so many nanoseconds before the batch was ready.
    #[must_use]
    pub fn split(&self, nanos: u64) -> Split {
        let mut left = nanos;
        let mut split = Split::default();
        for slice in &self.slices {
            let part = slice.nanos.min(left);
            left -= part;
            match slice.fetch {
                Some(share) => {
                    split.fetch += part as f64 * f64::from(share);
                    split.prep += part as f64 * (1.0 - f64::from(share));
                }
                None => split.idle += part as f64,
            }
        }
        // Before the first sample was begun nobody was at any.
        split.idle += left as f64;
        let work = split.fetch + split.prep;
        if work > 0.0 {
            let stretch = nanos as f64 / work;
            split = Split { fetch: split.fetch * stretch, prep: split.prep * stretch, idle: 0.0 };
        }
        split
    }

    /// The same in at most so many slices, to be sent elsewhere, where a wait is then split right but for what is in the
    /// slice it begins in.
    #[must_use]
    pub fn coarse(&self, slices_max: usize) -> Self {
        if self.slices.len() <= slices_max {
            return self.clone();
        }
        let all: u64 = self.slices.iter().map(|slice| slice.nanos).sum();
        let width = all.div_ceil(slices_max.max(1) as u64).max(1);
        let mut coarse = Vec::with_capacity(slices_max);
        let (mut filled, mut fetch, mut prep) = (0, 0.0, 0.0);
        for slice in &self.slices {
            let mut left = slice.nanos;
            while left > 0 {
                let part = left.min(width - filled);
                left -= part;
                filled += part;
                if let Some(share) = slice.fetch {
                    fetch += part as f64 * f64::from(share);
                    prep += part as f64 * (1.0 - f64::from(share));
                }
                if filled == width {
                    coarse.push(Slice { nanos: width, fetch: share_of(fetch, prep) });
                    (filled, fetch, prep) = (0, 0.0, 0.0);
                }
            }
        }
        if filled > 0 {
            coarse.push(Slice { nanos: filled, fetch: share_of(fetch, prep) });
        }
        Self { slices: coarse }
    }
}

fn share_of(fetch: f64, prep: f64) -> Option<f32> {
    (fetch + prep > 0.0).then(|| (fetch / (fetch + prep)) as f32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(begun: u64, fetch: u64, prep: u64) -> Span {
        Span { begun, fetched: begun + fetch, finished: begun + fetch + prep }
    }

    #[test]
    fn only_what_went_on_during_the_wait_counts() {
        // Read for 80, decoded for 20; the trainer came when it had been read for 70.
        let course = Course::of(&[span(0, 80, 20)], 0, 100);
        assert_eq!(course.split(30), Split { fetch: 10.0, prep: 20.0, idle: 0.0 });
        assert_eq!(course.split(20), Split { fetch: 0.0, prep: 20.0, idle: 0.0 });
    }

    #[test]
    fn a_moment_is_shared_by_the_samples_that_are_worked_at() {
        // One is read all the time, another decoded for the first half.
        let course = Course::of(&[span(0, 100, 0), span(0, 0, 50)], 0, 100);
        assert_eq!(course.split(100), Split { fetch: 75.0, prep: 25.0, idle: 0.0 });
    }

    #[test]
    fn moments_of_nobody_take_the_proportion_of_the_rest() {
        let course = Course::of(&[span(60, 30, 10)], 0, 100);
        assert_eq!(course.split(100), Split { fetch: 75.0, prep: 25.0, idle: 0.0 });
        assert_eq!(course.split(400), Split { fetch: 300.0, prep: 100.0, idle: 0.0 });
    }

    #[test]
    fn without_fetching_all_is_preparation() {
        let course = Course::of(&[span(0, 0, 50), span(70, 0, 30)], 20, 100);
        assert_eq!(course.split(80), Split { fetch: 0.0, prep: 80.0, idle: 0.0 });
    }

    #[test]
    fn where_nobody_was_at_anything_nothing_is_made_up() {
        let finished_before = Course::of(&[span(0, 10, 10)], 50, 100);
        assert_eq!(finished_before.split(50), Split { fetch: 0.0, prep: 0.0, idle: 50.0 });
        assert_eq!(Course::default().split(7), Split { fetch: 0.0, prep: 0.0, idle: 7.0 });
    }

    fn spans() -> impl Strategy<Value = Vec<Span>> {
        let one = (0u64..1000, 0u64..300, 0u64..300);
        proptest::collection::vec(one.prop_map(|(begun, fetch, prep)| span(begun, fetch, prep)), 0..40)
    }

    proptest! {
        #[test]
        fn the_parts_add_up(spans in spans(), from in 0u64..1500, more in 0u64..1500) {
            let ready = from + more;
            let split = Course::of(&spans, from, ready).split(more);
            prop_assert!((split.fetch + split.prep + split.idle - more as f64).abs() < 1e-3);
            prop_assert!(split.fetch >= 0.0 && split.prep >= 0.0 && split.idle >= 0.0);
        }

        #[test]
        fn a_coarse_course_is_right_but_for_one_slice(spans in spans(), wait in 0u64..1600) {
            let course = Course::of(&spans, 0, 1600);
            let coarse = course.coarse(16);
            prop_assert!(coarse.slices.len() <= 16);
            let total = |course: &Course| course.slices.iter().map(|slice| slice.nanos).sum::<u64>();
            prop_assert_eq!(total(&course), total(&coarse));
            // What is compared is the work itself: spread over moments of nobody, a small error may become a large one.
            let work = |course: &Course| {
                let mut left = wait;
                let mut fetch = 0.0;
                for slice in &course.slices {
                    let part = slice.nanos.min(left);
                    left -= part;
                    fetch += part as f64 * f64::from(slice.fetch.unwrap_or(0.0));
                }
                fetch
            };
            // A coarse slice that was worked at in part counts whole, so moments of nobody may be filled up.
            let nobody: u64 = course.slices.iter().filter(|s| s.fetch.is_none()).map(|s| s.nanos).sum();
            prop_assert!((work(&course) - work(&coarse)).abs() <= 100.0 + nobody as f64 + 1e-3);
        }
    }
}
