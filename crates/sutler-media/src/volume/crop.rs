//! Where a block is cut out: anywhere, or over a labelled part, so that small organs are seen often enough.

use sutler_core::SampleRng;

use super::{Block, components};

/// How many parts of each label a crop is placed over: the largest. Specks would make the network look at noise.
const PARTS_KEPT: usize = 2;

/// The blocks that the largest parts of each label fill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Foreground {
    /// One for each label there is: its blocks, the largest last.
    labels: Vec<Vec<Block>>,
}

impl Foreground {
    /// Looks for the parts.
    ///
    /// # Panics
    /// When there are not as many labels as the shape has places.
    #[must_use]
    pub fn find(labels: &[u8], shape: [usize; 3]) -> Self {
        let largest =
            |(_, mut blocks): (u8, Vec<Block>)| blocks.split_off(blocks.len().saturating_sub(PARTS_KEPT));
        Self { labels: components(labels, shape).into_iter().map(largest).collect() }
    }

    /// About how much memory it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let blocks: usize = self.labels.iter().map(Vec::len).sum();
        size_of::<Self>() + self.labels.len() * size_of::<Vec<Block>>() + blocks * size_of::<Block>()
    }
}

/// A block of this size in a volume of this shape, which is no smaller: over one of the parts where there are some, else anywhere.
pub(super) fn place(
    rng: &mut SampleRng,
    shape: [usize; 3],
    size: [usize; 3],
    foreground: Option<&Foreground>,
) -> Block {
    let part = foreground.filter(|foreground| !foreground.labels.is_empty()).map(|foreground| {
        let blocks = choose(rng, &foreground.labels);
        choose(rng, blocks)
    });
    let start = [0, 1, 2].map(|axis| {
        let room = shape[axis] - size[axis];
        let Some(part) = part else { return up_to(rng, room) };
        let (first, length) = (part.start[axis], part.sides()[axis]);
        if length > size[axis] {
            // The part is longer than the crop, which lies somewhere in it.
            first + up_to(rng, length - size[axis])
        } else {
            // What the crop has beyond the part is split at random over both sides, as far as the volume goes.
            first.saturating_sub(up_to(rng, size[axis] - length)).min(room)
        }
    });
    Block { start, end: [0, 1, 2].map(|axis| start[axis] + size[axis]) }
}

fn choose<'a, T>(rng: &mut SampleRng, list: &'a [T]) -> &'a T {
    &list[up_to(rng, list.len() - 1)]
}

/// A number from 0 to `most`, each as likely as the others. Axes are far shorter than 32 bits can say: limits see to it.
fn up_to(rng: &mut SampleRng, most: usize) -> usize {
    rng.below(u32::try_from(most).unwrap_or(u32::MAX - 1) + 1) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sutler_core::SampleId;

    use super::*;

    fn rng(seed: u64) -> SampleRng {
        SampleRng::new(seed, 0, SampleId(0))
    }

    /// A volume with one cube of each of these labels.
    fn labels(shape: [usize; 3], cubes: &[(u8, [usize; 3], usize)]) -> Vec<u8> {
        let mut labels = vec![0; shape.iter().product()];
        for &(label, [z, y, x], side) in cubes {
            for (dz, dy) in (0..side).flat_map(|dz| (0..side).map(move |dy| (dz, dy))) {
                let at = ((z + dz) * shape[1] + y + dy) * shape[2] + x;
                labels[at..at + side].fill(label);
            }
        }
        labels
    }

    proptest! {
        #[test]
        fn a_crop_over_a_part_shows_all_of_it_or_nothing_else(
            seed in any::<u64>(),
            size in prop::array::uniform3(1usize..10),
            corner in prop::array::uniform3(0usize..6),
            side in 1usize..5,
        ) {
            let shape = [10, 11, 12];
            let foreground = Foreground::find(&labels(shape, &[(3, corner, side)]), shape);
            let block = place(&mut rng(seed), shape, size, Some(&foreground));
            prop_assert_eq!(block.sides(), size);
            for axis in 0..3 {
                prop_assert!(block.end[axis] <= shape[axis]);
                let part = corner[axis]..corner[axis] + side;
                let covers = block.start[axis] <= part.start && part.end <= block.end[axis];
                let inside = part.start <= block.start[axis] && block.end[axis] <= part.end;
                prop_assert!(covers || inside, "{:?} on axis {}", block, axis);
            }
        }
    }

    #[test]
    fn labels_are_equally_likely_and_only_the_two_largest_parts_count() {
        let shape = [4, 4, 40];
        // Of label 1 three cubes, the smallest of which never counts; of label 2 one.
        let cubes = [(1, [0, 0, 0], 1), (1, [0, 0, 10], 2), (1, [0, 0, 20], 3), (2, [0, 0, 30], 4)];
        let foreground = Foreground::find(&labels(shape, &cubes), shape);
        let mut counts = [0; 40];
        let mut rng = rng(5);
        for _ in 0..4000 {
            // The crop is as small as can be, so it lies in the part that was chosen.
            counts[place(&mut rng, shape, [1, 1, 1], Some(&foreground)).start[2] / 10] += 1;
        }
        assert_eq!(counts[0], 0);
        for (tens, expected) in [(1, 1000), (2, 1000), (3, 2000)] {
            assert!(i32::abs(counts[tens] - expected) < 150, "{counts:?}");
        }
    }

    #[test]
    fn without_labels_it_is_anywhere() {
        let nothing = Foreground::find(&[0; 27], [3, 3, 3]);
        let mut seen = [0; 8];
        let mut rng = rng(1);
        for _ in 0..800 {
            let [z, y, x] = place(&mut rng, [3, 3, 3], [2, 2, 2], Some(&nothing)).start;
            seen[(z * 2 + y) * 2 + x] += 1;
        }
        assert!(seen.iter().all(|&count| count > 60), "{seen:?}");
    }
}
