//! What jobs with different transforms share: the forms that a prepared sample is left in for others.
//!
//! A dish of which everybody wants something else is put out in the kitchen's own stages: finished, for those who have it the same
//! way; half done, for those who only season differently; raw, for the rest, who are at least spared the way to the market.

use crate::Form;

/// How many others must want a picture that is decoded as a whole before it is. One worker took 1.7 times as long when it decoded whole photographs rather than
/// what their crops needed, and then a 4.6th for each job that went on from there: with two others 1.7 + 2/4.6 = 2.1 instead of 3, with one 1.9
/// instead of 2, which the sixfold memory is not worth.
const WHOLE_PAYS_FROM: u32 = 2;

/// Who else wants a sample that a job is about to prepare, by what they have in common with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanting {
    /// Jobs with the same transforms: the finished sample is theirs too.
    pub alike: u32,
    /// Jobs with other transforms whose decoded form is the same.
    pub decoding_alike: u32,
    /// All others: only what was read serves them.
    pub others: u32,
}

/// In which forms a prepared sample is left in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaving {
    /// Finished, for jobs with the same transforms.
    pub augmented: bool,
    /// Encoded or decoded, for jobs with others.
    pub common: Option<Form>,
}

impl Wanting {
    /// What to leave for them. `on_the_way` says that the decoded form comes up in preparing the sample anyway, so that it costs nothing
    /// but its memory.
    ///
    /// One form besides the finished one is enough: the nearest that serves all who need one.
    #[must_use]
    pub fn leaving(&self, on_the_way: bool) -> Leaving {
        let decoded = self.others == 0 && (on_the_way || self.decoding_alike >= WHOLE_PAYS_FROM);
        let common = match (self.decoding_alike + self.others, decoded) {
            (0, _) => None,
            (_, true) => Some(Form::Decoded),
            (_, false) => Some(Form::Encoded),
        };
        Leaving { augmented: self.alike > 0, common }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_who_wants_a_sample_finds_a_form_of_it() {
        for (alike, decoding_alike, others) in (0..27).map(|number| (number % 3, number / 3 % 3, number / 9))
        {
            for on_the_way in [false, true] {
                let wanting = Wanting { alike, decoding_alike, others };
                let Leaving { augmented, common } = wanting.leaving(on_the_way);
                assert_eq!(augmented, alike > 0, "{wanting:?}");
                assert_eq!(common.is_some(), decoding_alike + others > 0, "{wanting:?}");
                assert!(common != Some(Form::Decoded) || others == 0, "{wanting:?}: of no use to some");
            }
        }
    }

    #[test]
    fn a_picture_is_decoded_whole_where_that_pays() {
        let two_in_all = Wanting { decoding_alike: 1, ..Wanting::default() };
        assert_eq!(two_in_all.leaving(false).common, Some(Form::Encoded));
        assert_eq!(two_in_all.leaving(true).common, Some(Form::Decoded));
        let three_in_all = Wanting { decoding_alike: 2, ..Wanting::default() };
        assert_eq!(three_in_all.leaving(false).common, Some(Form::Decoded));
    }
}
