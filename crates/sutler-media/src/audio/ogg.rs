//! Ogg: a file is a row of pages, each with a sum over its bytes.
//!
//! Readers that are made for listening leave a damaged page out and go on behind it. What is missing then is missed by nobody, so the
//! pages are looked at before.

use symphonia::core::checksum::Crc32;
use symphonia::core::io::Monitor;

use super::{AudioError, Format};

/// What a page begins with.
const CAPTURE: &[u8] = b"OggS";

/// Where the type of a page is, and the bit that the last page has.
const TYPE_AT: usize = 5;
const LAST: u8 = 4;

/// Where its sum is, which counts as zero in itself.
const SUM_AT: usize = 22;

/// Where the number of its segments is; the length of each of them follows.
const SEGMENTS_AT: usize = 26;

/// Looks at all pages of a file. One that is cut off is left to whoever reads it, and so is what is behind the last page.
pub(super) fn check_pages(bytes: &[u8]) -> Result<(), AudioError> {
    let mut at = 0;
    let mut ended = false;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let begins = rest.iter().zip(CAPTURE).all(|(byte, expected)| byte == expected);
        let Some(page) = first_page(rest).filter(|_| begins) else {
            let more = rest[1..].windows(CAPTURE.len()).any(|window| window == CAPTURE);
            return if more || !(begins || ended) { Err(damaged(at)) } else { Ok(()) };
        };
        if !has_right_sum(page) {
            return Err(damaged(at));
        }
        ended = page[TYPE_AT] & LAST != 0;
        at += page.len();
    }
    Ok(())
}

fn damaged(at: usize) -> AudioError {
    AudioError::corrupt(Format::Ogg, format!("the page at byte {at} is damaged"))
}

/// The page that these bytes begin with, if all of it is there.
fn first_page(bytes: &[u8]) -> Option<&[u8]> {
    let segments = usize::from(*bytes.get(SEGMENTS_AT)?);
    let lengths = bytes.get(SEGMENTS_AT + 1..)?.get(..segments)?;
    let body: usize = lengths.iter().map(|&length| usize::from(length)).sum();
    bytes.get(..SEGMENTS_AT + 1 + segments + body)
}

fn has_right_sum(page: &[u8]) -> bool {
    let mut sum = Crc32::new(0);
    sum.process_buf_bytes(&page[..SUM_AT]);
    sum.process_buf_bytes(&[0; 4]);
    sum.process_buf_bytes(&page[SUM_AT + 4..]);
    page[SUM_AT..SUM_AT + 4] == sum.crc().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut page = CAPTURE.to_vec();
        page.extend([0, kind]);
        page.extend([7; 20]);
        page.push(1);
        page.push(body.len() as u8);
        page.extend(body);
        page[SUM_AT..SUM_AT + 4].fill(0);
        let mut sum = Crc32::new(0);
        sum.process_buf_bytes(&page);
        page[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.crc().to_le_bytes());
        page
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let file = [page(2, b"first"), page(0, b"second"), page(LAST, b"third")].concat();
        assert_eq!(check_pages(&file), Ok(()));
        let last = file.len() - page(LAST, b"third").len();
        for bit in 0..8 * file.len() {
            let mut flipped = file.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // The length of the last page, when flipped, may reach beyond the end, which is for the reader to find.
            let reader_finds = bit / 8 >= last && first_page(&flipped[last..]).is_none();
            assert!(reader_finds || check_pages(&flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn what_follows_the_last_page_does_not_matter_and_what_is_cut_off_is_for_the_reader() {
        let file = [page(2, b"first"), page(LAST, b"second")].concat();
        assert_eq!(check_pages(&[&file[..], b"TAG and more"].concat()), Ok(()));
        assert_eq!(check_pages(&[page(2, b"first"), b"TAG and more".to_vec()].concat()), Err(damaged(33)));
        for end in 0..file.len() {
            assert_eq!(check_pages(&file[..end]), Ok(()), "{end}");
        }
    }
}
