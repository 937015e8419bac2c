//! Datasets that clients have named, each listed once for all jobs over it.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use sutler_core::{Fingerprint, counted};
use sutler_store::{Files, Silent, StoreError};

use crate::spec::DatasetSpec;

/// Why a dataset is not available.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// It cannot be listed.
    #[error("the agent cannot list the dataset: {0}")]
    Listing(#[from] StoreError),
    /// It is not what the client says.
    #[error(
        "the loader listed {theirs_short} in {place}, the agent finds {ours_short} ({}); files came or went \
         meanwhile, or the two see different file systems. Make the dataset again",
        counted(*samples as u64, "sample"), theirs_short = short(*theirs), ours_short = short(*ours)
    )]
    Other {
        /// Where.
        place: String,
        /// The client's fingerprint.
        theirs: Fingerprint,
        /// Ours.
        ours: Fingerprint,
        /// How many samples we find.
        samples: usize,
    },
}

fn short(fingerprint: Fingerprint) -> String {
    format!("fingerprint {}", &fingerprint.to_string()[..8])
}

/// The datasets of jobs that are open.
#[derive(Default)]
pub struct Catalogue {
    /// Held while listing, so that the ranks of a job that come at once wait for one listing instead of each making it.
    datasets: Mutex<Vec<(DatasetSpec, Weak<Files>)>>,
}

impl Catalogue {
    /// The dataset that the client sees under this fingerprint.
    pub fn open(&self, spec: &DatasetSpec, fingerprint: Fingerprint) -> Result<Arc<Files>, CatalogueError> {
        let mut datasets = self.datasets.lock().unwrap_or_else(PoisonError::into_inner);
        datasets.retain(|(_, files)| files.strong_count() > 0);
        let known =
            datasets.iter().filter(|(known, _)| known == spec).filter_map(|(_, files)| files.upgrade());
        if let Some(files) = known.into_iter().find(|files| files.listing().fingerprint() == fingerprint) {
            return Ok(files);
        }
        let listing = spec.list(&Silent)?;
        let ours = listing.fingerprint();
        if ours != fingerprint {
            let (place, samples) = (spec.place().display().to_string(), listing.len());
            return Err(CatalogueError::Other { place, theirs: fingerprint, ours, samples });
        }
        let files = Arc::new(spec.files(listing));
        datasets.push((spec.clone(), Arc::downgrade(&files)));
        Ok(files)
    }
}
