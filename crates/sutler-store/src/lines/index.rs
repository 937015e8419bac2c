//! Where the lines of a file begin.
//!
//! What is kept for each line is how far it is to the next one, four bytes, and for one line out of 64 where it begins: ten million
//! lines take 42 MB. A line is found by adding up at most 63 of these.
//!
//! Blank lines are no samples unless asked for, and belong to the way from one sample to the next. So how far it is to the next sample does not tell
//! where a line ends: the reader looks for the end of the line. For a message, the lines since the last known one are counted.

use sutler_core::Fingerprint;
use twox_hash::XxHash3_128;

/// One line out of so many has its place written down: a quarter of a byte for each, and at most so many to add up.
const STRIDE: usize = 64;

/// What some systems' editors begin a file with.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The place of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// Its first byte.
    pub offset: u64,
    /// Its number, counted from 1.
    pub line: u64,
}

/// The lines of one file that are samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LineIndex {
    /// From the beginning of each to that of the next, or to the end.
    pub strides: Vec<u32>,
    /// One out of [`STRIDE`].
    pub marks: Vec<Mark>,
    /// How long the file is.
    pub bytes: u64,
    /// A hash of all of it.
    pub content: Fingerprint,
}

impl LineIndex {
    pub fn len(&self) -> usize {
        self.strides.len()
    }

    /// Where a sample begins and how far it is to the next.
    pub fn place(&self, sample: usize) -> (u64, u32) {
        let (mark, group) = self.mark_before(sample);
        let between: u64 = self.strides[group..sample].iter().map(|&stride| u64::from(stride)).sum();
        (mark.offset + between, self.strides[sample])
    }

    /// The last known place that is not behind a sample, and the sample there.
    pub fn mark_before(&self, sample: usize) -> (Mark, usize) {
        (self.marks[sample / STRIDE], sample / STRIDE * STRIDE)
    }

    /// Whether as many places are known as the samples need, for one that was read from a file.
    pub fn is_whole(&self) -> bool {
        self.marks.len() == self.strides.len().div_ceil(STRIDE)
    }
}

/// A line that is longer than four bytes can say.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong {
    pub line: u64,
}

/// Looks for lines in a file that comes piece by piece.
pub(super) struct Indexer {
    keep_blank: bool,
    strides: Vec<u32>,
    marks: Vec<Mark>,
    hasher: XxHash3_128,
    /// How much has come.
    bytes: u64,
    /// Where the line that is being looked at begins, and its number.
    line: Mark,
    /// Whether that line has something other than white space.
    has_text: bool,
    /// Where the latest sample begins.
    latest: Option<Mark>,
}

impl Indexer {
    pub fn new(keep_blank: bool) -> Self {
        Self {
            keep_blank,
            strides: Vec::new(),
            marks: Vec::new(),
            hasher: XxHash3_128::new(),
            bytes: 0,
            line: Mark { offset: 0, line: 1 },
            has_text: false,
            latest: None,
        }
    }

    /// The next piece. The first one has the first three bytes of the file, if it has as many.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), TooLong> {
        self.hasher.write(piece);
        let mut rest = 0;
        if self.bytes == 0 && piece.starts_with(BYTE_ORDER_MARK) {
            rest = BYTE_ORDER_MARK.len();
            self.line.offset = rest as u64;
        }
        for end in memchr::memchr_iter(b'\n', piece) {
            self.look_at(&piece[rest..end]);
            self.end_line(self.bytes + end as u64 + 1)?;
            rest = end + 1;
        }
        self.look_at(&piece[rest..]);
        self.bytes += piece.len() as u64;
        Ok(())
    }

    fn look_at(&mut self, part: &[u8]) {
        // Nearly always the first byte decides.
        self.has_text = self.has_text || part.iter().any(|byte| !byte.is_ascii_whitespace());
    }

    /// The line is at its end, and the next one begins there.
    fn end_line(&mut self, next: u64) -> Result<(), TooLong> {
        if self.has_text || self.keep_blank {
            self.end_sample(self.line.offset)?;
            if self.strides.len().is_multiple_of(STRIDE) {
                self.marks.push(self.line);
            }
            self.latest = Some(self.line);
        }
        self.line = Mark { offset: next, line: self.line.line + 1 };
        self.has_text = false;
        Ok(())
    }

    /// The latest sample, with whatever blank lines follow it, ends here.
    fn end_sample(&mut self, end: u64) -> Result<(), TooLong> {
        if let Some(latest) = self.latest.take() {
            let stride = u32::try_from(end - latest.offset).map_err(|_| TooLong { line: latest.line })?;
            self.strides.push(stride);
        }
        Ok(())
    }

    /// All pieces have come.
    pub fn finish(mut self) -> Result<LineIndex, TooLong> {
        if self.line.offset < self.bytes {
            self.end_line(self.bytes)?;
        }
        self.end_sample(self.bytes)?;
        self.strides.shrink_to_fit();
        let content = Fingerprint(self.hasher.finish_128());
        Ok(LineIndex { strides: self.strides, marks: self.marks, bytes: self.bytes, content })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn index(text: &[u8], keep_blank: bool, piece: usize) -> LineIndex {
        let mut indexer = Indexer::new(keep_blank);
        let first = text.len().min(piece.max(3));
        indexer.push(&text[..first]).unwrap();
        text[first..].chunks(piece).for_each(|piece| indexer.push(piece).unwrap());
        indexer.finish().unwrap()
    }

    fn lines(text: &[u8], index: &LineIndex) -> Vec<Vec<u8>> {
        let line = |sample| {
            let (start, stride) = index.place(sample);
            let all = &text[start as usize..start as usize + stride as usize];
            all.split(|&byte| byte == b'\n').next().unwrap_or_default().to_vec()
        };
        (0..index.len()).map(line).collect()
    }

    proptest! {
        #[test]
        fn lines_are_those_that_splitting_gives(
            parts in prop::collection::vec("[ab \t\r]{0,5}", 0..200),
            mark: bool,
            last_line_ends: bool,
            keep_blank: bool,
            piece in 1..50usize,
        ) {
            let mut text = parts.join("\n");
            if last_line_ends && !parts.is_empty() {
                text.push('\n');
            }
            let mut expected: Vec<&str> = text.split('\n').collect();
            // What follows the last line end is no line.
            expected.truncate(if text.is_empty() || text.ends_with('\n') { expected.len() - 1 } else { expected.len() });
            if !keep_blank {
                expected.retain(|line| !line.trim_ascii().is_empty());
            }
            let expected: Vec<Vec<u8>> = expected.into_iter().map(|line| line.as_bytes().to_vec()).collect();
            let bytes = [if mark { BYTE_ORDER_MARK } else { b"" }, text.as_bytes()].concat();
            let index = index(&bytes, keep_blank, piece);
            prop_assert_eq!(lines(&bytes, &index), expected);
            prop_assert!(index.is_whole());
            prop_assert_eq!(index.bytes, bytes.len() as u64);
        }
    }

    #[test]
    fn every_64th_line_has_its_number() {
        let text: Vec<u8> = (0..200).flat_map(|line| format!("{line}\n\n").into_bytes()).collect();
        let index = index(&text, false, 4096);
        let numbers: Vec<u64> = index.marks.iter().map(|mark| mark.line).collect();
        assert_eq!(numbers, [1, 129, 257, 385]);
    }
}
