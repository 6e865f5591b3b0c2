//! Which addresses are taken at which steps.
//!
//! A tree over the steps, in which every node has the addresses that are taken at some of its steps, and those that are taken at
//! all of them. Neighbouring ranges of addresses are one, so that a node of a dense plan has few, and a buffer is placed in a time
//! that grows with the logarithm of the number of steps.
//!
//! That holds for each gap that is looked at. Gaps that are too small for a buffer are passed one by one: n buffers over g such
//! gaps take n·g looks, at worst n². The largest buffers are placed first, so most gaps are filled by the smaller ones after them;
//! what is free at all steps of a life is known by no single node, so a tree by size within each would not find it sooner.

use std::collections::BTreeMap;

use crate::steps;

/// Addresses: from where to where. The ranges neither overlap nor touch.
#[derive(Clone, Default)]
struct Ranges(BTreeMap<i64, i64>);

impl Ranges {
    fn insert(&mut self, mut from: i64, mut to: i64) {
        while let Some((&start, &end)) = self.0.range(..=to).next_back().filter(|(_, end)| **end >= from) {
            steps::count(1);
            self.0.remove(&start);
            (from, to) = (from.min(start), to.max(end));
        }
        self.0.insert(from, to);
    }

    /// Where the last range ends that overlaps with this one.
    fn end_of_overlap(&self, from: i64, to: i64) -> Option<i64> {
        steps::count(1);
        self.0.range(..to).next_back().map(|(_, end)| *end).filter(|end| *end > from)
    }
}

/// The addresses that are taken, by step.
pub(in crate::compiler) struct Occupied {
    /// A power of two: how many steps there are, or more.
    leaves: usize,
    /// The children of node i are 2i and 2i + 1. Taken at all steps of a node, as far as no node above it says so.
    always: Vec<Ranges>,
    /// Taken at some step of a node.
    ever: Vec<Ranges>,
}

impl Occupied {
    /// Nothing is taken at so many steps.
    pub fn new(steps: usize) -> Occupied {
        let leaves = steps.next_power_of_two();
        Occupied { leaves, always: vec![Ranges::default(); 2 * leaves], ever: vec![Ranges::default(); 2 * leaves] }
    }

    /// The lowest address from which so many bytes are free from the first step to the last.
    pub fn lowest(&self, [first, last]: [usize; 2], bytes: i64) -> i64 {
        let above = self.above(first).chain(self.above(last)).map(|node| &self.always[node]);
        let inside = self.inside(first, last).map(|node| &self.ever[node]);
        let taken: Vec<&Ranges> = above.chain(inside).filter(|ranges| !ranges.0.is_empty()).collect();
        let mut start = 0i64;
        loop {
            let end = start.saturating_add(bytes);
            match taken.iter().filter_map(|ranges| ranges.end_of_overlap(start, end)).max() {
                Some(next) => start = next,
                None => return start,
            }
        }
    }

    /// Takes a range of addresses from the first step to the last.
    pub fn take(&mut self, [first, last]: [usize; 2], from: i64, to: i64) {
        if from >= to {
            return;
        }
        for node in self.inside(first, last) {
            self.always[node].insert(from, to);
            self.ever[node].insert(from, to);
        }
        for node in self.above(first).chain(self.above(last)) {
            self.ever[node].insert(from, to);
        }
    }

    /// The nodes that a step lies in.
    fn above(&self, step: usize) -> impl Iterator<Item = usize> + use<> {
        std::iter::successors(Some(self.leaves + step), |node| Some(node / 2)).take_while(|node| *node > 0)
    }

    /// The fewest nodes that these steps are.
    fn inside(&self, first: usize, last: usize) -> impl Iterator<Item = usize> + use<> {
        let (mut from, mut to) = (self.leaves + first, self.leaves + last + 1);
        std::iter::from_fn(move || {
            (from < to).then(|| {
                let nodes = [(from % 2 == 1).then_some(from), (to % 2 == 1).then(|| to - 1)];
                (from, to) = (from.div_ceil(2), to / 2);
                nodes
            })
        })
        .flatten()
        .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What it answers is the lowest gap among all that live at the same time.
        #[test]
        fn a_range_is_placed_as_low_as_it_can_be(
            buffers in prop::collection::vec((0usize..20, 0usize..20, 0i64..9), 1..40),
        ) {
            let mut occupied = Occupied::new(20);
            let mut placed: Vec<(usize, usize, i64, i64)> = Vec::new();
            for (a, b, bytes) in buffers {
                let (first, last) = (a.min(b), a.max(b));
                let start = occupied.lowest([first, last], bytes);
                let is_free = |start: i64| {
                    placed.iter().all(|&(f, l, from, to)| {
                        l < first || last < f || to <= start || from >= start + bytes
                    })
                };
                prop_assert_eq!(Some(start), (0..).find(|start| is_free(*start)));
                occupied.take([first, last], start, start + bytes);
                if bytes > 0 {
                    placed.push((first, last, start, start + bytes));
                }
            }
        }
    }

    /// Of buffers that live for a while each, and of those that all live to the end.
    #[test]
    fn places_take_steps_in_proportion_to_the_buffers() {
        let place = |buffers: usize, to_the_end: bool| {
            crate::steps::of(|| {
                let mut occupied = Occupied::new(buffers);
                for first in 0..buffers {
                    let last = if to_the_end { buffers - 1 } else { (first + 2).min(buffers - 1) };
                    let start = occupied.lowest([first, last], 128);
                    occupied.take([first, last], start, start + 128);
                }
            })
        };
        for to_the_end in [false, true] {
            let [few, many] = [1000, 8000].map(|buffers| place(buffers, to_the_end));
            // Eight times as many, with three more levels of the tree.
            assert!(many < few * 8 * 14 / 10, "{few} steps, then {many}");
        }
    }
}
