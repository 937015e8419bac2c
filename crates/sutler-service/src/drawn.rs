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
        let mut left = samples;
        while let Some(&batch) = self.batches.front().filter(|&&batch| batch <= left) {
            self.batches.pop_front();
            left -= batch;
        }
    }

    /// What tells an agent all of it.
    pub fn requests(&self, run: u64, sequence: SequenceSpec) -> Vec<Request> {
        let mut requests = Vec::new();
        let indices: Vec<u64> = self.indices.iter().copied().collect();
        match sequence {
            SequenceSpec::Own { .. } => return requests,
            SequenceSpec::Drawn { .. } => {
                let pieces = indices.chunks(INDICES_MAX);
                requests.extend(pieces.map(|piece| Request::Extend { run, indices: piece.to_vec() }));
            }
            SequenceSpec::Batches => {
                let (mut start, mut piece, mut size) = (0, Vec::new(), 0);
                for &batch in &self.batches {
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
        if self.ended {
            requests.push(Request::EndDrawing { run });
        }
        requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_delivered_is_not_told_again() {
        let mut drawn = Drawn::default();
        drawn.extend_batches(&[vec![1, 2], vec![3], vec![4, 5, 6]]);
        drawn.forget(2);
        drawn.forget(1);
        drawn.end();
        let requests = drawn.requests(7, SequenceSpec::Batches);
        assert!(
            matches!(&requests[0], Request::ExtendBatches { run: 7, batches } if *batches == [vec![4, 5, 6]])
        );
        assert!(matches!(requests[1], Request::EndDrawing { run: 7 }));
        let mut drawn = Drawn::default();
        drawn.extend(&[1, 2, 3]);
        drawn.forget(2);
        let requests = drawn.requests(7, SequenceSpec::Drawn { batch_size: 2, drop_last: false });
        assert!(matches!(&requests[..], [Request::Extend { indices, .. }] if *indices == [3]));
    }
}
