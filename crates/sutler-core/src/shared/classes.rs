//! Who still lacks what, for all jobs at once.
//!
//! The obvious book, a list of remaining samples per job, cannot say in O(1) which sample *most jobs* lack. So the samples are
//! sorted into classes instead: all samples that are in the same place (storage, memory, the window) and that are lacked by the
//! same set of jobs stand together, in no order. When a job gets a sample, the sample moves to the class without that job. When
//! a job begins an epoch over the whole dataset, no sample moves: the classes change their names.
//!
//! The jobs are bits of a word. There can be as many classes as there are sets of jobs, but jobs that share samples lack nearly the
//! same ones, so there are a handful, and looking through all of them costs less than one look at the memory of a sample.

use std::collections::HashMap;

use crate::{SampleId, SampleRng};

/// A set of jobs, one bit per seat.
pub(super) type Seats = u64;

/// Where a sample can be had right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Region {
    /// Only from where the dataset lives.
    Storage,
    /// In memory, in a form that still has to be prepared.
    Pinned,
    /// Somebody is preparing it for several jobs.
    Pending,
    /// Prepared, in the window.
    Ready,
}

/// What all samples of a class have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) region: Region,
    /// The jobs that have yet to get the sample in their epoch.
    pub(super) lacking: Seats,
    /// Those of them that must not get this very copy, since they had it in an earlier epoch.
    pub(super) barred: Seats,
}

impl Key {
    /// The jobs that lack the sample and may have this copy.
    pub(super) fn welcome(&self) -> Seats {
        self.lacking & !self.barred
    }
}

/// Which class is taken when several will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefer {
    /// The one that most jobs could use.
    MostWanted,
    /// The one that fewest jobs could use.
    LeastWanted,
    /// All samples with equal chances.
    Any,
}

#[derive(Clone, Debug)]
struct Class {
    key: Key,
    samples: Vec<SampleId>,
    /// Its place in `live`.
    place: u32,
}

/// Every sample in exactly one class.
#[derive(Clone, Debug)]
pub(super) struct Classes {
    classes: Vec<Class>,
    /// The classes that have samples, with their keys beside them: this is what choices look through.
    live: Vec<(Key, u32)>,
    free: Vec<u32>,
    by_key: HashMap<Key, u32>,
    class_of: Vec<u32>,
    place_of: Vec<u32>,
}

/// A class that has emptied keeps room for this many samples. Classes of a few samples come and go with every sample served,
/// and this spares the allocator; the large ones come and go once an epoch, and their memory is given back.
const SPARE_SAMPLES: usize = 256;

impl Classes {
    /// All samples in storage, lacked by nobody.
    pub(super) fn new(samples: u32) -> Self {
        let key = Key { region: Region::Storage, lacking: 0, barred: 0 };
        let mut classes = Self {
            classes: Vec::new(),
            live: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::new(),
            class_of: vec![0; samples as usize],
            place_of: (0..samples).collect(),
        };
        if samples > 0 {
            classes.open(key);
            classes.classes[0].samples = (0..samples).map(SampleId).collect();
        }
        classes
    }

    /// How many classes there are now.
    pub(super) fn count(&self) -> usize {
        self.live.len()
    }

    pub(super) fn key_of(&self, sample: SampleId) -> Key {
        self.classes[self.class_of[sample.index()] as usize].key
    }

    /// Moves a sample to the class with this key, in O(1).
    pub(super) fn place(&mut self, sample: SampleId, key: Key) {
        debug_assert_eq!(
            key.barred & !key.lacking,
            0,
            "only a job that lacks a sample can be barred from it"
        );
        let from = self.class_of[sample.index()];
        if self.classes[from as usize].key == key {
            return;
        }
        let to = match self.by_key.get(&key) {
            Some(&class) => class,
            None => self.open(key),
        };
        let samples = &mut self.classes[from as usize].samples;
        let place = self.place_of[sample.index()];
        samples.swap_remove(place as usize);
        if let Some(moved) = samples.get(place as usize) {
            self.place_of[moved.index()] = place;
        }
        if samples.is_empty() {
            self.close(from);
        }
        self.append(sample, to);
    }

    /// A uniformly drawn sample of the best classes in `region` that satisfy `eligible`. What is best, `prefer` says; of the jobs
    /// that could use a class it counts those that are awake.
    pub(super) fn draw(
        &self,
        region: Region,
        prefer: Prefer,
        awake: Seats,
        rng: &mut SampleRng,
        eligible: impl Fn(&Key) -> bool,
    ) -> Option<SampleId> {
        let wanted = |key: &Key| i64::from((key.welcome() & awake).count_ones());
        let score = |key: &Key| match prefer {
            _ if key.region != region || !eligible(key) => None,
            Prefer::MostWanted => Some(wanted(key)),
            Prefer::LeastWanted => Some(-wanted(key)),
            Prefer::Any => Some(0),
        };
        let mut best = None;
        let mut candidates = 0;
        for (key, class) in &self.live {
            let Some(score) = score(key) else { continue };
            if best.is_none_or(|best| score > best) {
                best = Some(score);
                candidates = 0;
            }
            if best == Some(score) {
                candidates += self.len_of(*class) as u32;
            }
        }
        let best = Some(best?);
        let mut index = rng.below(candidates) as usize;
        for (_, class) in self.live.iter().filter(|(key, _)| score(key) == best) {
            match self.classes[*class as usize].samples.get(index) {
                Some(&sample) => return Some(sample),
                None => index -= self.len_of(*class),
            }
        }
        None
    }

    /// Gives every class a new key. Classes that come to share one are merged, the smaller into the larger.
    pub(super) fn rename(&mut self, rename: impl Fn(Key) -> Key) {
        self.by_key.clear();
        for (old, class) in std::mem::take(&mut self.live) {
            let key = rename(old);
            self.classes[class as usize].key = key;
            let Some(&twin) = self.by_key.get(&key) else {
                self.enter_live(key, class);
                continue;
            };
            let (large, small) =
                if self.len_of(twin) >= self.len_of(class) { (twin, class) } else { (class, twin) };
            let place = self.classes[twin as usize].place;
            self.classes[large as usize].place = place;
            self.live[place as usize] = (key, large);
            self.by_key.insert(key, large);
            for sample in std::mem::take(&mut self.classes[small as usize].samples) {
                self.append(sample, large);
            }
            self.free.push(small);
        }
    }

    fn len_of(&self, class: u32) -> usize {
        self.classes[class as usize].samples.len()
    }

    fn append(&mut self, sample: SampleId, class: u32) {
        let samples = &mut self.classes[class as usize].samples;
        self.place_of[sample.index()] = samples.len() as u32;
        self.class_of[sample.index()] = class;
        samples.push(sample);
    }

    fn open(&mut self, key: Key) -> u32 {
        let class = match self.free.pop() {
            Some(class) => class,
            None => {
                self.classes.push(Class { key, samples: Vec::new(), place: 0 });
                (self.classes.len() - 1) as u32
            }
        };
        self.classes[class as usize].key = key;
        self.enter_live(key, class);
        class
    }

    fn enter_live(&mut self, key: Key, class: u32) {
        self.classes[class as usize].place = self.live.len() as u32;
        self.live.push((key, class));
        self.by_key.insert(key, class);
    }

    fn close(&mut self, class: u32) {
        let emptied = &mut self.classes[class as usize];
        if emptied.samples.capacity() > SPARE_SAMPLES {
            emptied.samples = Vec::new();
        }
        self.by_key.remove(&emptied.key);
        let place = emptied.place as usize;
        self.live.swap_remove(place);
        if let Some(&(_, moved)) = self.live.get(place) {
            self.classes[moved as usize].place = place as u32;
        }
        self.free.push(class);
    }
}
