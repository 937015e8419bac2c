//! Who still lacks what, for all jobs at once.
//!
//! The obvious book, a list of remaining samples per job, cannot say in O(1) which sample *most jobs* lack. So the samples are
//! sorted into classes instead: all samples that are in the same place (storage, memory, the window) and that are lacked by the
//! same set of jobs stand together, in no order. When a job gets a sample, the sample moves to the class without that job. When
//! a job begins an epoch over the whole dataset, no sample moves: the classes change their names.
//!
//! The jobs are bits of a word. There can be as many classes as there are sets of jobs, but jobs that share samples lack nearly the
//! same ones, so there are a handful. Classes are listed by how many jobs lack them, so that the most lacked are found first, and
//! where there are very many, a choice looks at no more than [`LOOK`] that would do.

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
    /// The one that fewest jobs lack.
    LeastWanted,
}

#[derive(Clone, Debug)]
struct Class {
    key: Key,
    samples: Vec<SampleId>,
    /// Its place in its list.
    place: u32,
}

/// The classes of one region that have samples, by how many jobs lack them. Their keys stand beside them: this is what choices
/// look through.
#[derive(Clone, Debug)]
struct Lists {
    by_count: Vec<Vec<(Key, u32)>>,
    /// The counts whose list is not empty, one bit each.
    counts: u128,
}

/// Every sample in exactly one class.
#[derive(Clone, Debug)]
pub(super) struct Classes {
    classes: Vec<Class>,
    /// One for each region.
    lists: [Lists; 4],
    free: Vec<u32>,
    by_key: HashMap<Key, u32>,
    class_of: Vec<u32>,
    place_of: Vec<u32>,
}

/// How many classes that would do a choice looks at. Jobs in a steady state have fewer in all; beyond that, the best of so many is
/// nearly as good as the best.
const LOOK: usize = 64;

/// A class that has emptied keeps room for this many samples. Classes of a few samples come and go with every sample served,
/// and this spares the allocator; the large ones come and go once an epoch, and their memory is given back.
const SPARE_SAMPLES: usize = 256;

impl Classes {
    /// All samples in storage, lacked by nobody.
    pub(super) fn new(samples: u32) -> Self {
        let key = Key { region: Region::Storage, lacking: 0, barred: 0 };
        let mut classes = Self {
            classes: Vec::new(),
            lists: std::array::from_fn(|_| Lists {
                by_count: vec![Vec::new(); Seats::BITS as usize + 1],
                counts: 0,
            }),
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
        self.by_key.len()
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
        let lists = &self.lists[region as usize];
        let mut counts = lists.counts;
        let mut best = None;
        // The classes that are as good as the best, and how many samples they have.
        let mut tied = [0u32; LOOK];
        let mut ties = 0;
        let mut candidates = 0;
        let mut looked = 0;
        while counts != 0 {
            let count = match prefer {
                Prefer::MostWanted => counts.ilog2(),
                Prefer::LeastWanted => counts.trailing_zeros(),
            };
            counts &= !(1 << count);
            // No class is wanted by more jobs than lack it.
            if best.is_some_and(|best| prefer == Prefer::LeastWanted || best >= i64::from(count)) {
                break;
            }
            let list = &lists.by_count[count as usize];
            let start = if list.len() > LOOK { rng.below(list.len() as u32) as usize } else { 0 };
            for (key, class) in list[start..].iter().chain(&list[..start]).filter(|(key, _)| eligible(key)) {
                let wanted = i64::from((key.welcome() & awake).count_ones());
                let score = if prefer == Prefer::MostWanted { wanted } else { -wanted };
                if best.is_none_or(|best| score > best) {
                    best = Some(score);
                    (ties, candidates) = (0, 0);
                }
                if best == Some(score) {
                    tied[ties] = *class;
                    ties += 1;
                    candidates += self.len_of(*class);
                }
                looked += 1;
                if looked == LOOK {
                    counts = 0;
                    break;
                }
            }
        }
        best?;
        let mut index = rng.below(candidates as u32) as usize;
        tied[..ties].iter().find_map(|&class| {
            let found = self.classes[class as usize].samples.get(index).copied();
            index = index.saturating_sub(self.len_of(class));
            found
        })
    }

    /// Any sample that satisfies `eligible`, with equal chances; may miss the few there are among many that do not.
    pub(super) fn probe(&self, rng: &mut SampleRng, eligible: impl Fn(&Key) -> bool) -> Option<SampleId> {
        let samples = self.class_of.len() as u32;
        (0..LOOK).map(|_| SampleId(rng.below(samples))).find(|&sample| eligible(&self.key_of(sample)))
    }

    /// Gives every class a new key. Classes that come to share one are merged, the smaller into the larger.
    pub(super) fn rename(&mut self, rename: impl Fn(Key) -> Key) {
        self.by_key.clear();
        let mut renamed = Vec::new();
        for lists in &mut self.lists {
            lists.counts = 0;
            lists.by_count.iter_mut().for_each(|list| renamed.append(list));
        }
        for (old, class) in renamed {
            let key = rename(old);
            self.classes[class as usize].key = key;
            let Some(&twin) = self.by_key.get(&key) else {
                self.enter_list(key, class);
                continue;
            };
            let (large, small) =
                if self.len_of(twin) >= self.len_of(class) { (twin, class) } else { (class, twin) };
            let place = self.classes[twin as usize].place;
            self.classes[large as usize].place = place;
            self.list_of(&key)[place as usize] = (key, large);
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
        self.enter_list(key, class);
        class
    }

    fn list_of(&mut self, key: &Key) -> &mut Vec<(Key, u32)> {
        &mut self.lists[key.region as usize].by_count[key.lacking.count_ones() as usize]
    }

    fn enter_list(&mut self, key: Key, class: u32) {
        let list = self.list_of(&key);
        list.push((key, class));
        let place = list.len() as u32 - 1;
        self.lists[key.region as usize].counts |= 1 << key.lacking.count_ones();
        self.classes[class as usize].place = place;
        self.by_key.insert(key, class);
    }

    fn close(&mut self, class: u32) {
        let emptied = &mut self.classes[class as usize];
        if emptied.samples.capacity() > SPARE_SAMPLES {
            emptied.samples = Vec::new();
        }
        let (key, place) = (emptied.key, emptied.place);
        self.by_key.remove(&key);
        let list = self.list_of(&key);
        list.swap_remove(place as usize);
        let moved = list.get(place as usize).copied();
        if list.is_empty() {
            self.lists[key.region as usize].counts &= !(1 << key.lacking.count_ones());
        }
        if let Some((_, moved)) = moved {
            self.classes[moved as usize].place = place;
        }
        self.free.push(class);
    }
}
