//! Jobs of one name are the ranks of one job: what they have to have in common, and how it is said where they have not.

use crate::spec::{JobSpec, PolicySpec, SequenceSpec};

/// An argument of a loader and its value, as its user wrote them.
type Argument = (&'static str, String);

impl JobSpec {
    /// Why a job of these arguments cannot be a rank of `other`, which has the same name.
    #[must_use]
    pub(crate) fn contradicts(&self, other: &Self) -> Option<String> {
        contradiction(self.name.as_deref(), self.arguments(), other.arguments())
    }

    /// What all ranks of a job have in common.
    fn arguments(&self) -> Vec<Argument> {
        let order = match (self.shared, self.lateness) {
            (true, _) => "\"shared\"",
            (false, Some(_)) => "\"ready\"",
            (false, None) => "\"strict\"",
        };
        let errors = match self.errors {
            PolicySpec::Raise => "\"raise\"".to_owned(),
            PolicySpec::Skip => "\"skip\"".to_owned(),
            PolicySpec::Budget { count_max, rate_max } => {
                format!("Errors(max={}, rate={})", or_none(count_max), or_none(rate_max))
            }
        };
        vec![
            ("dataset", format!("fingerprint {}", self.fingerprint)),
            ("transform", self.operations.clone()),
            ("dct_scaling", yes_or_no(self.dct_scaling)),
            ("channels_last", yes_or_no(self.channels_last)),
            ("seed", self.seed.to_string()),
            ("batch_size", self.batch_size.to_string()),
            ("errors", errors),
            ("order", order.to_owned()),
            ("lateness", or_none(self.lateness.filter(|_| self.lateness_given))),
        ]
    }
}

impl SequenceSpec {
    /// Why a rank whose epoch has this sequence cannot be one of the job called `name`, whose other rank has `other`.
    #[must_use]
    pub(crate) fn contradicts(&self, other: &Self, name: &str) -> Option<String> {
        contradiction(Some(name), self.arguments(), other.arguments())
    }

    /// What all ranks of a job have in common; the order that a sampler draws is the rank's own.
    fn arguments(&self) -> Vec<Argument> {
        let source = |kind: &str| ("sampler", kind.to_owned());
        match *self {
            Self::Own { samples, shuffle, drop_last, world_size, .. } => vec![
                source("none"),
                ("world_size", world_size.to_string()),
                ("shuffle", yes_or_no(shuffle)),
                ("drop_last", yes_or_no(drop_last)),
                ("len(dataset)", samples.to_string()),
            ],
            Self::Drawn { drop_last, .. } => {
                vec![source("a sampler"), ("drop_last", yes_or_no(drop_last))]
            }
            Self::Batches => vec![source("a batch sampler")],
        }
    }
}

/// The first of the arguments in which two namesakes differ, as the sentence that refuses the second.
fn contradiction(name: Option<&str>, ours: Vec<Argument>, theirs: Vec<Argument>) -> Option<String> {
    let ((argument, ours), (_, theirs)) =
        ours.into_iter().zip(theirs).find(|(ours, theirs)| ours != theirs)?;
    Some(format!(
        "a job named {:?} runs with {argument} {theirs}, this one asks for {ours}; ranks of one job need the same \
         arguments, and another job needs another job_name",
        name.unwrap_or_default()
    ))
}

/// A truth value as Python writes it.
fn yes_or_no(value: bool) -> String {
    if value { "True" } else { "False" }.to_owned()
}

fn or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "None".to_owned(), |value| value.to_string())
}
