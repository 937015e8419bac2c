//! The threads that turn decisions into batches.
//!
//! An [`Engine`] is a set of worker threads. A [`Job`] says what they prepare and into which memory; a [`Run`] is one
//! epoch of a job, and its consumer's end. Work is handed out a *sample* at a time in the order of the plan, each
//! worker writes its sample straight into the row of the batch it belongs to, and whoever finishes the last row of a
//! batch wakes the consumer. A batch's memory goes back to the job's arena when the consumer lets go of it.

mod audio;
mod bare;
mod batch;
mod book_cost;
mod copies;
mod crew;
mod crossing;
mod detection;
mod engine;
mod failure;
mod framed;
mod giving_way;
mod image;
mod job;
mod keeping_memory;
mod memory;
mod metrics;
mod padded;
mod place;
mod pool;
mod preparation;
mod process;
mod profile;
mod reading;
mod reused;
mod run;
mod run_state;
mod streamed;
mod text;
mod ticket;
mod timeline;
mod toolbox;
mod volume;
mod waits;

pub use audio::{AudioPreparation, audio_headers};
pub use bare::bare_rate;
pub use batch::{Batch, BlockShape, Made, OwnSample, Received};
pub use book_cost::BookCost;
pub use crew::{CrewChange, LOOK_EVERY};
pub use detection::{DetectionPreparation, read_boxes, take_boxes};
pub use engine::{Engine, StartError, usable_cores, what_is_left};
pub use failure::{ErrorPolicy, Failure, RunError};
pub use framed::{Framed, Framing};
pub use giving_way::give_way;
pub use image::{ImagePreparation, PictureSizes};
pub use job::{Job, JobOptions, ServingOrder};
pub use keeping_memory::keep_memory;
pub use memory::{Arena, ArenaError, BatchMemory};
pub use metrics::{Counts, Metrics, Served, SlowShareSummary, Snapshot, StageSummary, WorkerTimes};
pub use padded::{Fill, Padded, Padding, Values};
pub use pool::Pool;
pub use preparation::{
    Boundary, Common, Elsewhere, Exchange, ForeignRow, Likeness, NoBoundary, Order, Parcel, Place,
    Preparation, Preparer, Progress, Request, RowSpec, Rows, SampleRecord, SharedRow, Target, Unfinished,
};
pub use process::{
    Connection, FIRST_KEYED, Handover, Key, ProcessOptions, ProcessPreparation, Revive, end_with,
};
pub use profile::{Measured, ProfileFailure, ProfileRequest, measure as measure_profile};
pub use reading::{Delivered, read_once, recall_once};
pub use run::{Canceller, Next, Run};
pub use text::{BlockFormat, LinePreparation, PackedPreparation, Planes, TokenCounts, count_tokens};
pub use timeline::{BatchEntry, SampleEntry, Timeline};
pub use volume::{VolumePreparation, read_volume};
pub use waits::{Delivery, Handling, Stalls, Waits};
