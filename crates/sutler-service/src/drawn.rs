//! What a sampler has drawn and the agent has not delivered, so that another agent can be told again.

use std::collections::VecDeque;

use crate::message::Request;
use crate::spec::SequenceSpec;

/// The most indices in a message, so that none is larger than messages may be.
const INDICES_MAX: usize = 1 << 20;

/// What a sampler has drawn.
#[derive(Default)]
pub struct Drawn {
    indices: VecDeque<u64>,
    /// How the indices are cut, where a batch sampler drew them.
    batches: VecDeque<usize>,
    ended: bool,
    told: Told,
}

/// How much of it the agent has been told.
#[derive(Default)]
struct Told {
    indices: usize,
    batches: usize,
    end: bool,
}

impl Drawn {
    pub fn extend(&mut self, indices: &[u64]) {
        self.indices.extend(indices);
    }

    pub fn extend_batches(&mut self, batches: &[Vec<u64>]) {
        for batch in batches {
            self.indices.extend(batch);
            self.batches.push_back(batch.len());
        }
    }

    pub fn end(&mut self) {
        self.ended = true;
    }

    /// So many samples have been delivered in order, and nobody will ask for them again.
    pub fn forget(&mut self, samples: u64) {
        let samples = usize::try_from(samples).unwrap_or(usize::MAX).min(self.indices.len());
        self.indices.drain(..samples);
        self.told.indices = self.told.indices.saturating_sub(samples);
        let mut left = samples;
        while let Some(&batch) = self.batches.front().filter(|&&batch| batch <= left) {
            self.batches.pop_front();
            self.told.batches = self.told.batches.saturating_sub(1);
            left -= batch;
        }
    }

    /// How many samples the agent has not been told of.
    pub fn untold(&self) -> usize {
        self.indices.len() - self.told.indices
    }

    /// What tells an agent all of it.
    pub fn all(&mut self, run: u64, sequence: SequenceSpec) -> Vec<Request> {
        self.told = Told::default();
        self.news(run, sequence)
    }

    /// What tells an agent whatever it has not been told.
    pub fn news(&mut self, run: u64, sequence: SequenceSpec) -> Vec<Request> {
        let mut requests = Vec::new();
        let indices: Vec<u64> = self.indices.range(self.told.indices..).copied().collect();
        match sequence {
            SequenceSpec::Own { .. } => return requests,
            SequenceSpec::Drawn { .. } => {
                let pieces = indices.chunks(INDICES_MAX);
                requests.extend(pieces.map(|piece| Request::Extend { run, indices: piece.to_vec() }));
            }
            SequenceSpec::Batches => {
                let (mut start, mut piece, mut size) = (0, Vec::new(), 0);
                for &batch in self.batches.range(self.told.batches..) {
                    piece.push(indices[start..start + batch].to_vec());
                    start += batch;
                    size += batch;
                    if size >= INDICES_MAX {
                        requests.push(Request::ExtendBatches { run, batches: std::mem::take(&mut piece) });
                        size = 0;
                    }
                }
                if !piece.is_empty() {
                    requests.push(Request::ExtendBatches { run, batches: piece });
                }
            }
        }
        if self.ended && !self.told.end {
            requests.push(Request::EndDrawing { run });
        }
        self.told = Told { indices: self.indices.len(), batches: self.batches.len(), end: self.ended };
        requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWN: SequenceSpec = SequenceSpec::Drawn { batch_size: 2, drop_last: false };

    #[test]
    fn what_was_delivered_is_not_told_again() {
        let mut drawn = Drawn::default();
        drawn.extend_batches(&[vec![1, 2], vec![3], vec![4, 5, 6]]);
        drawn.forget(2);
        drawn.forget(1);
        drawn.end();
        let requests = drawn.all(7, SequenceSpec::Batches);
        assert!(
            matches!(&requests[0], Request::ExtendBatches { run: 7, batches } if *batches == [vec![4, 5, 6]])
        );
        assert!(matches!(requests[1], Request::EndDrawing { run: 7 }));
        let mut drawn = Drawn::default();
        drawn.extend(&[1, 2, 3]);
        drawn.forget(2);
        let requests = drawn.all(7, DRAWN);
        assert!(matches!(&requests[..], [Request::Extend { indices, .. }] if *indices == [3]));
    }

    #[test]
    fn news_are_told_once_to_each_agent() {
        let mut drawn = Drawn::default();
        drawn.extend(&[1, 2]);
        assert_eq!(drawn.news(7, DRAWN).len(), 1);
        drawn.extend(&[3]);
        drawn.forget(1);
        assert_eq!(drawn.untold(), 1);
        let news = drawn.news(7, DRAWN);
        assert!(matches!(&news[..], [Request::Extend { indices, .. }] if *indices == [3]));
        drawn.end();
        assert!(matches!(drawn.news(7, DRAWN)[..], [Request::EndDrawing { .. }]));
        assert!(drawn.news(7, DRAWN).is_empty());
        let all = drawn.all(7, DRAWN);
        assert!(
            matches!(&all[..], [Request::Extend { indices, .. }, Request::EndDrawing { .. }] if *indices == [2, 3])
        );
        let mut drawn = Drawn::default();
        drawn.extend_batches(&[vec![1, 2], vec![3]]);
        assert_eq!(drawn.news(7, SequenceSpec::Batches).len(), 1);
        drawn.forget(2);
        drawn.extend_batches(&[vec![4]]);
        let news = drawn.news(7, SequenceSpec::Batches);
        assert!(matches!(&news[..], [Request::ExtendBatches { batches, .. }] if *batches == [vec![4]]));
    }
}
