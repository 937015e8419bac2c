//! One recommendation: what binds, the cheapest change that helps, and by how much.
//!
//! Changes are tried in the order of what they cost: workers, then memory that is there, and only where neither helps, what would have
//! to be bought. Of those that cost alike, the first that comes close to the best is it. Where two resources are scarce at once, neither change alone brings much, so the two settings
//! are tried together as well.

use serde::{Deserialize, Serialize};

use super::{Change, Facts, FactsError, cache_needed, cores_needed, storage_needed};
use crate::words::counted;

/// A gain below this is lost in what measurements leave open.
pub const GAIN_MIN: f64 = 1.05;

/// Of what the best change brings, what a cheaper one must bring to be preferred.
const GOOD_ENOUGH: f64 = 0.9;

/// How much more than what is needed something should deliver: of two that are equally fast, each waits for the other now and then.
const HEADROOM: f64 = 1.25;

/// How far the run may fall behind what its parts can do together. Beyond that, batches wait for single slow samples while others stand by.
const IN_STEP: f64 = 0.85;

/// A step that keeps a processor busy for more than this part of its time is felt by the workers.
pub const STEP_BUSY: f64 = 0.25;

/// A worker that is busy for less than this part of its time needs no core of its own.
pub const MOSTLY_WAITING: f64 = 0.5;

/// How many times as many cores as there are may be recommended, or workers as there are of either: nobody has a hundred times as many,
/// and what so many would bring is anybody's guess.
const MORE_MAX: u32 = 4;

/// Of more than so many times as many cores as there are nobody wants to know how many they are.
const COUNTED_MAX: u32 = 1000;

/// How the loader's code is written, so that what is recommended can be pasted there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Setting {
    /// A Sutler loader of files.
    Native,
    /// A Sutler loader of a dataset written in Python.
    Python,
    /// A Sutler loader of a stream.
    Stream,
    /// PyTorch's.
    Torch,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// A paragraph.
    pub text: String,
    /// What binds now.
    pub binding: &'static str,
    /// The change in a few words; empty where there is none.
    pub change: String,
    /// The change as code; empty where it is no matter of code.
    pub code: String,
    /// The change in figures.
    pub amounts: Change,
    /// How many times as fast the trainer gets.
    pub gain: f64,
}

/// A change that may help.
#[derive(Clone)]
struct Candidate {
    change: Change,
    words: String,
    code: String,
}

impl Facts {
    /// What to do about it.
    ///
    /// # Errors
    /// When the facts are none.
    pub fn advise(&self, setting: Setting) -> Result<Advice, FactsError> {
        let now = self.predict(&Change::default())?;
        let shares = self.shares();
        if !self.is_felt() {
            return Ok(Advice {
                text: format!(
                    "The accelerator binds, as it should: it works {} of the time, and the loader keeps up with it. A faster loader \
                     would bring nothing.",
                    percent(self.stalls.trainer)
                ),
                binding: "device",
                change: String::new(),
                code: String::new(),
                amounts: Change::default(),
                gain: 1.0,
            });
        }
        let expected = self.modelled();
        // Not where it may be chance: what was measured is surely less than the least that its parts can do.
        let falls_behind =
            self.measured.value < IN_STEP * expected && self.measured.high < self.modelled_at_least();
        // Nor where the step takes a core from the workers, so that the parts cannot do together what each does alone.
        let crowded = self.step_busy > STEP_BUSY && self.workers >= self.cores;
        // A single worker has nobody to wait for.
        let orderly = self.workers > 1 && !self.ready;
        if falls_behind && !crowded && orderly && self.stalls.transport < 0.1 {
            return Ok(self.out_of_step(setting, expected, &shares));
        }
        if now.bound_by == "device" && self.is_ahead() {
            let ahead = self.loader_ahead();
            return Ok(Advice {
                text: format!(
                    "The accelerator binds: by itself the loader delivers {ahead:.0} times as many samples as the trainer takes. {shares} \
                     So much is lost at the beginning of a short run, or where the machine has other things to do; measure over more \
                     batches before you change anything."
                ),
                binding: "device",
                change: String::new(),
                code: String::new(),
                amounts: Change::default(),
                gain: 1.0,
            });
        }
        let binding = now.bound_by;
        // What would do is reckoned with what fits the run, as what it brings is.
        let fitted = self.fitted().with_reads_alone();
        let mut best: Option<(Candidate, f64)> = None;
        for tier in [fitted.settings(setting), fitted.hardware(binding)] {
            for candidate in tier {
                let reached = self.predict(&candidate.change)?.samples_per_s.value / now.samples_per_s.value;
                let improves = best.as_ref().is_none_or(|(_, gain)| reached * GOOD_ENOUGH > *gain);
                if reached >= GAIN_MIN && improves {
                    best = Some((candidate, reached));
                }
            }
            // What costs nothing comes before what has to be bought, also if it brings less.
            if best.is_some() {
                break;
            }
        }
        Ok(match best {
            Some((option, gain)) => {
                let after = self.outlook(&option.change)?;
                Advice {
                    text: format!(
                        "{} {shares} The cheapest change that helps: {}. Predicted: {:.0} samples/s instead of {:.0} ({gain:.2} times, \
                         {}); {} would bind then.",
                        self.opening(binding),
                        option.words,
                        after.samples_per_s.value,
                        now.samples_per_s.value,
                        certainty(after.samples_per_s.error()),
                        self.noun(after.bound_by),
                    ),
                    binding,
                    change: option.words,
                    code: option.code,
                    amounts: option.change,
                    gain,
                }
            }
            None => Advice {
                text: format!(
                    "{} {shares} No single change of the cache, the number of workers or the storage is predicted to bring more than \
                     5 %.",
                    self.opening(binding)
                ),
                binding,
                change: String::new(),
                code: String::new(),
                amounts: Change::default(),
                gain: 1.0,
            },
        })
    }

    fn shares(&self) -> String {
        format!(
            "The trainer spends {} of its time waiting for storage, {} for preparation and {} for finished batches to arrive.",
            percent(self.stalls.fetch),
            percent(self.stalls.prep),
            percent(self.stalls.transport)
        )
    }

    /// Every part is fast enough, and batches come late all the same.
    fn out_of_step(&self, setting: Setting, expected: f64, shares: &str) -> Advice {
        let code = match setting {
            // Streams are PyTorch's loaders' or ours; both take this.
            Setting::Torch | Setting::Stream => "in_order=False",
            Setting::Native | Setting::Python => "order=\"ready\"",
        };
        let gain = expected / self.measured.value;
        Advice {
            text: format!(
                "No resource is used up: storage, processors and trainer together manage {expected:.0} samples/s, and the trainer gets \
                 {:.0}. {shares} Batches wait for single slow samples, or workers for one another. The cheapest change that may help: \
                 batches of what is ready ({code}); at best {gain:.2} times as fast.",
                self.measured.value
            ),
            binding: "order",
            change: "make batches of what is ready".to_owned(),
            code: code.to_owned(),
            amounts: Change::default(),
            gain,
        }
    }

    /// What can be changed in the loader's code, the cheapest first.
    fn settings(&self, setting: Setting) -> Vec<Candidate> {
        let workers = self.more_workers(setting);
        // Storage that delivers enough keeps those waiting who read from it all the same.
        let caching = |prepared| {
            let just_enough = self.larger_cache(setting, prepared);
            just_enough.or_else(|| self.cache_of(setting, self.dataset_bytes()))
        };
        let cache = caching(self.prepare.value);
        // With more workers there is use for a larger cache than without.
        let both = workers.as_ref().and_then(|more| {
            let prepared = self.prepare_with(more.change.workers?, self.cores).value;
            let cache = caching(prepared)?;
            Some(Candidate {
                change: Change { workers: more.change.workers, ..cache.change },
                words: format!("{}, and {}", more.words, cache.words),
                code: format!("{}, {}", more.code, cache.code),
            })
        });
        [workers, cache, both].into_iter().flatten().collect()
    }

    /// What would have to be bought.
    fn hardware(&self, binding: &str) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        if binding == "storage" {
            let wanted = HEADROOM * self.prepare.value.min(self.ingest.value);
            let cached = self.cached(self.cache_bytes);
            if let Some(rate) = storage_needed(cached, self.recall_rate().value, wanted)
                && rate > self.storage_rate().value
            {
                let bytes_per_s = rate * self.sample_bytes;
                candidates.push(Candidate {
                    change: Change { storage_bytes_per_s: Some(bytes_per_s), ..Change::default() },
                    words: format!("storage that delivers {} MB/s", three_digits(bytes_per_s / 1e6)),
                    code: String::new(),
                });
            }
        }
        if binding == "processors" && !self.in_turns {
            let fetched = self.fetch_rate(self.cache_bytes).value;
            let present = self.cores.max(self.workers);
            let each = self.alone().value.min(self.prepare_with(present, present).value / f64::from(present));
            let wanted = cores_needed(each, HEADROOM * self.ingest.value.min(fetched));
            let cores = wanted.min(present.saturating_mul(MORE_MAX));
            if cores > present {
                let short = match wanted {
                    wanted if wanted <= cores => String::new(),
                    // A trainer without a step has use for millions.
                    wanted if wanted > present.saturating_mul(COUNTED_MAX) => {
                        " (and even those are fewer than the trainer has use for)".to_owned()
                    }
                    wanted => {
                        format!(" (and even those are fewer than the {wanted} that the trainer has use for)")
                    }
                };
                candidates.push(Candidate {
                    change: Change { cores: Some(cores), ..Change::default() },
                    words: format!(
                        "{cores} cores to prepare on instead of {}, here or on other machines{short}",
                        self.cores
                    ),
                    code: format!("num_workers={cores}"),
                });
            }
        }
        candidates
    }

    /// As many workers as there is use for, on the processors there are.
    fn more_workers(&self, setting: Setting) -> Option<Candidate> {
        let each = self.reads_and_prepares();
        let useful = cores_needed(each, HEADROOM * self.ingest.value);
        // A worker that waits for something, be it for a read, leaves its processor to others.
        let processors = if self.in_turns { 1 } else { self.cores };
        let busy = self.busy() * each / self.alone().value;
        let fit = (f64::from(processors) / busy).floor() as u32;
        let fitting = useful.min(fit);
        let workers = fitting.min(self.cores.max(self.workers).saturating_mul(MORE_MAX));
        let again = if workers < fitting { "; more may bring more, so analyse again with those" } else { "" };
        // Loaders warn of more workers than cores, whatever those do.
        let why = if workers > self.cores {
            format!(
                " (more than there are cores, as each needs one for {} of its time{again})",
                percent(busy)
            )
        } else {
            String::new()
        };
        let share = if setting == Setting::Stream && workers > 1 {
            ", each of which goes through a copy of its own, so let __iter__ take the share that get_worker_info() tells"
        } else {
            ""
        };
        // Short epochs would be spent with starting them.
        let code = if self.stay {
            format!("num_workers={workers}")
        } else {
            format!("num_workers={workers}, persistent_workers=True")
        };
        (workers > self.workers).then(|| Candidate {
            change: Change { workers: Some(workers), ..Change::default() },
            words: match self.workers {
                0 => format!("{}{why}{share}", counted(workers.into(), "worker")),
                present => format!("{workers} workers instead of {present}{why}{share}"),
            },
            code,
        })
    }

    /// Whether workers spend most of their time waiting for something that is neither storage nor a processor.
    fn mostly_waits(&self) -> bool {
        self.busy() < MOSTLY_WAITING
    }

    /// Whether storage delivers as much as the trainer takes to readers that are many enough, so that what it takes to answer is what is felt.
    fn is_far(&self) -> bool {
        self.workers > 0
            && self.storage_rate().value > self.ingest.value
            && self.mostly_reads(&Change::default())
    }

    fn noun<'a>(&self, binding: &'a str) -> &'a str {
        match binding {
            "device" => "the accelerator",
            "processors" if self.mostly_waits() => "the workers",
            "processors" => "the processors",
            "cache" => "the memory of the cache",
            other => other,
        }
    }

    fn opening(&self, binding: &str) -> String {
        match binding {
            "processors" if self.workers == 0 && self.prepare.value >= self.ingest.value => {
                "Nothing is prepared while the trainer works (num_workers=0), so the accelerator idles while each batch is made."
                    .to_owned()
            }
            "processors" if self.waits_for_functions() => format!(
                "Functions bind that the loader runs in the trainer's process (a collate_fn, a transform in Python): they take {} of its \
                 time, and neither workers nor cores make that less.",
                percent((self.in_trainer_s * self.measured.value).min(1.0))
            ),
            "processors" if self.mostly_waits() => format!(
                "The workers bind: samples are not prepared as fast as the trainer takes them, though preparing one keeps a processor \
                 busy for {} of the time only, and is waiting for the rest of it.",
                percent(self.busy())
            ),
            "processors" => {
                "The processors bind: samples are not prepared as fast as the trainer takes them.".to_owned()
            }
            "storage" if self.is_far() => format!(
                "Storage binds by how long a read takes, not by how much it delivers: each keeps a worker waiting for {} ms.",
                three_digits(self.read_s.unwrap_or(0.0) * 1e3)
            ),
            "storage" => "Storage binds: samples are not read as fast as the trainer takes them.".to_owned(),
            "transport" => "Transport binds: samples are ready, and batches of them arrive late.".to_owned(),
            "device" => "The accelerator binds, and it waits now and then.".to_owned(),
            other => format!("What binds is {}.", self.noun(other)),
        }
    }

    /// As much cache as there is use for, in the memory there is.
    fn larger_cache(&self, setting: Setting, prepared: f64) -> Option<Candidate> {
        let wanted = HEADROOM * prepared.min(self.ingest.value);
        // Not even all of it would do: then all of it is what there is to be had.
        let cached = cache_needed(self.storage_rate().value, self.recall_rate().value, wanted).unwrap_or(1.0);
        self.cache_of(setting, cached * self.dataset_bytes())
    }

    /// A cache of so much, or of the memory there is; none where it would be no larger, or where nothing is read that it could keep.
    fn cache_of(&self, setting: Setting, wanted_bytes: f64) -> Option<Candidate> {
        if setting == Setting::Stream || self.storage.is_none() {
            return None;
        }
        let bytes = whole(wanted_bytes.min(self.memory_bytes));
        (bytes > self.cache_bytes).then(|| {
            let size = size(bytes);
            let kept = percent(self.cached(bytes));
            let (words, code) = match setting {
                Setting::Native | Setting::Stream => (
                    format!("a cache of {size}, which keeps {kept} of the samples"),
                    format!("cache=\"{size}\""),
                ),
                // Of a dataset that makes a sample in one go, nobody knows what of it is the same next time.
                Setting::Python => (
                    format!(
                        "memory for {size}, {kept} of the bytes that it reads, as a sutler.PreparedDataset keeps them whose prepare() does \
                         nothing else (what prepare() decodes as well takes more room, and is then not decoded again)"
                    ),
                    format!("cache=\"{size}\""),
                ),
                Setting::Torch => (
                    format!(
                        "memory for {size}, {kept} of the bytes that it reads, as Sutler's own datasets keep them, and a \
                         sutler.PreparedDataset whose prepare() does nothing else (what prepare() decodes as well takes more room, and is \
                         then not decoded again)"
                    ),
                    format!("sutler.Loader(..., cache=\"{size}\")"),
                ),
            };
            Candidate { change: Change { cache_bytes: Some(bytes), ..Change::default() }, words, code }
        })
    }
}

/// Up to the next whole unit, so that what is recommended is what is predicted.
fn whole(bytes: f64) -> f64 {
    let unit = unit(bytes).0;
    (bytes / unit).ceil() * unit
}

/// GiB from ten of them on, MiB below.
fn unit(bytes: f64) -> (f64, &'static str) {
    const MIB: f64 = 1048576.0;
    if bytes >= 10.0 * 1024.0 * MIB { (1024.0 * MIB, "GiB") } else { (MIB, "MiB") }
}

fn size(bytes: f64) -> String {
    let (unit, name) = unit(bytes);
    format!("{:.0}{name}", bytes / unit)
}

/// As exact as anybody needs it: 0.37, 3.9, 48, 512.
fn three_digits(value: f64) -> String {
    let digits = if value < 1.0 { 2 } else { usize::from(value < 10.0) };
    format!("{value:.digits$}")
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// How well a prediction is known, so that nobody buys anything for a guess.
fn certainty(error: f64) -> String {
    if error < 1.0 {
        format!("± {}", percent(error))
    } else {
        "a guess: measurements scatter, or runs were off, by too much to tell".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::tests::facts;
    use super::super::{Known, Stalls};
    use super::*;

    #[test]
    fn slow_storage_calls_for_a_cache_that_is_just_large_enough() {
        let advice = facts().advise(Setting::Native).unwrap();
        assert_eq!(advice.binding, "storage");
        // Half of a gigabyte makes storage as fast as the processors, and a quarter more makes it faster.
        assert_eq!(advice.code, "cache=\"573MiB\"");
        assert!((1.7..2.0).contains(&advice.gain), "{advice:?}");
        assert!(advice.text.contains("Storage binds") && advice.text.contains("573MiB"), "{}", advice.text);
    }

    #[test]
    fn a_prediction_that_rests_on_nothing_is_called_a_guess() {
        let known = facts().advise(Setting::Native).unwrap();
        assert!(known.text.contains("times, ± "), "{}", known.text);
        let scattered = |known: Known| Known { low: known.value / 10.0, high: known.value * 10.0, ..known };
        let unknown = Facts {
            ingest: scattered(facts().ingest),
            prepare: scattered(facts().prepare),
            storage: facts().storage.map(scattered),
            ..facts()
        };
        let advice = unknown.advise(Setting::Native).unwrap();
        assert!(advice.text.contains("a guess"), "{}", advice.text);
    }

    #[test]
    fn without_memory_it_is_the_storage_itself() {
        let poor = Facts { memory_bytes: 0.0, ..facts() };
        let advice = poor.advise(Setting::Native).unwrap();
        assert_eq!((advice.binding, advice.code.as_str()), ("storage", ""));
        assert!(advice.change.contains("25 MB/s"), "{advice:?}");
    }

    #[test]
    fn reads_that_keep_workers_waiting_call_for_a_cache_of_everything() {
        let crowded = Facts {
            prepare: Known::exactly(200.0),
            storage: Some(Known::exactly(1000.0)),
            read_s: Some(0.002),
            measured: Known::exactly(150.0),
            step_busy: 1.0,
            stalls: Stalls { fetch: 0.25, prep: 0.25, transport: 0.0, trainer: 0.5 },
            ..facts()
        };
        let advice = crowded.advise(Setting::Native).unwrap();
        assert_eq!((advice.binding, advice.code.as_str()), ("processors", "cache=\"954MiB\""));
        assert!((1.25..1.4).contains(&advice.gain), "{advice:?}");
    }

    /// Storage behind a network: each read takes 40 ms, and any number of them may be under way.
    #[test]
    fn reads_that_take_long_call_for_workers_that_wait_at_the_same_time() {
        let far = Facts {
            workers: 2,
            cores: 2,
            prepare: Known::exactly(800.0),
            prepare_alone: Some(Known::exactly(400.0)),
            storage: Some(Known::exactly(10_000.0)),
            read_s: Some(0.04),
            measured: Known::exactly(47.0),
            stalls: Stalls { fetch: 0.88, prep: 0.0, transport: 0.0, trainer: 0.12 },
            memory_bytes: 0.0,
            ..facts()
        };
        let advice = far.advise(Setting::Torch).unwrap();
        assert_eq!(advice.code, "num_workers=8");
        assert!((3.6..4.1).contains(&advice.gain), "{advice:?}");
        assert!(advice.change.contains("each needs one for 6 % of its time"), "{advice:?}");
        assert!(advice.text.ends_with("; storage would bind then."), "{advice:?}");
        let cached = Facts { memory_bytes: 1e10, ..far }.advise(Setting::Native).unwrap();
        assert_eq!(cached.code, "cache=\"954MiB\"");
        assert!(cached.gain > 7.0, "{cached:?}");
    }

    #[test]
    fn functions_in_the_trainers_process_gain_nothing_by_workers() {
        let collating = Facts {
            workers: 1,
            prepare: Known::exactly(303.0),
            prepare_alone: Some(Known::exactly(303.0)),
            ingest: Known::exactly(10_000.0),
            storage: None,
            in_trainer_s: 0.0033,
            measured: Known::exactly(295.0),
            stalls: Stalls { fetch: 0.0, prep: 0.97, transport: 0.0, trainer: 0.03 },
            ..facts()
        };
        let advice = collating.advise(Setting::Native).unwrap();
        assert_eq!((advice.code.as_str(), advice.gain), ("", 1.0));
        assert!(advice.text.contains("in the trainer's process"), "{}", advice.text);
        let workers = Change { workers: Some(8), ..Change::default() };
        let predicted = collating.predict(&workers).unwrap().samples_per_s;
        assert!((280.0..305.0).contains(&predicted.value), "{predicted:?}");
    }

    #[test]
    fn few_workers_on_many_cores_call_for_more_workers() {
        let lazy = Facts {
            workers: 2,
            prepare: Known::exactly(50.0),
            measured: Known::exactly(50.0),
            stalls: Stalls { fetch: 0.0, prep: 0.8, transport: 0.0, trainer: 0.2 },
            storage: None,
            ..facts()
        };
        let advice = lazy.advise(Setting::Torch).unwrap();
        assert_eq!((advice.binding, advice.code.as_str()), ("processors", "num_workers=8"));
        assert!((advice.gain - 4.0).abs() < 0.1, "{advice:?}");
        let all_at_work =
            Facts { workers: 8, prepare: Known::exactly(200.0), measured: Known::exactly(200.0), ..lazy };
        let advice = all_at_work.advise(Setting::Torch).unwrap();
        assert!(advice.change.starts_with("20 cores"), "{advice:?}");
        let far_behind = Facts { ingest: Known::exactly(10_000.0), ..all_at_work };
        let advice = far_behind.advise(Setting::Torch).unwrap();
        assert_eq!(advice.amounts.cores, Some(32), "no more than four times as many, and 500 would be");
        assert!(advice.change.contains("the 500 that"), "{advice:?}");
        let without_step = Facts { ingest: Known::exactly(1e9), ..all_at_work };
        assert!(
            without_step.advise(Setting::Torch).unwrap().change.contains("fewer than the trainer has use")
        );
    }

    #[test]
    fn workers_that_wait_are_not_called_processors() {
        let sleepy = Facts {
            workers: 2,
            cores: 2,
            prepare: Known::exactly(50.0),
            prepare_alone: Some(Known::exactly(25.0)),
            work_s: Some(0.004),
            measured: Known::exactly(50.0),
            stalls: Stalls { fetch: 0.0, prep: 0.9, transport: 0.0, trainer: 0.1 },
            storage: None,
            ..facts()
        };
        let advice = sleepy.advise(Setting::Python).unwrap();
        assert_eq!((advice.binding, advice.code.as_str()), ("processors", "num_workers=8"));
        assert_eq!(advice.amounts.workers, Some(8), "no more than four times as many, and 20 would fit");
        assert!(advice.text.contains("analyse again"), "{}", advice.text);
        assert!(advice.text.starts_with("The workers bind: "), "{}", advice.text);
        assert!(advice.text.contains("10 % of its time"), "{}", advice.text);
    }

    #[test]
    fn another_order_is_for_several_workers_that_have_it_not() {
        let behind = Facts {
            ingest: Known::exactly(110.0),
            storage: None,
            measured: Known::exactly(60.0),
            stalls: Stalls { fetch: 0.0, prep: 0.45, transport: 0.0, trainer: 0.55 },
            ..facts()
        };
        assert_eq!(behind.advise(Setting::Native).unwrap().code, "order=\"ready\"");
        assert!(!Facts { ready: true, ..behind }.advise(Setting::Native).unwrap().code.contains("order"));
        let one = Facts { workers: 1, prepare_alone: Some(Known::exactly(200.0)), ..behind };
        assert!(!one.advise(Setting::Native).unwrap().code.contains("order"));
    }

    #[test]
    fn workers_of_a_stream_have_to_share_it() {
        let few = Facts {
            workers: 2,
            prepare: Known::exactly(50.0),
            measured: Known::exactly(50.0),
            stalls: Stalls { fetch: 0.0, prep: 0.9, transport: 0.0, trainer: 0.1 },
            storage: None,
            stay: false,
            ..facts()
        };
        let advice = few.advise(Setting::Stream).unwrap();
        assert!(
            advice.text.contains("let __iter__ take the share that get_worker_info() tells"),
            "{advice:?}"
        );
        assert_eq!(advice.code, "num_workers=8, persistent_workers=True");
        assert!(!few.advise(Setting::Torch).unwrap().text.contains("__iter__"));
    }

    #[test]
    fn storage_that_is_far_is_told_by_what_a_read_takes() {
        let far = Facts {
            workers: 2,
            ingest: Known::exactly(400.0),
            prepare: Known::exactly(200.0),
            prepare_alone: Some(Known::exactly(100.0)),
            storage: Some(Known::exactly(5000.0)),
            read_s: Some(0.0217),
            measured: Known::exactly(63.0),
            stalls: Stalls { fetch: 0.68, prep: 0.16, transport: 0.0, trainer: 0.16 },
            ..facts()
        };
        let advice = far.advise(Setting::Torch).unwrap();
        assert_eq!(advice.binding, "storage");
        assert!(advice.text.starts_with("Storage binds by how long a read takes"), "{}", advice.text);
        assert!(advice.text.contains("waiting for 22 ms"), "{}", advice.text);
        let near = Facts { storage: Some(Known::exactly(65.0)), ..far }.advise(Setting::Torch).unwrap();
        assert!(near.text.starts_with("Storage binds: samples are not read as fast"), "{}", near.text);
    }

    #[test]
    fn two_that_are_scarce_are_mended_together() {
        let both = Facts {
            workers: 2,
            cores: 8,
            prepare: Known::exactly(50.0),
            storage: Some(Known::exactly(50.0)),
            measured: Known::exactly(45.0),
            stalls: Stalls { fetch: 0.1, prep: 0.8, transport: 0.0, trainer: 0.1 },
            ..facts()
        };
        let advice = both.advise(Setting::Native).unwrap();
        assert!(advice.code.contains("num_workers=8") && advice.code.contains("cache="), "{advice:?}");
    }

    /// A trainer that takes 40 samples a second, and a loader that prepares ten times as many.
    fn ahead(workers: u32, waiting: f64) -> Facts {
        Facts {
            workers,
            ingest: Known::exactly(40.0),
            prepare: Known::exactly(400.0),
            prepare_alone: Some(Known::exactly(400.0)),
            measured: Known::exactly(40.0 * (1.0 - waiting)),
            stalls: Stalls { fetch: 0.0, prep: waiting, transport: 0.0, trainer: 1.0 - waiting },
            storage: None,
            stay: false,
            ..facts()
        }
    }

    #[test]
    fn a_trainer_that_prepares_for_itself_is_told_to_let_a_worker_do_it() {
        let advice = ahead(0, 0.09).advise(Setting::Torch).unwrap();
        assert_eq!(
            (advice.binding, advice.code.as_str()),
            ("processors", "num_workers=1, persistent_workers=True")
        );
        assert!((1.05..1.1).contains(&advice.gain), "{advice:?}");
        assert!(advice.text.starts_with("Nothing is prepared while the trainer works"), "{}", advice.text);
        assert_eq!(ahead(1, 0.09).advise(Setting::Torch).unwrap().binding, "device");
    }

    #[test]
    fn an_accelerator_that_waits_now_and_then_still_binds() {
        let some = Facts {
            prepare: Known::exactly(70.0),
            prepare_alone: None,
            stalls: Stalls { fetch: 0.0, prep: 0.01, transport: 0.06, trainer: 0.93 },
            ..ahead(2, 0.07)
        };
        let advice = some.advise(Setting::Torch).unwrap();
        assert_eq!(advice.binding, "device", "{}", advice.text);
        let much = Facts {
            measured: Known::exactly(32.0),
            stalls: Stalls { fetch: 0.0, prep: 0.01, transport: 0.19, trainer: 0.8 },
            ..some
        };
        assert_eq!(much.advise(Setting::Torch).unwrap().binding, "transport");
    }

    #[test]
    fn a_busy_accelerator_is_left_alone() {
        let stalls = Stalls { fetch: 0.01, prep: 0.02, transport: 0.0, trainer: 0.97 };
        let advice =
            Facts { ingest: Known::exactly(90.0), measured: Known::exactly(88.0), stalls, ..facts() }
                .advise(Setting::Native)
                .unwrap();
        assert_eq!((advice.binding, advice.code.as_str(), advice.gain), ("device", "", 1.0));
    }

    #[test]
    fn batches_that_wait_for_single_samples_call_for_another_order() {
        let late = Facts { measured: Known::exactly(60.0), ..facts() };
        let advice = late.advise(Setting::Native).unwrap();
        assert_eq!((advice.binding, advice.code.as_str()), ("order", "order=\"ready\""));
        assert_eq!(late.advise(Setting::Torch).unwrap().code, "in_order=False");
        assert_eq!(late.advise(Setting::Stream).unwrap().code, "in_order=False");
        let crowded = Facts { step_busy: 1.0, ..late };
        assert_eq!(
            crowded.advise(Setting::Native).unwrap().binding,
            "storage",
            "the step takes a core from the workers"
        );
    }

    #[test]
    fn what_may_be_chance_calls_for_no_other_order() {
        let noisy = Facts { measured: Known { value: 60.0, low: 20.0, high: 300.0 }, ..facts() };
        assert_eq!(noisy.advise(Setting::Native).unwrap().binding, "storage");
        let vague = Facts {
            measured: Known { value: 60.0, low: 58.0, high: 62.0 },
            storage: Some(Known { value: 100.0, low: 30.0, high: 300.0 }),
            ..facts()
        };
        assert_eq!(vague.advise(Setting::Native).unwrap().binding, "storage");
    }
}
