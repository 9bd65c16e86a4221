// SPDX-License-Identifier: Apache-2.0
//! Benchmark: cost of an index of ten million samples in time to build and to open, bytes per entry, and memory.
//!
//! `cargo run --release -p foresee-data-index --example ten_million [SAMPLES]`. The data set has a thousand class
//! folders, keys as in `ImageNet`, and S3's tags. 16 listers return pages of 1,000 keys (as S3) in turn. Prints
//! one JSON object; the memory is the builder's, measured before the file is loaded to be opened.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use foresee_data_index::{FolderOptions, Index, IndexBuilder, LayoutOptions, Listed};
use foresee_units::{GAMMA, SampleId};

const CLASSES: u64 = 1000;
const LISTERS: u64 = 16;
const PAGE: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let samples = std::env::args().nth(1).map_or(Ok(10_000_000), |text| text.parse::<u64>())?;
    let layout = LayoutOptions::Folder(FolderOptions::default());

    let start = Instant::now();
    let mut builder = IndexBuilder::new("s3://bucket/train", layout, 0)?;
    let (mut key_bytes, mut tag_bytes) = (0, 0);
    let share = samples.div_ceil(LISTERS);
    for page in 0..share.div_ceil(PAGE) {
        for lister in 0..LISTERS {
            let shared_end = (lister * share + share).min(samples);
            for number in lister * share + page * PAGE..shared_end.min(lister * share + (page + 1) * PAGE) {
                let listed = listed(number, samples);
                key_bytes += listed.key.len();
                tag_bytes += listed.tag.len();
                builder.handle_listed(listed)?;
            }
        }
    }
    let listed_s = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let plan = builder.finish()?;
    let sorted_s = start.elapsed().as_secs_f64();

    let start = Instant::now();
    plan.write(std::io::sink())?;
    let written_s = start.elapsed().as_secs_f64();
    let memory_mib = peak_memory_mib();
    let mut file = Vec::new();
    plan.write(&mut file)?;
    drop(plan);

    let file_bytes = file.len();
    let start = Instant::now();
    let index = Index::open(Arc::new(file))?;
    let opened_s = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let step = 7_368_787 % samples.max(2); // a prime: far enough apart that no cache helps
    let reads = samples.min(1_000_000);
    let found: usize = (0..reads)
        .map(|number| index.entry(SampleId(number * step % samples)).map(|entry| entry.key.len()))
        .sum::<Result<_, _>>()?;
    let entry_ns = start.elapsed().as_secs_f64() * 1e9 / float(reads);

    let start = Instant::now();
    index.verify()?;
    let verified_s = start.elapsed().as_secs_f64();

    let own_bytes = file_bytes - key_bytes - tag_bytes;
    let figures = serde_json::json!({
        "samples": samples, "listed_s": listed_s, "sorted_s": sorted_s, "written_s": written_s,
        "opened_s": opened_s, "verified_s": verified_s, "entry_ns": entry_ns, "found_key_bytes": found,
        "file_bytes": file_bytes, "key_bytes": key_bytes, "tag_bytes": tag_bytes,
        "own_bytes_per_sample": float(own_bytes as u64) / float(samples),
        "peak_memory_mib": memory_mib,
    });
    #[expect(clippy::print_stdout, reason = "the figures are what the example is for")]
    {
        println!("{figures}");
    }
    Ok(())
}

/// Object `number`, scattered over its class by a simple hash.
fn listed(number: u64, samples: u64) -> Listed {
    let class = number / samples.div_ceil(CLASSES);
    let mixed = number.wrapping_mul(GAMMA);
    Listed {
        key: format!("n{class:08}/n{class:08}_{number}.JPEG").into_bytes(),
        size: 20_000 + mixed % 180_000,
        tag: format!("\"{mixed:016x}{:016x}\"", mixed.rotate_left(29)).into_bytes(),
    }
}

/// The peak memory of this process; `None` if the system does not report it.
fn peak_memory_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? / 1024)
}

#[expect(clippy::cast_precision_loss, reason = "counts below 2^53, for a ratio")]
fn float(count: u64) -> f64 {
    count as f64
}
