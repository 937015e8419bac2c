//! What an agent keeps for its jobs over time: memory that moves between datasets, plans that follow what happens.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use sutler_engine::Next;
use sutler_service::spec::{
    DatasetSpec, EpochSpec, JobSpec, ListingSpec, MediaSpec, PolicySpec, SequenceSpec,
};
use sutler_service::{
    Agent, AgentOptions, RemoteJob, RemoteJobOptions, RemoteRun, ShelfOptions, SplitChoice, status,
};
use sutler_store::{Files, Silent};

/// Long enough that only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

const MEMORY: u64 = 24 << 20;

/// An agent in a thread, which ends when it is dropped.
struct Running {
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
    socket: PathBuf,
}

impl Running {
    fn start(folder: &Path, shelf: ShelfOptions) -> Self {
        let socket = folder.join("agent.sock");
        let options = AgentOptions { socket: socket.clone(), threads: 2, shelf, http: None };
        let listening = Agent::listen(&options).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || listening.serve(&OwnedFd::from(stopped)).unwrap());
        Self { stop, thread: Some(thread), socket }
    }

    fn datasets(&self) -> Vec<Value> {
        let status = status(&self.socket).unwrap();
        status["shared"]["datasets"].as_array().unwrap().clone()
    }

    fn open(&self, spec: &JobSpec) -> Arc<RemoteJob> {
        let options = RemoteJobOptions { socket: self.socket.clone(), patience: Duration::ZERO, alone: None };
        let job = RemoteJob::open(spec.clone(), options).unwrap();
        assert!(job.is_open(PATIENCE).unwrap());
        job
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.stop.write_all(b"!");
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A folder of pictures of these sides.
fn pictures(folder: &Path, sides: impl IntoIterator<Item = u32>) {
    std::fs::create_dir_all(folder.join("only")).unwrap();
    for (sample, side) in sides.into_iter().enumerate() {
        let mut picture = format!("P6 {side} {side} 255\n").into_bytes();
        picture.extend((0..side * side * 3).map(|value| (value * 5 + sample as u32 * 7) as u8));
        std::fs::write(folder.join(format!("only/{sample:03}.ppm")), picture).unwrap();
    }
}

fn job_spec(folder: &Path) -> JobSpec {
    let listing = ListingSpec::ImageFolder { root: folder.to_owned(), extensions: None, allow_empty: false };
    let dataset = DatasetSpec {
        listing,
        media: MediaSpec::Image { pixels_max: 1 << 24 },
        direct: false,
        bytes_max: 1 << 26,
    };
    let files: Files = dataset.files(dataset.list(&Silent).unwrap());
    JobSpec {
        pad: None,
        frame: None,
        name: None,
        fingerprint: files.listing().fingerprint(),
        dataset,
        operations: r#"[{"op": "random_horizontal_flip", "p": 0.5}, {"op": "resize", "size": [8, 8],
            "max_size": null, "interpolation": "bilinear", "antialias": true}]"#
            .to_owned(),
        dct_scaling: true,
        channels_last: false,
        seed: 5,
        batch_size: 4,
        batches_ahead: 2,
        ahead_grows: false,
        batches_held: 2,
        in_step: false,
        errors: PolicySpec::Raise,
        lateness: None,
        lateness_given: false,
        shared: false,
    }
}

/// Goes through these samples.
fn serve(job: &Arc<RemoteJob>, samples: &[u64], of: u32) {
    let sequence = SequenceSpec::Drawn { batch_size: 4, drop_last: false };
    let mut run: RemoteRun = job
        .start(EpochSpec { epoch: 0, consumed: 0, done: None, before: None, sequence, part: None })
        .unwrap();
    run.extend(samples.to_vec(), of).unwrap();
    run.end_drawing().unwrap();
    let begun = Instant::now();
    loop {
        match run.next(Duration::from_millis(20)).unwrap() {
            Next::Batch(_) => {}
            Next::End => return,
            Next::TimedOut | Next::Passed => assert!(begun.elapsed() < PATIENCE, "a hang"),
        }
    }
}

fn wait_for(what: &str, mut found: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !found() {
        assert!(begun.elapsed() < PATIENCE, "{what}, in vain");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Invariant 5, bounded, over datasets that come and go.
#[test]
fn datasets_share_one_budget_and_give_it_back() {
    let folder = tempfile::tempdir().unwrap();
    let linger = Duration::from_millis(300);
    let agent =
        Running::start(folder.path(), ShelfOptions { memory: MEMORY, linger, ..ShelfOptions::default() });
    let check = || {
        let datasets = agent.datasets();
        let sum = |name: &str| -> u64 {
            datasets.iter().map(|dataset| dataset["cache"][name].as_u64().unwrap()).sum()
        };
        assert!(sum("budget_bytes") <= MEMORY, "{datasets:?}");
        assert!(sum("used_bytes") <= MEMORY, "{datasets:?}");
        datasets
    };
    let all: Vec<u64> = (0..40).collect();
    let specs: Vec<JobSpec> = (0..3)
        .map(|number| {
            let photos = folder.path().join(format!("photos-{number}"));
            pictures(&photos, vec![300 + number; 40]);
            job_spec(&photos)
        })
        .collect();
    let mut jobs = Vec::new();
    for (number, spec) in specs.iter().enumerate() {
        jobs.push(agent.open(spec));
        for job in &jobs {
            serve(job, &all, 40);
        }
        let datasets = check();
        assert_eq!(datasets.len(), number + 1);
        for dataset in &datasets {
            let share = dataset["budget_bytes"].as_f64().unwrap() / MEMORY as f64;
            assert!(
                (share * (number + 1) as f64 - 1.0).abs() < 0.05,
                "equal datasets, equal shares: {datasets:?}"
            );
            let (entries, budget) =
                (&dataset["cache"]["encoded"]["entries"], dataset["budget_bytes"].as_u64());
            // 270 kB each: all 40 fit into half of the memory, not into a third of it.
            let expected = (budget.unwrap() / 275_000).min(40);
            assert!(entries.as_u64().unwrap() + 2 >= expected, "{entries} of {expected}: {datasets:?}");
        }
    }
    // The last jobs of two datasets leave; what these had goes to the one that is left, after a while.
    jobs.drain(..2);
    assert_eq!(check().len(), 3, "the next job may be about to come");
    wait_for("for the memory to come back", || agent.datasets().len() == 1);
    let datasets = check();
    assert_eq!(datasets[0]["budget_bytes"], MEMORY);
    serve(&jobs[0], &all, 40);
    assert_eq!(check()[0]["cache"]["encoded"]["entries"], 40);
}

/// The profile is that of all samples; a sampler that draws only large ones makes for other rates.
#[test]
fn a_plan_follows_the_rates() {
    let folder = tempfile::tempdir().unwrap();
    let photos = folder.path().join("photos");
    pictures(&photos, (0..60).map(|sample| if sample % 10 == 0 { 700 } else { 20 }));
    let look_every = Duration::from_millis(100);
    let split = SplitChoice::Auto;
    let agent = Running::start(
        folder.path(),
        ShelfOptions { memory: MEMORY, split, look_every, ..ShelfOptions::default() },
    );
    let job = agent.open(&job_spec(&photos));
    let plan = || agent.datasets()[0]["plan"].clone();
    assert_eq!(plan()["events"][0]["reason"], "the dataset was measured", "{}", plan());
    assert_eq!(plan()["problem"], Value::Null);
    let large: Vec<u64> = (0..60).step_by(10).cycle().take(96).collect();
    let of_rates =
        |event: &Value| event["reason"].as_str().is_some_and(|reason| reason.contains("longer or shorter"));
    wait_for("for the plan to follow", || {
        serve(&job, &large, 60);
        plan()["events"].as_array().unwrap().iter().any(of_rates)
    });
}
