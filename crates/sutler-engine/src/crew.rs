//! A crew of worker threads whose number follows the demand: what `core::Crew` decides, done with real threads.
//!
//! A thread of its own, the foreman, looks now and then at what workers and consumers did, asks for the decision and
//! starts threads or sends them off duty. A thread off duty keeps nothing but its stack.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sutler_core::{Crew, CrewLimits, CrewObservation, CrewReason};

use crate::metrics::Pace;

/// How often the number of workers is looked at: long enough for a sound mean, short enough to follow a change.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How many changes of the crew are remembered.
const CHANGES_MAX: usize = 1000;

/// A consumer that works for less than this share of its time takes whatever it can get.
const HARDLY_WORKING: f64 = 0.01;

/// What one worker has done, written by itself and read by the foreman.
#[derive(Default)]
pub(crate) struct Desk {
    samples: AtomicU64,
    working_nanos: AtomicU64,
    /// The thread, by the number that the system knows it by.
    thread: AtomicI32,
    /// The process that does the work, where it is another one; 0 where it is none.
    process: AtomicI32,
    /// What such processes have taken so far. Only the foreman looks.
    elsewhere: Mutex<Elsewhere>,
}

/// The processor time of processes that one worker has had one after the other, and what they have done in that time.
#[derive(Default)]
struct Elsewhere {
    process: i32,
    /// What that process had taken, and the worker done, when it was last looked at.
    before: Totals,
    /// What all of them have taken and done while they were looked at.
    sum: Totals,
}

impl Elsewhere {
    fn add(&mut self, process: i32, now: Totals) {
        // What a new one has taken so far it took to begin. What it has done meanwhile is left out as well: work of which no processor
        // knows looks like work that needs none.
        if process == self.process {
            self.sum = self.sum.plus(&now.since(&self.before));
        }
        (self.process, self.before) = (process, now);
    }
}

impl Desk {
    /// The worker sits down.
    pub fn take_seat(&self) {
        self.thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    }

    pub fn worked(&self, samples: usize, time: Duration) {
        self.samples.fetch_add(samples as u64, Ordering::Relaxed);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.working_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// The work is done by this process from now on, or by the thread itself.
    pub fn works_through(&self, process: Option<i32>) {
        self.process.store(process.unwrap_or(0), Ordering::Relaxed);
    }

    fn totals(&self) -> Totals {
        let thread = self.thread.load(Ordering::Relaxed);
        let own = if thread == 0 { (0.0, 0.0) } else { processor_time(&format!("self/task/{thread}")) };
        let process = self.process.load(Ordering::Relaxed);
        let mut elsewhere = self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
        let (running, queued) = if process == 0 { (0.0, 0.0) } else { processor_time(&process.to_string()) };
        let samples = self.samples.load(Ordering::Relaxed) as f64;
        let all = Totals {
            finished: samples,
            samples,
            working: self.working_nanos.load(Ordering::Relaxed) as f64 / 1e9,
            running: own.0 + running,
            queued: own.1 + queued,
        };
        if process == 0 && elsewhere.process == 0 {
            return all;
        }
        elsewhere.add(process, all);
        Totals { finished: samples, ..elsewhere.sum }
    }
}

/// The seconds that a thread has run, by its folder below `/proc`, and those it was ready to but had no processor. A kernel that does not
/// tell leaves both at zero; demand alone decides then. Of a process it is the first thread, which is where Python runs.
fn processor_time(folder: &str) -> (f64, f64) {
    let Ok(told) = std::fs::read_to_string(format!("/proc/{folder}/schedstat")) else {
        return (0.0, 0.0);
    };
    let mut seconds = told.split_whitespace().map(|nanos| nanos.parse().unwrap_or(0.0) / 1e9);
    (seconds.next().unwrap_or(0.0), seconds.next().unwrap_or(0.0))
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Totals {
    /// Samples that were finished, …
    finished: f64,
    /// … and those of which it is known what they took.
    samples: f64,
    working: f64,
    running: f64,
    queued: f64,
}

impl Totals {
    fn plus(&self, other: &Self) -> Self {
        Self {
            finished: self.finished + other.finished,
            samples: self.samples + other.samples,
            working: self.working + other.working,
            running: self.running + other.running,
            queued: self.queued + other.queued,
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            finished: (self.finished - before.finished).max(0.0),
            samples: (self.samples - before.samples).max(0.0),
            working: (self.working - before.working).max(0.0),
            running: (self.running - before.running).max(0.0),
            queued: (self.queued - before.queued).max(0.0),
        }
    }
}

/// A change of the number of workers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrewChange {
    /// Seconds since the crew began.
    pub seconds: f64,
    /// So many workers from then on.
    pub workers: usize,
    /// Why.
    pub reason: CrewReason,
}

/// What became of the crew, for whoever wants to know.
pub(crate) struct Trace {
    begun: Instant,
    changes: Mutex<Vec<CrewChange>>,
}

impl Trace {
    pub fn new(workers: usize) -> Self {
        let beginning = CrewChange { seconds: 0.0, workers, reason: CrewReason::Beginning };
        Self { begun: Instant::now(), changes: Mutex::new(vec![beginning]) }
    }

    pub fn changes(&self) -> Vec<CrewChange> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn note(&self, workers: usize, reason: CrewReason) {
        let seconds = self.begun.elapsed().as_secs_f64();
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if changes.len() == CHANGES_MAX {
            changes.remove(0);
        }
        changes.push(CrewChange { seconds, workers, reason });
    }
}

/// Whoever looks at the crew and says how many are to work.
pub(crate) struct Foreman {
    crew: Crew,
    desks: Vec<Arc<Desk>>,
    /// What all desks had done when the last observation ended.
    before: Totals,
    before_at: Instant,
    /// What each consumer had done then, by its job.
    paces: HashMap<usize, Pace>,
}

impl Foreman {
    pub fn new(limits: CrewLimits) -> Self {
        Self {
            crew: Crew::new(limits),
            desks: Vec::new(),
            before: Totals::default(),
            before_at: Instant::now(),
            paces: HashMap::new(),
        }
    }

    pub fn workers(&self) -> usize {
        self.crew.workers()
    }

    pub fn reason(&self) -> CrewReason {
        self.crew.reason()
    }

    /// A desk for one more worker.
    pub fn add_desk(&mut self) -> Arc<Desk> {
        let desk = Arc::new(Desk::default());
        self.desks.push(Arc::clone(&desk));
        desk
    }

    /// How many workers ever had a desk.
    pub fn desks(&self) -> usize {
        self.desks.len()
    }

    /// Looks at the work done since the last time it had something to go by; true when the crew is to change.
    pub fn look(&mut self, paces: impl Iterator<Item = (usize, Pace)>) -> bool {
        let now: HashMap<usize, Pace> = paces.collect();
        let mut demand = None;
        let (mut waited, mut trained) = (0.0, 0.0);
        for (job, pace) in &now {
            let Some(since) = self.paces.get(job).map(|before| pace.since(before)) else { continue };
            if since.samples == 0 {
                continue;
            }
            let hardly = since.trained <= HARDLY_WORKING * (since.trained + since.waited);
            let wanted = if hardly { f64::INFINITY } else { since.samples as f64 / since.trained };
            demand = Some(demand.unwrap_or(0.0) + wanted);
            waited += since.waited;
            trained += since.trained;
        }
        if demand.is_none() {
            // Nobody took anything: go on counting, from when consumers that are new here began.
            for (job, pace) in now {
                self.paces.entry(job).or_insert(pace);
            }
            return false;
        }
        self.paces = now;
        let done = self.totals();
        let before = std::mem::replace(&mut self.before, done);
        let before_at = std::mem::replace(&mut self.before_at, Instant::now());
        let time = waited + trained;
        let since = done.since(&before);
        self.crew.observe(&CrewObservation {
            seconds: before_at.elapsed().as_secs_f64(),
            finished: since.finished as u64,
            samples: since.samples as u64,
            working: since.working,
            running: since.running,
            queued: since.queued,
            demand,
            waited: if time > 0.0 { waited / time } else { 0.0 },
        })
    }

    fn totals(&self) -> Totals {
        self.desks.iter().fold(Totals::default(), |sum, desk| sum.plus(&desk.totals()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_processes_take_adds_up_from_one_to_the_next() {
        let mut elsewhere = Elsewhere::default();
        // Two seconds to begin with do not count, nor what follows the last look at a process that ended.
        let looks = [(7, 2.0), (7, 3.0), (7, 3.5), (8, 1.0), (8, 1.25), (7, 0.5), (7, 0.25)];
        for (look, (process, running)) in looks.into_iter().enumerate() {
            let (samples, working) = (10.0 * look as f64, look as f64);
            let queued = 2.0 * running;
            elsewhere.add(process, Totals { finished: 0.0, samples, working, running, queued });
        }
        // Nor does what the worker did until a process was first looked at: four of the looks follow one at the same.
        assert_eq!(
            elsewhere.sum,
            Totals { finished: 0.0, samples: 40.0, working: 4.0, running: 1.75, queued: 3.5 }
        );
    }
}
