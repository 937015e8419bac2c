//! An agent and its clients in one process: restarts, hostile clients, agents that go away.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sutler_engine::{Batch, Engine, Next};
use sutler_service::spec::{
    DatasetSpec, EpochSpec, JobSpec, ListingSpec, MediaSpec, Memory, PolicySpec, SequenceSpec,
};
use sutler_service::{
    Agent, AgentOptions, ClientError, RemoteJob, RemoteJobOptions, RemoteRun, ShelfOptions, status,
};
use sutler_store::{Files, Silent};

const SAMPLES: u32 = 23;

/// Long enough that only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(30);

/// An agent in a thread, which ends when it is told to.
struct Running {
    stop: UnixStream,
    thread: JoinHandle<()>,
}

impl Running {
    fn start(socket: &Path) -> Self {
        let listening = Agent::listen(&AgentOptions {
            socket: socket.to_owned(),
            threads: 2,
            shelf: ShelfOptions { window: 0.1, ..ShelfOptions::default() },
            http: None,
        })
        .unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || listening.serve(&OwnedFd::from(stopped)).unwrap());
        Self { stop, thread }
    }

    fn end(mut self) {
        self.stop.write_all(b"!").unwrap();
        self.thread.join().unwrap();
    }
}

/// A folder of tiny pictures, each of its own colour.
fn pictures(folder: &Path) {
    std::fs::create_dir_all(folder.join("only")).unwrap();
    for sample in 0..SAMPLES {
        let mut picture = b"P6 4 4 255\n".to_vec();
        picture.extend((0..48u32).map(|value| (value * 5 + sample * 7) as u8));
        std::fs::write(folder.join(format!("only/{sample:03}.ppm")), picture).unwrap();
    }
}

fn job_spec(folder: &Path, lateness: Option<u32>) -> (JobSpec, Arc<Files>) {
    let listing = ListingSpec::ImageFolder { root: folder.to_owned(), extensions: None, allow_empty: false };
    let dataset = DatasetSpec {
        listing,
        direct: false,
        media: MediaSpec::Image { pixels_max: 1 << 20 },
        bytes_max: 1 << 20,
    };
    let files = Arc::new(dataset.files(dataset.list(&Silent).unwrap()));
    let spec = JobSpec {
        name: None,
        fingerprint: files.listing().fingerprint(),
        dataset,
        operations: r#"[{"op": "random_horizontal_flip", "p": 0.5}, {"op": "center_crop", "size": [4, 4]}]"#
            .to_owned(),
        dct_scaling: true,
        channels_last: false,
        seed: 5,
        batch_size: 3,
        batches_ahead: 2,
        ahead_grows: false,
        batches_held: 2,
        in_step: false,
        errors: PolicySpec::Raise,
        pad: None,
        frame: None,
        lateness,
        lateness_given: true,
        shared: false,
    };
    (spec, files)
}

fn epoch(number: u32) -> EpochSpec {
    let sequence = SequenceSpec::Own {
        samples: SAMPLES,
        shuffle: true,
        seed: 5,
        batch_size: 3,
        drop_last: false,
        rank: 0,
        world_size: 1,
    };
    EpochSpec { epoch: number, consumed: 0, before: None, done: None, sequence, part: None }
}

fn options(socket: &Path, patience: Duration) -> RemoteJobOptions {
    RemoteJobOptions { socket: socket.to_owned(), patience, alone: None }
}

fn next(run: &mut RemoteRun) -> Result<Option<Batch>, ClientError> {
    let begun = Instant::now();
    loop {
        match run.next(Duration::from_millis(20))? {
            Next::Batch(batch) => return Ok(Some(batch)),
            Next::End => return Ok(None),
            Next::TimedOut | Next::Passed => assert!(begun.elapsed() < PATIENCE, "a hang"),
        }
    }
}

/// Each sample of an embedded epoch and its bytes.
fn embedded(spec: &JobSpec, files: &Arc<Files>, epoch: &EpochSpec) -> BTreeMap<u32, Vec<u8>> {
    let engine = Engine::new(2).unwrap();
    let job = spec.open(files.clone(), Memory::Own, None).unwrap();
    let mut run = engine.start(&job, epoch.plan().unwrap(), epoch.epoch);
    let mut samples = BTreeMap::new();
    while let Next::Batch(batch) = run.next(PATIENCE).unwrap() {
        note(&mut samples, &batch);
    }
    samples
}

/// Writes the samples of a batch down; none may come twice.
fn note(samples: &mut BTreeMap<u32, Vec<u8>>, batch: &Batch) {
    let rows = batch.block().unwrap().chunks(48);
    for (id, row) in batch.ids().iter().zip(rows) {
        assert!(samples.insert(id.0, row.to_vec()).is_none(), "sample {} came twice", id.0);
    }
}

struct Setting {
    _folder: tempfile::TempDir,
    photos: PathBuf,
    socket: PathBuf,
}

fn setting() -> Setting {
    let folder = tempfile::tempdir().unwrap();
    let (photos, socket) = (folder.path().join("photos"), folder.path().join("agent.sock"));
    pictures(&photos);
    Setting { _folder: folder, photos, socket }
}

/// Invariant 1 over every moment at which an agent can be replaced.
#[test]
fn every_sample_comes_once_whenever_the_agent_is_replaced() {
    let Setting { photos, socket, .. } = &setting();
    for lateness in [None, Some(2)] {
        let (spec, files) = job_spec(photos, lateness);
        let expected = embedded(&spec, &files, &epoch(1));
        for replaced_after in 0..8 {
            let mut agent = Running::start(socket);
            let job = RemoteJob::open(spec.clone(), options(socket, PATIENCE)).unwrap();
            let mut run = job.start(epoch(1)).unwrap();
            assert_eq!(run.batches(), Some(8));
            let (mut served, mut batches) = (BTreeMap::new(), Vec::new());
            loop {
                if batches.len() == replaced_after {
                    agent.end();
                    agent = Running::start(socket);
                }
                let Some(batch) = next(&mut run).unwrap() else { break };
                note(&mut served, &batch);
                batches.push(batch);
            }
            assert_eq!(served, expected, "replaced after {replaced_after}");
            assert_eq!(job.metrics()["samples"], SAMPLES);
            // What the first agent delivered is still what it was.
            let mut again = BTreeMap::new();
            batches.iter().for_each(|batch| note(&mut again, batch));
            assert_eq!(again, expected);
            drop((run, job));
            agent.end();
        }
    }
}

#[test]
fn what_a_sampler_drew_is_told_to_the_next_agent() {
    let Setting { photos, socket, .. } = &setting();
    let (spec, _) = job_spec(photos, None);
    for in_batches in [false, true] {
        let mut agent = Running::start(socket);
        let job = RemoteJob::open(spec.clone(), options(socket, PATIENCE)).unwrap();
        let sequence = if in_batches {
            SequenceSpec::Batches
        } else {
            SequenceSpec::Drawn { batch_size: 3, drop_last: false }
        };
        let mut run = job.start(EpochSpec { sequence, ..epoch(0) }).unwrap();
        let mut served = Vec::new();
        for (index, piece) in [[4u64, 4, 1], [0, 22, 7], [9, 8, 2]].into_iter().enumerate() {
            if in_batches {
                run.extend_batches(vec![piece.to_vec()], SAMPLES).unwrap();
            } else {
                run.extend(piece.to_vec(), SAMPLES).unwrap();
            }
            if index == 1 {
                agent.end();
                agent = Running::start(socket);
            }
            if index > 0 {
                served.extend(next(&mut run).unwrap().unwrap().ids().iter().map(|id| id.0));
            }
        }
        assert!(run.extend(vec![u64::from(SAMPLES)], SAMPLES).is_err(), "there is no such sample");
        assert_eq!(run.batches(), None);
        run.end_drawing().unwrap();
        assert_eq!(run.batches(), Some(3));
        while let Some(batch) = next(&mut run).unwrap() {
            served.extend(batch.ids().iter().map(|id| id.0));
        }
        assert_eq!(served, [4, 4, 1, 0, 22, 7, 9, 8, 2]);
        drop((run, job));
        agent.end();
    }
}

#[test]
fn a_client_that_is_left_alone_goes_on_with_its_own_threads() {
    let Setting { photos, socket, .. } = &setting();
    for lateness in [None, Some(2)] {
        let (spec, files) = job_spec(photos, lateness);
        let expected = embedded(&spec, &files, &epoch(1));
        let agent = Running::start(socket);
        let alone = Some((files, 2));
        let options = RemoteJobOptions { alone, ..options(socket, Duration::ZERO) };
        let job = RemoteJob::open(spec, options).unwrap();
        let mut run = job.start(epoch(1)).unwrap();
        let mut served = BTreeMap::new();
        note(&mut served, &next(&mut run).unwrap().unwrap());
        agent.end();
        while let Some(batch) = next(&mut run).unwrap() {
            note(&mut served, &batch);
        }
        assert_eq!(served, expected);
        assert_eq!(job.metrics()["batches"], 8);
    }
}

/// Whoever listens there answers every client with these bytes and hangs up.
fn pretend(socket: &Path, answers: Vec<u8>) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut scratch = [0; 4096];
            let _ = connection.read(&mut scratch);
            let _ = connection.write_all(&answers);
        }
    });
}

fn framed(message: &str) -> Vec<u8> {
    let mut bytes = (message.len() as u32).to_le_bytes().to_vec();
    bytes.extend(message.as_bytes());
    bytes
}

#[test]
fn an_agent_that_makes_no_sense_is_given_up() {
    let opens = [
        framed(r#"{"id": 1, "answer": {"welcome": {"version": "0", "threads": 1}}}"#),
        framed(r#"{"id": 2, "answer": {"opened": {"slots": null, "row_bytes": null, "beside_bytes": 0}}}"#),
    ];
    for (answers, patience) in [
        (framed("what"), Duration::from_millis(300)),
        (Vec::new(), Duration::from_millis(300)),
        (opens.concat(), PATIENCE),
    ] {
        let Setting { photos, socket, .. } = &setting();
        let (spec, _) = job_spec(photos, None);
        let agent = Running::start(socket);
        let job = RemoteJob::open(spec.clone(), options(socket, patience)).unwrap();
        while !job.is_open(Duration::from_millis(20)).unwrap() {}
        let mut run = job.start(epoch(0)).unwrap();
        agent.end();
        pretend(socket, answers);
        let begun = Instant::now();
        let error = next(&mut run).map(|_| ()).unwrap_err();
        assert!(matches!(error, ClientError::Lost { .. }), "{error}");
        assert!(begun.elapsed() < PATIENCE / 2, "{error}");
    }
}

#[test]
fn an_agent_of_another_protocol_says_so() {
    let Setting { socket, .. } = &setting();
    let agent = Running::start(socket);
    let mut stream = UnixStream::connect(socket).unwrap();
    let hello = br#"{"id": 1, "request": {"hello": {"protocol": 999, "version": "9.9.9"}}}"#;
    stream.write_all(&(hello.len() as u32).to_le_bytes()).unwrap();
    stream.write_all(hello).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut answer).unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.contains("restart the agent"), "{answer}");
    drop(stream);
    agent.end();
    assert!(matches!(status(socket), Err(ClientError::NoAgent { .. })));
}

#[test]
fn requests_out_of_order_are_refused_and_the_agent_goes_on() {
    let Setting { photos, socket, .. } = &setting();
    let (mut spec, _) = job_spec(photos, None);
    let agent = Running::start(socket);
    let mut stream = UnixStream::connect(socket).unwrap();
    for request in [
        r#"{"id": 1, "request": {"next": {"run": 4, "released": [0, 99999], "most": 99999}}}"#,
        r#"{"id": 2, "request": {"extend": {"run": 4, "indices": [1]}}}"#,
        r#"{"id": 3, "request": "figures"}"#,
        r#"{"id": 4, "request": {"call_off": {"run": 4}}}"#,
    ] {
        stream.write_all(&(request.len() as u32).to_le_bytes()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        let mut answer = vec![0; u32::from_le_bytes(length) as usize];
        stream.read_exact(&mut answer).unwrap();
        let refused = String::from_utf8(answer).unwrap().contains("refused");
        assert_eq!(refused, !request.contains("call_off"), "{request}");
    }
    // A client that ends in the middle of a message leaves nothing behind, either.
    stream.write_all(&[9, 0, 0]).unwrap();
    drop(stream);
    spec.operations = "[{\"op\": \"no_such_thing\"}]".to_owned();
    let job = RemoteJob::open(spec, options(socket, PATIENCE)).unwrap();
    let begun = Instant::now();
    let error = loop {
        match job.is_open(Duration::from_millis(20)) {
            Ok(open) => assert!(!open && begun.elapsed() < PATIENCE),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("no_such_thing"), "{error}");
    assert_eq!(status(socket).unwrap()["jobs"].as_array().unwrap().len(), 0);
    agent.end();
}
