//! A memory with a policy: who is let in, and who leaves for it.
//!
//! The policy ([`Keeper`]) knows sizes and no bytes, the [`Memory`] knows bytes and no policy. They meet here, in two
//! steps, so that nobody waits while somebody copies or decodes: a sample is *reserved*, which is a decision under a lock
//! of well below a microsecond and empties the seats of those who leave; then its bytes are *committed* without the lock.
//! Whoever was thrown out between the two steps notices when committing, and leaves.
//!
//! Hits take no lock, except under [`Policy::Lru`], which has to write down every use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use sutler_core::{Admission, Form, Keeper, Partition, PartitionError, Policy, SampleId};

use super::memory::{Backing, Held, Memory, MemoryError, MemoryOptions, Refused};

/// What a cache is to be like.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// All the bytes it may take.
    pub budget_bytes: u64,
    /// How many samples the dataset has.
    pub samples: usize,
    /// The split of the budget in percent: encoded, decoded.
    pub split: [u32; 2],
    /// Who leaves when there is no room.
    pub policy: Policy,
    /// For [`Policy::Random`].
    pub seed: u64,
    /// Where the memory comes from.
    pub backing: Backing,
}

/// Why there is no such cache.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The memory cannot be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The split is none.
    #[error(transparent)]
    Split(#[from] PartitionError),
}

/// A sample that might be kept: what it takes in each form, where it can be kept so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// As it was stored; `None` from a caller that has it from its encoded copy.
    pub encoded_bytes: Option<usize>,
    /// Decoded.
    pub decoded_bytes: Option<usize>,
    /// Whether the caller has seen a decoded copy that it cannot use.
    pub decoded_is_foreign: bool,
}

impl Offer {
    /// Something that is kept decoded or not at all.
    #[must_use]
    pub fn decoded(bytes: usize) -> Self {
        Self { decoded_bytes: Some(bytes), ..Self::default() }
    }
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheFigures {
    /// What the cache may take in all.
    pub budget_bytes: u64,
    /// What its entries take, the unused ends of their last blocks included.
    pub used_bytes: u64,
    /// Samples kept as they were stored.
    pub encoded: FormFigures,
    /// Samples kept after the transforms that draw no random number.
    pub decoded: FormFigures,
    /// Samples that left for others.
    pub evicted: u64,
    /// Entries that did not pass their checksum and were dropped.
    pub corrupt: u64,
}

/// What a cache holds of one form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FormFigures {
    /// How many samples.
    pub entries: u64,
    /// How many bytes they have.
    pub bytes: u64,
}

/// Samples kept in memory, by a policy.
pub struct Cache {
    memory: Memory,
    budget_bytes: AtomicU64,
    policy: Policy,
    /// Decides who is in. Held for a decision, never while bytes are copied.
    state: Mutex<State>,
    /// After a fork the lock may be held for ever by a thread that is not there.
    owner: u32,
}

struct State {
    keeper: Keeper,
    /// The split in force, in percent.
    shares: [u32; 3],
    corrupt: u64,
    /// Reused for every decision.
    evicted: Vec<(SampleId, Form)>,
}

impl Cache {
    /// An empty cache.
    ///
    /// # Errors
    /// When the memory cannot be had, or the split adds up to more than there is.
    pub fn new(options: &CacheOptions) -> Result<Self, CacheError> {
        Self::with_forms(
            options,
            match options.split {
                [_, 0] => &[Form::Encoded],
                [0, _] => &[Form::Decoded],
                _ => &[Form::Encoded, Form::Decoded],
            },
        )
    }

    /// An empty cache that is ready for every split, so that [`set_split`](Self::set_split) may choose any. It costs four bytes
    /// per sample more than one that keeps a single form.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn for_any_split(options: &CacheOptions) -> Result<Self, CacheError> {
        Self::with_forms(options, &[Form::Encoded, Form::Decoded])
    }

    fn with_forms(options: &CacheOptions, forms: &'static [Form]) -> Result<Self, CacheError> {
        let CacheOptions { budget_bytes, samples, split: [encoded, decoded], policy, seed, backing } =
            *options;
        let memory = Memory::new(&MemoryOptions { budget_bytes, samples, forms, backing })?;
        let shares = [encoded, decoded, 0];
        let partition = Partition::of_percent(memory.capacity_bytes(), 0, shares)?;
        let keeper = Keeper::new(partition, [policy; 3], seed);
        let state = Mutex::new(State { keeper, shares, corrupt: 0, evicted: Vec::new() });
        let budget_bytes = AtomicU64::new(budget_bytes);
        Ok(Self { memory, budget_bytes, policy, state, owner: std::process::id() })
    }

    /// Splits the budget anew, in percent: encoded, decoded. Nobody leaves at once: what a share has beyond its new size goes, the newest first, as the
    /// other form needs the room.
    ///
    /// # Errors
    /// When the shares add up to more than there is.
    pub fn set_split(&self, [encoded, decoded]: [u32; 2]) -> Result<(), PartitionError> {
        // A form without a table has no seats, whatever its share.
        let share = |form, percent| if self.keeps(form) { percent } else { 0 };
        let shares = [share(Form::Encoded, encoded), share(Form::Decoded, decoded), 0];
        if !self.is_here() {
            return Ok(());
        }
        let mut state = self.lock();
        let partition = Partition::of_percent(self.memory.capacity_bytes(), 0, shares)?;
        state.shares = shares;
        self.apply(partition, &mut state);
        Ok(())
    }

    /// Gives the cache another budget, at most the one it was made with. When it shrinks, the newest samples of each form go until the
    /// rest fits; one that is being read stays until its reader is done. Their memory goes back to the system.
    pub fn set_budget(&self, bytes: u64) {
        if !self.is_here() {
            return;
        }
        let mut state = self.lock();
        self.budget_bytes.store(bytes, Ordering::Relaxed);
        self.memory.set_budget(bytes);
        let partition = Partition::of_percent(self.memory.capacity_bytes(), 0, state.shares)
            .expect("shares that were accepted before");
        self.apply(partition, &mut state);
    }

    fn apply(&self, partition: Partition, state: &mut State) {
        let State { keeper, evicted, .. } = state;
        keeper.set_partition(partition, evicted);
        for (leaving, form) in evicted.drain(..) {
            self.memory.remove(leaving, form);
        }
    }

    /// The memory behind it.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Whether samples that are kept encoded may find room to be kept decoded.
    #[must_use]
    pub fn may_change_seats(&self) -> bool {
        self.keeps(Form::Encoded) && self.keeps(Form::Decoded)
    }

    /// Whether samples may be kept in this form.
    #[must_use]
    pub fn keeps(&self, form: Form) -> bool {
        self.memory.forms().contains(&form)
    }

    /// Whether samples leave for others, so that one for which there is no room may still be let in.
    #[must_use]
    pub fn evicts(&self) -> bool {
        self.policy != Policy::Pinned
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_here(&self) -> bool {
        self.owner == std::process::id()
    }

    /// The copy of a sample in this form, if it is kept.
    #[must_use]
    pub fn get(&self, sample: SampleId, form: Form) -> Option<Held<'_>> {
        let held = self.memory.get(sample, form)?;
        // The others need not know who was used when.
        if self.policy == Policy::Lru && self.is_here() {
            self.lock().keeper.get(sample, form);
        }
        Some(held)
    }

    /// Whether a copy of the sample is kept, in whichever form.
    #[must_use]
    pub fn has(&self, sample: SampleId) -> bool {
        self.memory.forms().iter().any(|&form| self.memory.get(sample, form).is_some())
    }

    /// Drops a copy that did not pass its checksum; the next reader finds none and makes it anew.
    pub fn discard(&self, sample: SampleId, form: Form) {
        if self.is_here() {
            let mut state = self.lock();
            // Of several readers who notice, the first counts.
            if self.memory.remove(sample, form) {
                state.keeper.remove(sample, form);
                state.corrupt += 1;
            }
        }
    }

    /// A seat for a sample that was just read, in the form the split has room for; `None` when it may not stay.
    ///
    /// Decoded comes first, as it saves more. Where the caller cannot use the decoded copy that is there, because it was kept for other transforms, the
    /// sample may be kept encoded besides, as long as nobody has to leave for it. A caller that has the sample from its encoded copy says so by offering no encoded form;
    /// it may then change seats where the decoded share has room, as it has after a [new split](Self::set_split). When both shares are full and somebody has to leave, a sample always asks for
    /// the same form, and as many ask for each as it has seats; else a sample would lose its seat in one form to
    /// take one in the other.
    #[must_use]
    pub fn reserve(&self, sample: SampleId, offer: &Offer) -> Option<Reservation<'_>> {
        let Offer { encoded_bytes, decoded_bytes, .. } = *offer;
        // The policy's tables grow with the numbers that they are told of.
        if !self.is_here() || !self.memory.knows(sample) {
            return None;
        }
        let mut state = self.lock();
        let state = &mut *state;
        let keeper = &mut state.keeper;
        let nearest = keeper.nearest(sample);
        let has_seat = match nearest {
            Form::Storage => false,
            Form::Encoded if encoded_bytes.is_none() => true,
            Form::Decoded if offer.decoded_is_foreign && !keeper.contains(sample, Form::Encoded) => true,
            _ => return None, // somebody else is just putting it in
        };
        let bytes_of = |form| match form {
            Form::Encoded => encoded_bytes,
            Form::Decoded if nearest == Form::Decoded => None,
            Form::Decoded => decoded_bytes,
            Form::Storage | Form::Augmented => None,
        };
        let has_room = |keeper: &Keeper, form| {
            bytes_of(form).is_some_and(|bytes| {
                keeper.used_bytes_of(form) + Memory::footprint(bytes) <= keeper.partition().bytes_of(form)
            })
        };
        let form = [Form::Decoded, Form::Encoded]
            .into_iter()
            .find(|&form| has_room(keeper, form))
            // Nobody leaves for one that has a seat.
            .or_else(|| {
                (!has_seat).then(|| home(sample, keeper.kept(Form::Encoded), keeper.kept(Form::Decoded)))
            })?;
        let footprint = Memory::footprint(bytes_of(form)?);
        let admission = keeper.offer(sample, form, footprint, &mut state.evicted);
        for (leaving, form) in state.evicted.drain(..) {
            self.memory.remove(leaving, form);
        }
        // Only then made: one that is dropped takes the lock that is held here.
        (admission == Admission::Kept).then(|| Reservation { cache: self, sample, form, taken: false })
    }

    /// What it holds.
    #[must_use]
    pub fn figures(&self) -> CacheFigures {
        let budget_bytes = self.budget_bytes.load(Ordering::Relaxed);
        if !self.is_here() {
            return CacheFigures { budget_bytes, ..CacheFigures::default() };
        }
        let of = |form| {
            let (entries, bytes) = self.memory.kept(form);
            FormFigures { entries, bytes }
        };
        let state = self.lock();
        let stats = state.keeper.stats();
        CacheFigures {
            budget_bytes,
            used_bytes: self.memory.used_bytes(),
            encoded: of(Form::Encoded),
            decoded: of(Form::Decoded),
            evicted: stats.encoded.evicted + stats.decoded.evicted,
            corrupt: state.corrupt,
        }
    }
}

/// The form that a sample asks for when both are full: so many of all samples ask for decoded as of all seats are.
fn home(sample: SampleId, encoded: usize, decoded: usize) -> Form {
    // The golden ratio spreads consecutive numbers evenly over the range.
    let spread = u64::from(sample.0.wrapping_mul(0x9e37_79b9));
    let seats = (encoded + decoded).max(1) as u64;
    if spread * seats < (decoded as u64) << 32 { Form::Decoded } else { Form::Encoded }
}

/// A seat in a cache that nobody sits on yet. Dropping it gives it back.
pub struct Reservation<'a> {
    cache: &'a Cache,
    sample: SampleId,
    form: Form,
    taken: bool,
}

impl Reservation<'_> {
    /// The form in which the sample may stay.
    #[must_use]
    pub fn form(&self) -> Form {
        self.form
    }

    /// Puts the sample's bytes in, as many as were reserved. It may fail to stay when readers still hold what it was to
    /// replace; then it is as if it had not been offered.
    pub fn commit(mut self, parts: &[&[u8]]) {
        let Cache { memory, .. } = self.cache;
        match memory.put(self.sample, self.form, parts) {
            // Present: it was thrown out and let in again by another thread meanwhile, whose copy is the same.
            Ok(()) | Err(Refused::Present) => self.taken = true,
            Err(Refused::Full | Refused::Unfit) => return,
        }
        let mut state = self.cache.lock();
        if !state.keeper.contains(self.sample, self.form) {
            // The seat has gone to somebody else while the bytes were copied.
            memory.remove(self.sample, self.form);
        } else if self.form == Form::Decoded && state.keeper.remove(self.sample, Form::Encoded) {
            // It has changed seats; no sample needs two.
            memory.remove(self.sample, Form::Encoded);
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.taken {
            self.cache.lock().keeper.remove(self.sample, self.form);
        }
    }
}

#[cfg(test)]
impl Cache {
    /// Whether the policy thinks that the sample is kept.
    pub(super) fn policy_keeps(&self, sample: SampleId, form: Form) -> bool {
        self.lock().keeper.contains(sample, form)
    }
}
