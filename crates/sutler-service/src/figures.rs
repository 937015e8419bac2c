//! The figures of a job over several lives of its agent.
//!
//! What the agent measures (time in stages) begins at nothing with each agent, so the figures of those that are
//! gone are added up. What the trainer sees (samples, batches, time spent waiting) the client counts itself: only here
//! is it known how long a batch really took to arrive. And what is counted of samples (where they were found, bytes read) travels with their batch and is
//! added when the trainer gets it, so that at every moment these counts are those of the batches it has had.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use sutler_engine::{Batch, BatchEntry, Counts, Delivery, Handling, Timeline, Waits};

/// How often figures travel with batches: finding quantiles takes longer than sending a small batch.
pub const FIGURES_EVERY: Duration = Duration::from_millis(100);

/// The book a client keeps.
#[derive(Default)]
pub struct Figures {
    /// From agents that are gone.
    before: Value,
    /// From the agent that is there, as of its last word.
    now: Value,
    /// When that was, and how many batches there were then.
    noted: Option<(Instant, u64)>,
    samples: u64,
    batches: u64,
    failed: u64,
    counts: Counts,
    /// What the trainer waited for, as it is known here.
    waits: Waits,
}

/// When a run's consumer was last answered, and since when it waits.
#[derive(Default)]
pub struct Clock {
    answered: Option<Instant>,
    waiting_since: Option<Instant>,
}

impl Clock {
    /// The consumer asks, perhaps again.
    pub fn ask(&mut self) {
        self.waiting_since.get_or_insert_with(Instant::now);
    }
}

impl Figures {
    /// The agent's own figures.
    pub fn note(&mut self, figures: Value) {
        self.now = figures;
        self.noted = Some((Instant::now(), self.batches));
    }

    /// Whether the agent's last word will do: nothing has happened since, or it was only just spoken. Asking again may mean
    /// waiting until the agent has finished a batch.
    pub fn are_fresh(&self) -> bool {
        self.noted.is_some_and(|(at, batches)| batches == self.batches || at.elapsed() < FIGURES_EVERY)
    }

    /// The agent is gone; another one begins anew.
    pub fn turn_over(&mut self) {
        let now = std::mem::take(&mut self.now);
        self.before = sum(&self.before, &now);
    }

    /// A batch was delivered; so many others are here behind it.
    pub fn delivered(&mut self, clock: &mut Clock, batch: &Batch, behind: usize, counts: Counts) {
        self.samples += batch.len() as u64;
        self.batches += 1;
        self.count(counts);
        let answered = Instant::now();
        let requested = clock.waiting_since.take().unwrap_or(answered);
        let previous = clock.answered.replace(answered);
        let ready = batch.made().map_or(requested, |made| made.ready);
        let delivery = Delivery {
            batch: batch.index,
            samples: batch.len(),
            requested,
            ready,
            answered,
            previous,
            ready_batches: if ready <= requested { 1 + behind } else { 0 },
        };
        let course = batch.made().map(|made| made.course.clone()).unwrap_or_default();
        self.waits.deliver(&delivery, &course);
    }

    /// The batch that was delivered last is in the consumer's hands only now.
    pub fn handled(&mut self, clock: &mut Clock, handling: Handling) {
        if let Some(answered) = clock.answered.as_mut() {
            let now = Instant::now();
            self.waits.handle(handling, *answered, now);
            *answered = now;
        }
    }

    /// What the latest request came to.
    pub fn last_delivery(&mut self) -> Option<BatchEntry> {
        self.waits.timeline.last_batch().copied()
    }

    /// The latest batches.
    pub fn timeline(&self) -> Timeline {
        self.waits.timeline.clone()
    }

    /// The consumer came back from its last batch and found the epoch finished.
    pub fn ended(&mut self, clock: &mut Clock) {
        if let (Some(answered), Some(asked)) = (clock.answered.take(), clock.waiting_since.take()) {
            self.waits.end(answered, asked);
        }
    }

    /// So much was counted, too.
    pub fn count(&mut self, counts: Counts) {
        self.counts = self.counts.plus(counts);
    }

    /// Samples failed.
    pub fn failed(&mut self, count: usize) {
        self.failed += count as u64;
    }

    /// All of it, in the shape of the engine's own figures.
    pub fn snapshot(&self) -> Value {
        let mut all = match sum(&self.before, &self.now) {
            Value::Object(all) => all,
            _ => Map::new(),
        };
        all.insert("samples".into(), self.samples.into());
        all.insert("batches".into(), self.batches.into());
        all.insert("failed".into(), self.failed.into());
        if let Ok(Value::Object(counts)) = serde_json::to_value(self.counts) {
            all.extend(counts);
        }
        all.insert("seconds".into(), self.waits.seconds.into());
        all.insert("wait_seconds".into(), self.waits.wait_seconds.into());
        all.insert("stalls".into(), json!(self.waits.stalls));
        all.insert("ready".into(), json!(self.waits.ready));
        Value::Object(all)
    }
}

/// Numbers are added, lists and objects are added part by part, and of two different things the second counts.
fn sum(one: &Value, other: &Value) -> Value {
    match (one, other) {
        (Value::Number(a), Value::Number(b)) => match (a.as_u64(), b.as_u64()) {
            (Some(a), Some(b)) => a.saturating_add(b).into(),
            _ => (a.as_f64().unwrap_or(0.0) + b.as_f64().unwrap_or(0.0)).into(),
        },
        (Value::Object(a), Value::Object(b)) if is_summary(a) && is_summary(b) => mix(a, b),
        // A series cannot be added to another; the one that goes on is the one of interest.
        (Value::Object(_), Value::Object(b)) if b.contains_key("series") => other.clone(),
        (Value::Object(a), Value::Object(b)) => {
            let names = a.keys().chain(b.keys().filter(|name| !a.contains_key(*name)));
            let part = |map: &Map<String, Value>, name| map.get(name).cloned().unwrap_or(Value::Null);
            names.map(|name| (name.clone(), sum(&part(a, name), &part(b, name)))).collect()
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).map(|(a, b)| sum(a, b)).collect()
        }
        (one, Value::Null) => one.clone(),
        (_, other) => other.clone(),
    }
}

/// Whether an object sums up the times of a stage.
fn is_summary(map: &Map<String, Value>) -> bool {
    map.contains_key("count") && map.contains_key("mean")
}

/// Two summaries of a stage as one: means weigh by their counts, and so do quantiles, for want of the times themselves.
fn mix(one: &Map<String, Value>, other: &Map<String, Value>) -> Value {
    let number = |map: &Map<String, Value>, name: &str| map.get(name).and_then(Value::as_f64).unwrap_or(0.0);
    let (a, b) = (number(one, "count"), number(other, "count"));
    let total = (a + b).max(1.0);
    other
        .keys()
        .map(|name| {
            let value = if name == "count" {
                sum(&one[name], &other[name])
            } else {
                ((a * number(one, name) + b * number(other, name)) / total).into()
            };
            (name.clone(), value)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use sutler_core::{Course, SampleId, Span};
    use sutler_engine::{BlockShape, Made, Received, RowSpec};

    use super::*;

    #[test]
    fn the_figures_of_several_agents_add_up() {
        let life = |reads: u64, count: u64, mean: f64| {
            json!({
                "storage_reads": reads,
                "stalls": { "fetch": 0.5 },
                "stages": [["decode", { "count": count, "mean": mean, "p50": mean, "p99": mean }]],
                "slow_share": { "mean": mean, "series": [mean, mean] },
            })
        };
        let mut figures = Figures::default();
        figures.note(life(3, 10, 1.0));
        figures.turn_over();
        figures.note(life(4, 30, 2.0));
        let all = sum(&figures.before, &figures.now);
        assert_eq!(all["storage_reads"], 7);
        assert_eq!(all["stalls"]["fetch"], 1.0);
        assert_eq!(all["slow_share"], json!({ "mean": 2.0, "series": [2.0, 2.0] }));
        assert_eq!(
            all["stages"][0],
            json!(["decode", { "count": 40, "mean": 1.75, "p50": 1.75, "p99": 1.75 }])
        );
    }

    /// A batch of four samples that were read and then decoded, each for a millisecond, until now.
    fn batch() -> Batch {
        let span = Span { begun: 0, fetched: 1_000_000, finished: 2_000_000 };
        let made = Made { course: Course::of(&[span], 0, 2_000_000), ready: Instant::now() };
        let samples = Received { ids: vec![SampleId(0); 4], made: Some(made), ..Received::default() };
        Batch::received(0, BlockShape { row: RowSpec::Varies, beside: 0 }, None, samples)
    }

    #[test]
    fn the_parts_of_the_time_add_up() {
        let mut figures = Figures::default();
        // What the agent waited, since it was asked ahead of the trainer, is not what the trainer waited.
        figures.note(json!({ "stalls": { "fetch": 1e9, "prep": 1.0 }, "storage_reads": 99 }));
        let mut clock = Clock::default();
        clock.ask();
        std::thread::sleep(Duration::from_millis(4));
        let counts = Counts { storage_reads: 3, ..Counts::default() };
        figures.delivered(&mut clock, &batch(), 0, counts);
        figures.count(counts);
        figures.handled(&mut clock, Handling::Transport);
        clock.ask();
        figures.ended(&mut clock);
        let all = figures.snapshot();
        let part = |name: &str| all["stalls"][name].as_f64().unwrap();
        let parts = part("fetch") + part("prep") + part("transport") + part("trainer");
        assert!((parts - all["seconds"].as_f64().unwrap()).abs() < 1e-9, "{all}");
        assert!((part("fetch") - part("prep")).abs() < 1e-6 && part("fetch") > 0.001, "{all}");
        assert_eq!((&all["samples"], &all["batches"]), (&json!(4), &json!(1)));
        assert_eq!(all["storage_reads"], 6, "whatever the agent said");
        assert_eq!(all["ready"], json!([1]));
    }

    #[test]
    fn a_batch_that_came_before_it_was_asked_for_was_ready() {
        let mut figures = Figures::default();
        let mut clock = Clock::default();
        let early = batch();
        clock.ask();
        figures.delivered(&mut clock, &early, 2, Counts::default());
        assert_eq!(figures.snapshot()["ready"], json!([0, 0, 0, 1]));
    }
}
