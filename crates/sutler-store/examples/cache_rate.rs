//! How fast one thread puts samples into a cache's memory and reads them back, checksums included.
//!
//! ```text
//! cargo run --release -p sutler-store --example cache_rate -- [MEBIBYTES] [ENTRY_BYTES] [shared]
//! ```

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use sutler_core::{Form, Permutation, SampleId};
use sutler_store::cache::{Backing, Memory, MemoryOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mebibytes: u64 = arguments.first().map_or(Ok(1024), |text| text.parse())?;
    let entry_bytes: usize = arguments.get(1).map_or(Ok(110_000), |text| text.parse())?;
    let shared = arguments.iter().any(|argument| argument == "shared");
    let backing = if shared { Backing::Shared } else { Backing::Private };
    let budget_bytes = mebibytes << 20;
    let samples = (budget_bytes / Memory::footprint(entry_bytes)) as u32;
    let options = MemoryOptions { budget_bytes, samples: samples as usize, forms: &[Form::Encoded], backing };
    let memory = Memory::new(&options)?;
    let content: Vec<u8> = (0..entry_bytes).map(|index| (index * 31 % 251) as u8).collect();

    let rate = |seconds: f64, count: u32| f64::from(count) * entry_bytes as f64 / seconds / 1e9;
    for pass in ["put, fresh memory", "put, used memory"] {
        let start = Instant::now();
        let mut kept = 0;
        for sample in 0..samples {
            kept += u32::from(memory.put(SampleId(sample), Form::Encoded, &[&content]).is_ok());
        }
        println!("{pass:<20} {:>6.2} GB/s", rate(start.elapsed().as_secs_f64(), kept));
        if pass == "put, fresh memory" {
            (0..samples).for_each(|sample| {
                memory.remove(SampleId(sample), Form::Encoded);
            });
        }
    }

    let order = Permutation::shuffled(samples, 0, 0);
    let mut out = Vec::new();
    let start = Instant::now();
    for position in 0..samples {
        let Some(held) = memory.get(order.sample_at(position), Form::Encoded) else { continue };
        held.read_into(&mut out).map_err(|_| "an entry did not pass its checksum")?;
        black_box(&out);
    }
    println!("{:<20} {:>6.2} GB/s", "read and verify", rate(start.elapsed().as_secs_f64(), samples));

    let all: Vec<Vec<u8>> = (0..samples).map(|_| content.clone()).collect();
    let start = Instant::now();
    for position in 0..samples {
        out.copy_from_slice(&all[order.sample_at(position).index()]);
        black_box(&out);
    }
    println!("{:<20} {:>6.2} GB/s", "plain copy, for scale", rate(start.elapsed().as_secs_f64(), samples));

    let looks = 20_000_000;
    let start = Instant::now();
    for look in 0..looks {
        black_box(memory.get(order.sample_at(look % samples), Form::Encoded).is_some());
    }
    println!("{:<20} {:>6.1} ns", "look-up", start.elapsed().as_secs_f64() * 1e9 / f64::from(looks));
    Ok(())
}
