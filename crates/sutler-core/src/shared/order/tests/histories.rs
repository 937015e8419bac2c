//! Generated histories: whatever jobs do, each gets every sample once and no tensor twice, and the memory adds up.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::super::*;

const SAMPLES: u32 = 24;

#[derive(Clone, Debug)]
enum Event {
    Join { job: u64 },
    Leave(usize),
    Begin { seat: usize, part: u32 },
    Quit(usize),
    Next(usize),
    Insist(usize),
    Expire(usize),
    Ready { preparation: usize, bytes: u64 },
    Abandon(usize),
    Copied(usize),
    Serve(usize),
    Fail(usize),
    Release(usize),
    Restart(usize),
    Pin { sample: u32, pinned: bool },
    Resize(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let one = any::<usize>;
    let event = prop_oneof![
        3 => (0u64..4).prop_map(|job| Event::Join { job }),
        1 => one().prop_map(Event::Leave),
        6 => (one(), any::<u32>()).prop_map(|(seat, part)| Event::Begin { seat, part }),
        1 => one().prop_map(Event::Quit),
        40 => one().prop_map(Event::Next),
        4 => one().prop_map(Event::Insist),
        1 => one().prop_map(Event::Expire),
        16 => (one(), 1u64..4).prop_map(|(preparation, bytes)| Event::Ready { preparation, bytes }),
        2 => one().prop_map(Event::Abandon),
        12 => one().prop_map(Event::Copied),
        24 => one().prop_map(Event::Serve),
        2 => one().prop_map(Event::Fail),
        3 => one().prop_map(Event::Release),
        1 => one().prop_map(Event::Restart),
        3 => (0..SAMPLES, any::<bool>()).prop_map(|(sample, pinned)| Event::Pin { sample, pinned }),
        1 => (0u64..30).prop_map(Event::Resize),
    ];
    prop::collection::vec(event, 0..600)
}

/// A sample that was handed out and has not reached its trainer.
#[derive(Clone, Copy, Debug)]
struct Lease {
    seat: Seat,
    epoch: u32,
    sample: SampleId,
}

#[derive(Debug, Default)]
struct Epoch {
    expected: HashSet<SampleId>,
    done: HashSet<SampleId>,
}

#[derive(Debug)]
struct Trainer {
    seat: Seat,
    job: u64,
    epoch: u32,
    epochs: HashMap<u32, Epoch>,
}

/// The same world, kept in plain tables by other code.
struct Model {
    order: SharedOrder,
    trainers: Vec<Trainer>,
    leases: Vec<Lease>,
    preparations: Vec<EntryId>,
    copies: Vec<EntryId>,
    /// What the owner of the memory stores.
    stored: HashMap<EntryId, u64>,
    generations: HashMap<u64, HashSet<u64>>,
    epochs_begun: HashMap<u64, u32>,
    window_bytes: u64,
    dropped: Vec<EntryId>,
}

impl Model {
    fn new(seed: u64, mixing: f64) -> Self {
        let settings =
            SharedSettings { samples: SAMPLES, seed, window_bytes: 12, window_form: Form::Augmented, mixing };
        Self {
            order: SharedOrder::new(settings),
            trainers: Vec::new(),
            leases: Vec::new(),
            preparations: Vec::new(),
            copies: Vec::new(),
            stored: HashMap::new(),
            generations: HashMap::new(),
            epochs_begun: HashMap::new(),
            window_bytes: 12,
            dropped: Vec::new(),
        }
    }

    fn trainer(&self, seat: Seat) -> Option<&Trainer> {
        self.trainers.iter().find(|trainer| trainer.seat == seat)
    }

    fn begin(&mut self, index: usize, part: u32) {
        let trainer = &mut self.trainers[index];
        let chosen: Vec<SampleId> =
            (0..SAMPLES).filter(|id| part >> (id % 32) & 1 == 1).map(SampleId).collect();
        let whole = !part.is_multiple_of(3);
        let epoch = self.epochs_begun.entry(trainer.job).or_insert(0);
        let lacks = self.order.lacks(trainer.seat).unwrap();
        let result =
            self.order.begin(trainer.seat, *epoch, if whole { Part::Whole } else { Part::Of(&chosen) }, None);
        if lacks > 0 {
            assert_eq!(result, Err(SharedError::EpochUnfinished { epoch: trainer.epoch, lacks }));
            return;
        }
        result.unwrap();
        let expected =
            if whole { (0..SAMPLES).map(SampleId).collect() } else { chosen.into_iter().collect() };
        trainer.epoch = *epoch;
        trainer.epochs.insert(*epoch, Epoch { expected, done: HashSet::new() });
        *epoch += 1;
    }

    /// Checks a choice against the tables, and books it. False when there was nothing to hand out.
    fn accept(&mut self, index: usize, choice: Choice) -> bool {
        let trainer = &self.trainers[index];
        let (seat, epoch, job) = (trainer.seat, trainer.epoch, trainer.job);
        let (sample, generation) = match choice {
            Choice::Await => {
                assert!(!self.preparations.is_empty(), "waits, but nobody prepares");
                return false;
            }
            Choice::EpochDone => {
                assert_eq!(self.order.lacks(seat).unwrap(), 0);
                return false;
            }
            Choice::Take { sample, entry } => {
                assert!(self.stored.contains_key(&entry), "told to take what is not there");
                self.copies.push(entry);
                (sample, entry.generation())
            }
            Choice::Prepare { sample, generation, share, .. } => {
                self.preparations.extend(share);
                (sample, generation)
            }
        };
        assert!(self.generations.entry(job).or_default().insert(generation), "the same tensor twice");
        let state = &self.trainers[index].epochs[&epoch];
        assert!(state.expected.contains(&sample), "{sample:?} is not of this epoch");
        assert!(!state.done.contains(&sample), "{sample:?} was served before");
        let twice = self.leases.iter().any(|l| l.seat == seat && l.epoch == epoch && l.sample == sample);
        assert!(!twice, "{sample:?} is on its way already");
        self.leases.push(Lease { seat, epoch, sample });
        true
    }

    fn apply(&mut self, event: Event) {
        let at = |index: usize, len: usize| (len > 0).then(|| index % len);
        let trainers = self.trainers.len();
        match event {
            Event::Join { job } => {
                if trainers < 6 {
                    let seat = self.order.join(JobKey(job), &mut self.dropped).unwrap();
                    self.trainers.push(Trainer { seat, job, epoch: 0, epochs: HashMap::new() });
                }
            }
            Event::Leave(index) => {
                if let Some(index) = at(index, trainers) {
                    let gone = self.trainers.swap_remove(index);
                    self.leases.retain(|lease| lease.seat != gone.seat);
                    self.order.leave(gone.seat, &mut self.dropped).unwrap();
                    assert_eq!(self.order.next(gone.seat), Err(SharedError::NotSeated));
                }
            }
            Event::Begin { seat, part } => {
                if let Some(index) = at(seat, trainers) {
                    self.begin(index, part);
                }
            }
            Event::Quit(index) => {
                if let Some(index) = at(index, trainers) {
                    let seat = self.trainers[index].seat;
                    self.leases.retain(|lease| lease.seat != seat);
                    self.trainers[index].epochs.clear();
                    self.order.quit(seat, &mut self.dropped).unwrap();
                }
            }
            Event::Next(index) => {
                if let Some(index) = at(index, trainers) {
                    let choice = self.order.next(self.trainers[index].seat).unwrap();
                    self.accept(index, choice);
                }
            }
            Event::Insist(index) => {
                if let Some(index) = at(index, trainers) {
                    let choice = self.order.insist(self.trainers[index].seat).unwrap();
                    assert_ne!(choice, Choice::Await, "whoever insists does not wait");
                    self.accept(index, choice);
                }
            }
            Event::Expire(index) => {
                if let Some(index) = at(index, trainers) {
                    self.order.expire(self.trainers[index].seat, &mut self.dropped).unwrap();
                }
            }
            Event::Ready { preparation, bytes } => {
                if let Some(index) = at(preparation, self.preparations.len()) {
                    let entry = self.preparations.swap_remove(index);
                    if self.order.ready(entry, bytes, &mut self.dropped) == Verdict::Keep {
                        self.forget_dropped();
                        assert!(self.stored.insert(entry, bytes).is_none());
                        assert!(self.order.window_used_bytes() <= self.window_bytes, "the window overflows");
                    }
                }
            }
            Event::Abandon(index) => {
                if let Some(index) = at(index, self.preparations.len()) {
                    let entry = self.preparations.swap_remove(index);
                    self.order.abandon(entry);
                }
            }
            Event::Copied(index) => {
                if let Some(index) = at(index, self.copies.len()) {
                    let entry = self.copies.swap_remove(index);
                    self.order.copied(entry, &mut self.dropped);
                }
            }
            Event::Serve(index) => {
                if let Some(index) = at(index, self.leases.len()) {
                    self.settle(index, SharedOrder::served);
                }
            }
            Event::Fail(index) => {
                if let Some(index) = at(index, self.leases.len()) {
                    self.settle(index, SharedOrder::failed);
                }
            }
            Event::Release(index) => {
                if let Some(index) = at(index, self.leases.len()) {
                    let lease = self.leases[index];
                    let current = self.trainer(lease.seat).unwrap().epoch == lease.epoch;
                    let result = self.order.release(lease.seat, lease.epoch, lease.sample);
                    if current {
                        result.unwrap();
                        self.leases.swap_remove(index);
                    } else {
                        assert_eq!(result, Err(SharedError::EpochOver(lease.epoch)));
                    }
                }
            }
            Event::Restart(index) => {
                if let Some(index) = at(index, trainers) {
                    self.restart(index);
                }
            }
            Event::Pin { sample, pinned } => self.order.set_pinned(SampleId(sample), pinned).unwrap(),
            Event::Resize(bytes) => {
                self.window_bytes = bytes;
                self.order.set_window_bytes(bytes);
            }
        }
        self.forget_dropped();
        assert_eq!(self.order.window_used_bytes(), self.stored.values().sum::<u64>());
        self.balance();
    }

    fn settle(
        &mut self,
        index: usize,
        end: fn(&mut SharedOrder, Seat, u32, SampleId) -> Result<(), SharedError>,
    ) {
        let Lease { seat, epoch, sample } = self.leases.swap_remove(index);
        end(&mut self.order, seat, epoch, sample).unwrap();
        assert!(end(&mut self.order, seat, epoch, sample).is_err(), "settled twice");
        let trainer = self.trainers.iter_mut().find(|trainer| trainer.seat == seat).unwrap();
        assert!(trainer.epochs.get_mut(&epoch).unwrap().done.insert(sample));
    }

    /// The job dies between two batches and comes back from its checkpoint, through JSON.
    fn restart(&mut self, index: usize) {
        let Trainer { seat, job, .. } = self.trainers[index];
        let Some((epoch, saved)) = self.order.checkpoint(seat).unwrap() else { return };
        let saved: SavedLedger = serde_json::from_str(&serde_json::to_string(&saved).unwrap()).unwrap();
        self.order.leave(seat, &mut self.dropped).unwrap();
        self.leases.retain(|lease| lease.seat != seat);
        let seat = self.order.join(JobKey(job), &mut self.dropped).unwrap();
        let state = self.trainers[index].epochs.remove(&epoch).unwrap();
        let part: Vec<SampleId> = state.expected.iter().copied().collect();
        self.order.begin(seat, epoch, Part::Of(&part), Some(&saved)).unwrap();
        let trainer = &mut self.trainers[index];
        trainer.seat = seat;
        trainer.epoch = epoch;
        trainer.epochs = HashMap::from([(epoch, state)]);
    }

    fn forget_dropped(&mut self) {
        for entry in self.dropped.drain(..) {
            assert!(!self.copies.contains(&entry), "{entry:?} left while it was copied");
            assert!(self.stored.remove(&entry).is_some(), "{entry:?} was dropped twice or never kept");
        }
    }

    /// For every job: lacked + on their way + done = all of its epoch.
    fn balance(&self) {
        for trainer in &self.trainers {
            let Some(state) = trainer.epochs.get(&trainer.epoch) else { continue };
            let under_way = self
                .leases
                .iter()
                .filter(|lease| lease.seat == trainer.seat && lease.epoch == trainer.epoch)
                .count();
            let lacks = self.order.lacks(trainer.seat).unwrap() as usize;
            assert_eq!(lacks + under_way + state.done.len(), state.expected.len());
        }
    }

    /// Every epoch that has begun can be finished by its job alone, whatever the others left lying about.
    fn finish(&mut self) {
        for index in 0..self.trainers.len() {
            loop {
                let choice = self.order.insist(self.trainers[index].seat).unwrap();
                if !self.accept(index, choice) {
                    assert_eq!(choice, Choice::EpochDone);
                    break;
                }
            }
        }
        while !self.leases.is_empty() {
            self.settle(0, SharedOrder::served);
        }
        for trainer in &self.trainers {
            for epoch in trainer.epochs.values() {
                assert_eq!(epoch.done, epoch.expected);
            }
        }
        for entry in std::mem::take(&mut self.preparations) {
            self.order.ready(entry, 1, &mut self.dropped);
        }
        for entry in std::mem::take(&mut self.copies) {
            self.order.copied(entry, &mut self.dropped);
        }
        self.forget_dropped();
        let trainers = std::mem::take(&mut self.trainers);
        for trainer in trainers {
            self.order.leave(trainer.seat, &mut self.dropped).unwrap();
        }
        self.forget_dropped();
        assert!(self.stored.is_empty() && self.order.window_used_bytes() == 0, "something was left behind");
        assert!(self.order.classes() <= 2, "nobody is here, so samples differ only in being pinned");
    }
}

proptest! {
    /// Invariants 1 (exactly once), 2 (fresh), 4 (resumable) and 5 (bounded), for ranks and jobs that come, go, pause and crash.
    #[test]
    fn every_job_gets_every_sample_once_and_no_tensor_twice(
        events in events(),
        seed: u64,
        mixing in prop::sample::select(vec![0.0, 0.3]),
    ) {
        let mut model = Model::new(seed, mixing);
        for event in events {
            model.apply(event);
        }
        model.finish();
    }
}
