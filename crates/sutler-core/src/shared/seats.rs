//! Who takes part: one seat for each job, or for each rank of a job.
//!
//! A seat is a bit in the sets that the classes and the entries hold. When its job has left, the seat stays reserved for it as long as
//! there are others: entries remember by seats who has had them, and a job that comes back must not be given one again.

use std::collections::VecDeque;

use super::classes::Seats;
use crate::Ledger;

/// A training job, as its owner calls it. Its ranks have the same key and one seat each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey(pub u64);

/// A place at the table, valid from a join to the leave that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seat {
    pub(super) index: u8,
    /// How often the seat had been taken before, so that a late message of a job that left is not taken for its successor's.
    visit: u32,
}

/// What is known of the job in a seat.
#[derive(Clone, Debug)]
pub(super) struct Place {
    key: JobKey,
    visit: u32,
    /// The seats of the same job, here or reserved, its own included.
    pub(super) group: Seats,
    /// When it left, by the count of all leaves; `None` while it is here.
    left_at: Option<u64>,
    /// Whether what it has had is known: it has begun an epoch here, in this visit or an earlier one.
    pub(super) known: bool,
    /// The books of its epochs: the last is the one it is in, those before still have leases out.
    pub(super) books: VecDeque<(u32, Ledger)>,
    /// How many samples it lacks in its epoch.
    pub(super) lacks: u32,
    /// How many of them are pinned.
    pub(super) lacks_pinned: u32,
    /// How many pinned samples it should have had by now, less how many it had.
    pub(super) pinned_due: f64,
}

/// All seats.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    places: Vec<Place>,
    leaves: u64,
}

/// What a join found.
pub(super) struct Joined {
    pub(super) seat: Seat,
    /// The seats of the same job, here or reserved, the new one included.
    pub(super) group: Seats,
    /// The seat had been reserved for a job that has no claim to it any more.
    pub(super) displaced: bool,
}

/// The bits of a word.
pub(super) const SEATS_MAX: usize = 64;

impl Table {
    /// Finds a seat: the one the job had, else a new one, else the one whose job left longest ago.
    pub(super) fn join(&mut self, key: JobKey) -> Option<Joined> {
        let own = self.places.iter().position(|place| place.left_at.is_some() && place.key == key);
        let new = (self.places.len() < SEATS_MAX).then_some(self.places.len());
        let longest_gone = || {
            let gone = self.places.iter().enumerate().filter(|(_, place)| place.left_at.is_some());
            gone.min_by_key(|(_, place)| place.left_at).map(|(index, _)| index)
        };
        let index = own.or(new).or_else(longest_gone)?;
        let visit = self.places.get(index).map_or(0, |place| place.visit.wrapping_add(1));
        let displaced = self.places.get(index).is_some_and(|place| place.key != key);
        let place = Place {
            key,
            visit,
            group: 0,
            left_at: None,
            known: own.is_some(),
            books: VecDeque::new(),
            lacks: 0,
            lacks_pinned: 0,
            pinned_due: 0.0,
        };
        match self.places.get_mut(index) {
            Some(taken) => *taken = place,
            None => self.places.push(place),
        }
        self.regroup();
        let group = self.places[index].group;
        Some(Joined { seat: Seat { index: index as u8, visit }, group, displaced })
    }

    pub(super) fn leave(&mut self, seat: Seat) {
        self.leaves += 1;
        self.places[seat.index as usize].left_at = Some(self.leaves);
    }

    pub(super) fn get(&self, seat: Seat) -> Option<&Place> {
        self.places
            .get(seat.index as usize)
            .filter(|place| place.left_at.is_none() && place.visit == seat.visit)
    }

    pub(super) fn get_mut(&mut self, seat: Seat) -> Option<&mut Place> {
        self.places
            .get_mut(seat.index as usize)
            .filter(|place| place.left_at.is_none() && place.visit == seat.visit)
    }

    fn regroup(&mut self) {
        for index in 0..self.places.len() {
            let key = self.places[index].key;
            let mine = self.places.iter().enumerate().filter(|(_, place)| place.key == key);
            self.places[index].group = mine.fold(0, |group, (index, _)| group | 1 << index);
        }
    }

    /// Does something to every place whose bit is in `seats`.
    pub(super) fn each(&mut self, seats: Seats, mut change: impl FnMut(&mut Place)) {
        let mut rest = seats;
        while rest != 0 {
            change(&mut self.places[rest.trailing_zeros() as usize]);
            rest &= rest - 1;
        }
    }
}
