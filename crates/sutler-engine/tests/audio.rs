//! Sound in the engine: padded blocks on any number of threads, bad files among them, and headers without decoding.

mod support;

use std::sync::Arc;

use sutler_engine::{
    AudioPreparation, Engine, ErrorPolicy, Job, JobOptions, Next, Padding, ServingOrder, Values,
    audio_headers,
};
use sutler_media::audio::{Limits, Pipeline};
use sutler_store::{Files, FolderOptions, Io, Listing, Silent};

use support::{PATIENCE, options, whole};

const SAMPLES: u32 = 25;

/// 16-bit mono.
fn wav(values: &[i16]) -> Vec<u8> {
    let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
    file.extend(8000u32.to_le_bytes());
    file.extend(16_000u32.to_le_bytes());
    file.extend(*b"\x02\0\x10\0data");
    file.extend((values.len() as u32 * 2).to_le_bytes());
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    file
}

/// How many values a clip has.
fn length(index: u32) -> usize {
    1 + (index * 37 % 400) as usize
}

/// Clips that repeat their number; those in `bad` are cut off.
fn clips(bad: &[u32]) -> (Arc<Files>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("all")).unwrap();
    for index in 0..SAMPLES {
        let mut bytes = wav(&vec![index as i16; length(index)]);
        if bad.contains(&index) {
            bytes.truncate(30);
        }
        std::fs::write(folder.path().join(format!("all/{index:03}.wav")), bytes).unwrap();
    }
    let listing = Listing::image_folder(folder.path(), &FolderOptions::audio(), &Silent).unwrap();
    (Arc::new(Files::new(listing, Io::Buffered, 1 << 20)), folder)
}

#[test]
fn every_clip_is_padded_once_on_any_number_of_threads() {
    let (source, _folder) = clips(&[7, 8, 20]);
    for threads in [0, 1, 4] {
        for order in [ServingOrder::Strict, ServingOrder::Ready { lateness: 2 }] {
            let preparation = AudioPreparation {
                source: source.clone(),
                pipeline: Arc::new(Pipeline::default()),
                limits: Limits { values_max: 1 << 20 },
                mono: true,
                seed: 0,
                padding: Some(Padding::floats(-1.0)),
                cache: None,
            };
            let options = JobOptions { order, errors: ErrorPolicy::Skip, ..options(4, 3) };
            let job = Job::new(Arc::new(preparation), options).unwrap();
            let engine = Engine::new(threads).unwrap();
            for epoch in 0..3 {
                let mut run = engine.start(&job, whole(SAMPLES, 4, epoch), epoch);
                let mut served: Vec<u32> = Vec::new();
                loop {
                    let batch = match run.next(PATIENCE).unwrap() {
                        Next::Batch(batch) => batch,
                        Next::End => break,
                        Next::TimedOut | Next::Passed => panic!("no batch came"),
                    };
                    let padded = batch.padded(Padding::floats(-1.0)).unwrap();
                    let longest = batch.ids().iter().map(|id| length(id.0)).max().unwrap();
                    assert_eq!(padded.shape(), [batch.len(), longest]);
                    let Values::Floats(values) = padded.values() else { panic!("sound is floats") };
                    let rows = values.chunks_exact(longest).zip(batch.ids()).zip(padded.lengths());
                    for ((row, id), &found) in rows {
                        assert_eq!(found as usize, length(id.0));
                        let (sound, rest) = row.split_at(length(id.0));
                        assert!(sound.iter().all(|&value| value == id.0 as f32 / 32_768.0));
                        assert!(rest.iter().all(|&value| value == -1.0));
                        served.push(id.0);
                    }
                    assert!(batch.take_owned().is_empty(), "the buffers went back");
                }
                served.sort_unstable();
                let good: Vec<u32> = (0..SAMPLES).filter(|index| ![7, 8, 20].contains(index)).collect();
                assert_eq!(served, good, "{threads} threads, {order:?}");
                assert_eq!(job.failures().len(), 3);
            }
        }
    }
}

#[test]
fn headers_tell_the_length_of_what_can_be_read() {
    let (source, _folder) = clips(&[3]);
    let headers = audio_headers(&*source, 3);
    for (index, header) in (0..SAMPLES).zip(headers) {
        let expected = (index != 3).then_some(Some(length(index) as u64));
        assert_eq!(header.map(|header| header.frames), expected, "{index}");
    }
}
