//! A list whose places are used again: an entry keeps its number for as long as it is there.

use std::ops::{Index, IndexMut};

/// Entries by slot number. What was in a slot that is free stays readable until the slot is used again.
#[derive(Clone, Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<T>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }

    /// How many slots are in use.
    pub(crate) fn in_use(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Puts an entry into the slot that was freed last, or into a new one.
    pub(crate) fn insert(&mut self, entry: T) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self[slot] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        }
    }

    /// A slot may be used again. The caller frees each slot once.
    pub(crate) fn free(&mut self, slot: u32) {
        self.free.push(slot);
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.entries.get(slot as usize)
    }

    /// The contents of all slots, free ones among them, in the order of their numbers.
    pub(crate) fn all(&self) -> &[T] {
        &self.entries
    }

    pub(crate) fn all_mut(&mut self) -> &mut [T] {
        &mut self.entries
    }
}

impl<T> Index<u32> for Slots<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        &self.entries[slot as usize]
    }
}

impl<T> IndexMut<u32> for Slots<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        &mut self.entries[slot as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_keep_their_numbers_and_are_used_again() {
        let mut slots = Slots::new();
        let [first, second] = ["a", "b"].map(|entry| slots.insert(entry));
        slots.free(first);
        assert_eq!((slots.in_use(), slots[second]), (1, "b"));
        assert_eq!(slots.insert("c"), first);
        assert_eq!(slots.insert("d"), 2);
        assert_eq!(slots.all(), ["c", "b", "d"]);
        assert_eq!(slots.get(3), None);
    }
}
