//! Jobs with speeds, preparations with a duration, and a count of its own of who has had what.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use super::super::*;

/// Ticks between two samples of a job of ordinary speed.
pub(super) const PERIOD: u64 = 8;
/// Ticks that a preparation takes: each job has some three of them on the way.
const LATENCY: u64 = 24;

pub(super) struct Trainer {
    pub(super) seat: Seat,
    pub(super) epoch: u32,
    pub(super) serves: u64,
    /// What it got in each epoch that it has finished, in order.
    pub(super) orders: Vec<Vec<SampleId>>,
    current: Vec<SampleId>,
    seen_in: Vec<u32>,
    generations: HashSet<u64>,
    period: u64,
    next_at: u64,
    present: bool,
}

pub(super) struct Driver {
    pub(super) order: SharedOrder,
    pub(super) trainers: Vec<Trainer>,
    pub(super) now: u64,
    /// The most different classes there ever were.
    pub(super) classes_max: usize,
    /// So many of the samples that are read first stay in memory, as in a cache that evicts nothing.
    pub(super) keeps: u32,
    samples: u32,
    preparing: BinaryHeap<Reverse<(u64, EntryId)>>,
    /// How much of a sample each present job would have to read if all shared all: the least number of reads.
    pub(super) bound: f64,
    dropped: Vec<EntryId>,
}

impl Driver {
    /// A window of `window` samples; the first `pinned` of them are in memory.
    pub(super) fn new(samples: u32, window: u32, pinned: u32, mixing: f64, seed: u64) -> Self {
        let settings = SharedSettings {
            samples,
            seed,
            window_bytes: u64::from(window),
            window_form: Form::Augmented,
            mixing,
        };
        let mut order = SharedOrder::new(settings);
        for id in 0..pinned {
            order.set_pinned(SampleId(id), true).unwrap();
        }
        Self {
            order,
            trainers: Vec::new(),
            now: 0,
            classes_max: 0,
            keeps: 0,
            samples,
            preparing: BinaryHeap::new(),
            bound: 0.0,
            dropped: Vec::new(),
        }
    }

    /// A job arrives now.
    pub(super) fn arrive(&mut self, period: u64) -> usize {
        let seat = self.order.join(JobKey(self.trainers.len() as u64), &mut self.dropped).unwrap();
        self.order.begin(seat, 0, Part::Whole, None).unwrap();
        self.trainers.push(Trainer {
            seat,
            epoch: 0,
            serves: 0,
            orders: Vec::new(),
            current: Vec::new(),
            seen_in: vec![u32::MAX; self.samples as usize],
            generations: HashSet::new(),
            period,
            next_at: self.now,
            present: true,
        });
        self.trainers.len() - 1
    }

    pub(super) fn depart(&mut self, trainer: usize) {
        self.trainers[trainer].present = false;
        self.order.leave(self.trainers[trainer].seat, &mut self.dropped).unwrap();
    }

    pub(super) fn reads(&self) -> u64 {
        self.order.stats().prepared_storage
    }

    pub(super) fn serves(&self) -> u64 {
        self.trainers.iter().map(|trainer| trainer.serves).sum()
    }

    /// Lets virtual time pass.
    pub(super) fn run_until(&mut self, end: u64) {
        loop {
            let present = self.trainers.iter().enumerate().filter(|(_, trainer)| trainer.present);
            let Some((index, at)) =
                present.map(|(index, trainer)| (index, trainer.next_at)).min_by_key(|&(_, at)| at)
            else {
                break;
            };
            if at >= end {
                break;
            }
            self.now = at;
            while let Some(&Reverse((done_at, entry))) = self.preparing.peek()
                && done_at <= at
            {
                self.preparing.pop();
                self.order.ready(entry, 1, &mut self.dropped);
            }
            self.step(index);
        }
        self.now = end;
    }

    fn step(&mut self, index: usize) {
        let trainer = &mut self.trainers[index];
        self.classes_max = self.classes_max.max(self.order.classes());
        let (sample, generation) = match self.order.next(trainer.seat).unwrap() {
            Choice::EpochDone => {
                assert_eq!(trainer.current.len(), self.samples as usize, "an epoch lost samples");
                trainer.epoch += 1;
                trainer.orders.push(std::mem::take(&mut trainer.current));
                self.order.begin(trainer.seat, trainer.epoch, Part::Whole, None).unwrap();
                return;
            }
            Choice::Await => {
                trainer.next_at += 1;
                return;
            }
            Choice::Take { sample, entry } => {
                self.order.copied(entry, &mut self.dropped);
                (sample, entry.generation())
            }
            Choice::Prepare { sample, generation, share, from } => {
                if from == Home::Storage && self.keeps > 0 {
                    self.keeps -= 1;
                    self.order.set_pinned(sample, true).unwrap();
                }
                if let Some(entry) = share {
                    self.preparing.push(Reverse((self.now + LATENCY, entry)));
                }
                (sample, generation)
            }
        };
        assert_ne!(trainer.seen_in[sample.index()], trainer.epoch, "{sample:?} twice in an epoch");
        trainer.seen_in[sample.index()] = trainer.epoch;
        assert!(trainer.generations.insert(generation), "the same tensor twice");
        self.order.served(trainer.seat, trainer.epoch, sample).unwrap();
        trainer.current.push(sample);
        trainer.serves += 1;
        trainer.next_at += trainer.period;
        // While these jobs are here, the fastest of them sets the number of preparations.
        let present = self.trainers.iter().filter(|trainer| trainer.present);
        let (mut all, mut fastest): (f64, f64) = (0.0, 0.0);
        for rate in present.map(|trainer| 1.0 / trainer.period as f64) {
            all += rate;
            fastest = fastest.max(rate);
        }
        self.bound += fastest / all;
        self.dropped.clear();
    }
}
