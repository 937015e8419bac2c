//! Text in the engine: every token of every line in one block, on any number of threads and in any order.

mod support;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sutler_core::Packing;
use sutler_engine::{
    BlockFormat, Engine, Job, JobOptions, Next, PackedPreparation, Planes, ServingOrder, count_tokens,
};
use sutler_media::text::{TextReader, Tokenizer};
use sutler_store::{Lines, LinesOptions, Silent};

use support::{PATIENCE, options, whole};

const LINES: usize = 150;
const LENGTH: usize = 16;
const END: u32 = 0;

/// A token for each number below a thousand; the one for 0 closes a line.
fn tokenizer() -> Tokenizer {
    let words: Vec<String> = (0..1000).map(|word| format!("\"{word}\": {word}")).collect();
    let json = format!(
        r#"{{"version": "1.0", "pre_tokenizer": {{"type": "WhitespaceSplit"}},
            "model": {{"type": "WordLevel", "vocab": {{{}}}, "unk_token": "0"}}}}"#,
        words.join(", ")
    );
    Tokenizer::new(&json, false, None).unwrap()
}

/// Line `number` begins with its number, and numbers from 200 on follow it.
fn line(number: usize) -> Vec<u32> {
    let rest = (0..number * 7 % 40).map(|word| 200 + word as u32);
    std::iter::once(number as u32 + 1).chain(rest).collect()
}

#[test]
fn every_token_is_in_one_block_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("numbers.txt");
    let words = |number: usize| line(number).iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    std::fs::write(&path, (0..LINES).map(|number| words(number) + "\n").collect::<String>()).unwrap();
    let unpacked = folder.path().to_owned();
    let lines_options = LinesOptions { keep_blank: false, bytes_max: 1 << 20, tables: None, unpacked };
    let source = Arc::new(Lines::open(&[path], &lines_options, &Silent).unwrap());
    let reader = TextReader { field: None, tokenizer: Some(Arc::new(tokenizer())) };

    let counted = count_tokens(&*source, &reader, 3, &Silent, &AtomicBool::new(false));
    assert!(counted.bad.is_empty());
    assert_eq!(counted.counts, (0..LINES).map(|number| line(number).len() as u32).collect::<Vec<_>>());
    let with_ends: Arc<[u32]> = counted.counts.iter().map(|count| count + 1).collect();
    let packing = Packing::new(with_ends, LENGTH as u32, true).unwrap();
    let planes = Planes { documents: true, positions: true };

    for threads in [0, 1, 4] {
        for order in [ServingOrder::Strict, ServingOrder::Ready { lateness: 2 }] {
            let preparation = PackedPreparation::new(
                source.clone(),
                reader.clone(),
                packing.clone(),
                BlockFormat { planes, end: END, padding: -1 },
                Some(3),
                None,
            );
            let job = Job::new(Arc::new(preparation), JobOptions { order, ..options(4, 3) }).unwrap();
            let engine = Engine::new(threads).unwrap();
            let mut tapes = Vec::new();
            for epoch in 0..2 {
                let mut run = engine.start(&job, whole(packing.blocks(), 4, epoch), epoch);
                let mut blocks = vec![Vec::new(); packing.blocks() as usize];
                loop {
                    let batch = match run.next(PATIENCE).unwrap() {
                        Next::Batch(batch) => batch,
                        Next::End => break,
                        Next::TimedOut | Next::Passed => panic!("no batch came"),
                    };
                    let values: Vec<i64> = batch
                        .block()
                        .unwrap()
                        .chunks_exact(8)
                        .map(|bytes| i64::from_ne_bytes(bytes.try_into().unwrap()))
                        .collect();
                    for (id, row) in batch.ids().iter().zip(values.chunks_exact(3 * LENGTH)) {
                        assert!(blocks[id.index()].is_empty(), "a block came twice");
                        blocks[id.index()] = row[..LENGTH].to_vec();
                        let (documents, positions) = (&row[LENGTH..2 * LENGTH], &row[2 * LENGTH..]);
                        for place in 1..LENGTH {
                            let begins = row[place - 1] == i64::from(END);
                            if documents[place] == 0 {
                                assert_eq!((row[place], positions[place]), (-1, 0), "padding");
                                continue;
                            }
                            assert_eq!(documents[place], documents[place - 1] + i64::from(begins));
                            let follows = if begins { 0 } else { positions[place - 1] + 1 };
                            assert_eq!(positions[place], follows);
                        }
                    }
                }
                let tape: Vec<u32> =
                    blocks.concat().into_iter().filter_map(|token| u32::try_from(token).ok()).collect();
                let mut found: Vec<Vec<u32>> =
                    tape.split(|&token| token == END).map(<[u32]>::to_vec).collect();
                assert_eq!(found.pop(), Some(Vec::new()), "the last line is closed, too");
                found.sort_unstable();
                assert_eq!(found, (0..LINES).map(line).collect::<Vec<_>>(), "{threads} threads, {order:?}");
                tapes.push(tape);
            }
            assert_ne!(tapes[0], tapes[1], "each epoch has an order of its own");
        }
    }
}
