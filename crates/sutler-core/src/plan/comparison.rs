//! Both models' answers for one profile and one budget, in the shape that reports and documents have.

use serde::Serialize;

use super::{Plan, Prediction, Profile, ProfileError, published};

/// What a model says of a split, as reports have it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// Such as `58-42-0`.
    pub split: String,
    /// Samples per second, for all jobs together.
    pub predicted: f64,
    /// What is exhausted first, where the model says so.
    pub bound_by: Option<&'static str>,
}

impl From<&Prediction> for Entry {
    fn from(prediction: &Prediction) -> Self {
        Self {
            split: prediction.split.to_string(),
            predicted: prediction.samples_per_s,
            bound_by: prediction.binds.map(super::Resource::name),
        }
    }
}

/// What one model says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answers {
    /// Of the best split.
    pub best: Entry,
    /// Of all splits in steps of one percent, the most encoded first.
    pub splits: Vec<Entry>,
}

impl From<&Plan> for Answers {
    fn from(plan: &Plan) -> Self {
        Self { best: (&plan.best).into(), splits: plan.predictions.iter().map(Entry::from).collect() }
    }
}

/// What both say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The budget that is split.
    pub memory_bytes: u64,
    /// What was measured.
    pub profile: Profile,
    /// Of our model.
    #[serde(flatten)]
    pub ours: Answers,
    /// Of the published one.
    pub published: Answers,
}

impl Comparison {
    /// Asks both.
    ///
    /// # Errors
    /// When the profile is none.
    pub fn new(profile: &Profile, memory_bytes: u64) -> Result<Self, ProfileError> {
        let ours = profile.plan(memory_bytes as f64)?;
        let published = published::plan_of(profile, memory_bytes as f64);
        Ok(Self { memory_bytes, profile: *profile, ours: (&ours).into(), published: (&published).into() })
    }
}

impl Answers {
    /// What is said of one split.
    #[must_use]
    pub fn of(&self, split: &str) -> Option<&Entry> {
        self.splits.iter().find(|entry| entry.split == split)
    }
}
