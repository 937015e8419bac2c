//! Blocks of a volume, and where its labelled parts are.

/// A block of values: along each axis from `start` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Block {
    /// The first value along each axis.
    pub start: [usize; 3],
    /// One past the last.
    pub end: [usize; 3],
}

impl Block {
    /// All of a volume.
    #[must_use]
    pub fn whole(shape: [usize; 3]) -> Self {
        Self { start: [0; 3], end: shape }
    }

    /// How long it is along each axis.
    #[must_use]
    pub fn sides(&self) -> [usize; 3] {
        [0, 1, 2].map(|axis| self.end[axis] - self.start[axis])
    }

    /// How many values it has.
    #[must_use]
    pub fn values(&self) -> usize {
        self.sides().iter().product()
    }
}

/// A run of equal labels along the last axis.
#[derive(Clone, Copy)]
struct Run {
    label: u8,
    start: usize,
    end: usize,
    /// The place of the run that stands for its part, in the list of all runs.
    parent: usize,
}

/// The blocks that the connected parts of each label above 0 fill, by label, the largest block last. Values are connected along
/// the axes, not over corners.
///
/// Labels come in long runs, so runs are joined instead of values: a scan of the volume and a little more.
///
/// # Panics
/// When there are not as many labels as the shape has places.
#[must_use]
pub fn components(labels: &[u8], shape: [usize; 3]) -> Vec<(u8, Vec<Block>)> {
    assert_eq!(labels.len(), shape.iter().product::<usize>(), "a label for each place");
    let [planes, rows, row] = shape;
    let mut runs: Vec<Run> = Vec::new();
    // Where the runs of each row begin in the list; one entry more at the end.
    let mut row_starts: Vec<usize> = Vec::with_capacity(planes * rows + 1);
    for line in labels.chunks_exact(row.max(1)) {
        row_starts.push(runs.len());
        let mut start = 0;
        for part in line.chunk_by(|a, b| a == b) {
            let end = start + part.len();
            if part[0] > 0 {
                runs.push(Run { label: part[0], start, end, parent: runs.len() });
            }
            start = end;
        }
    }
    row_starts.push(runs.len());
    for number in 0..planes * rows {
        if number % rows > 0 {
            join(
                &mut runs,
                row_starts[number - 1]..row_starts[number],
                row_starts[number]..row_starts[number + 1],
            );
        }
        if number >= rows {
            let above = row_starts[number - rows]..row_starts[number - rows + 1];
            join(&mut runs, above, row_starts[number]..row_starts[number + 1]);
        }
    }
    let mut blocks: std::collections::BTreeMap<(u8, usize), Block> = std::collections::BTreeMap::new();
    for number in 0..planes * rows {
        let (plane, line) = (number / rows, number % rows);
        for index in row_starts[number]..row_starts[number + 1] {
            let root = root_of(&mut runs, index);
            let Run { label, start, end, .. } = runs[index];
            let here = Block { start: [plane, line, start], end: [plane + 1, line + 1, end] };
            blocks.entry((label, root)).and_modify(|block| *block = around(block, &here)).or_insert(here);
        }
    }
    let mut by_label: Vec<(u8, Vec<Block>)> = Vec::new();
    for ((label, _), block) in blocks {
        match by_label.last_mut() {
            Some((last, list)) if *last == label => list.push(block),
            _ => by_label.push((label, vec![block])),
        }
    }
    for (_, list) in &mut by_label {
        list.sort_by_key(Block::values); // stable: of equal ones the first found stays the first
    }
    by_label
}

fn around(one: &Block, other: &Block) -> Block {
    Block {
        start: [0, 1, 2].map(|axis| one.start[axis].min(other.start[axis])),
        end: [0, 1, 2].map(|axis| one.end[axis].max(other.end[axis])),
    }
}

fn root_of(runs: &mut [Run], mut index: usize) -> usize {
    while runs[index].parent != index {
        // Halving the way as we go keeps ways short.
        runs[index].parent = runs[runs[index].parent].parent;
        index = runs[index].parent;
    }
    index
}

/// Joins the runs of two neighbouring rows that touch and have the same label.
fn join(runs: &mut [Run], one: std::ops::Range<usize>, other: std::ops::Range<usize>) {
    let (mut here, mut there) = (one.start, other.start);
    while here < one.end && there < other.end {
        let (a, b) = (runs[here], runs[there]);
        if a.label == b.label && a.start < b.end && b.start < a.end {
            let (first, second) = (root_of(runs, here), root_of(runs, there));
            // The earlier stands for both, so that parts keep the order in which they are found.
            runs[first.max(second)].parent = first.min(second);
        }
        if a.end <= b.end {
            here += 1;
        } else {
            there += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same by flooding from every value, one at a time.
    fn flooded(labels: &[u8], shape: [usize; 3]) -> Vec<(u8, Vec<Block>)> {
        let at = |[z, y, x]: [usize; 3]| (z * shape[1] + y) * shape[2] + x;
        let mut seen = vec![false; labels.len()];
        let mut by_label: std::collections::BTreeMap<u8, Vec<Block>> = std::collections::BTreeMap::new();
        for index in 0..labels.len() {
            if labels[index] == 0 || seen[index] {
                continue;
            }
            let place = [index / shape[2] / shape[1], index / shape[2] % shape[1], index % shape[2]];
            let mut block = Block { start: place, end: place.map(|side| side + 1) };
            let mut open = vec![place];
            seen[index] = true;
            while let Some(place) = open.pop() {
                block = around(&block, &Block { start: place, end: place.map(|side| side + 1) });
                for axis in 0..3 {
                    for forward in [false, true] {
                        let mut next = place;
                        if forward && place[axis] + 1 < shape[axis] {
                            next[axis] += 1;
                        } else if !forward && place[axis] > 0 {
                            next[axis] -= 1;
                        }
                        if !seen[at(next)] && labels[at(next)] == labels[index] {
                            seen[at(next)] = true;
                            open.push(next);
                        }
                    }
                }
            }
            by_label.entry(labels[index]).or_default().push(block);
        }
        let mut found: Vec<_> = by_label.into_iter().collect();
        for (_, list) in &mut found {
            list.sort_by_key(Block::values);
        }
        found
    }

    proptest! {
        #[test]
        fn parts_are_those_that_flooding_finds(
            shape in prop::array::uniform3(1usize..6),
            labels in prop::collection::vec(0u8..3, 125),
        ) {
            let labels = &labels[..shape.iter().product()];
            prop_assert_eq!(components(labels, shape), flooded(labels, shape));
        }
    }

    #[test]
    fn corners_do_not_connect() {
        let found = components(&[1, 0, 0, 1], [1, 2, 2]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].1.len(), 2);
        assert!(components(&[0; 8], [2, 2, 2]).is_empty());
    }
}
