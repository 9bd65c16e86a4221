// SPDX-License-Identifier: Apache-2.0
//! Two processes that append at the same time, and one that is killed while it does.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use foresee_units::{Bytes, SampleId};
use tempfile::TempDir;

use super::tests::content;
use super::{SampleFiles, SampleFilesConfig};
use crate::OriginIdentity;

const VARIABLE: &str = "FORESEE_TEST_SAMPLE_WRITER";
const READY: &str = "ready";
const SAMPLES: u64 = 600;

fn open(dir: &Path) -> SampleFiles {
    let identity = OriginIdentity::of_key("pictures", "");
    let (dir, capacity) = (dir.to_owned(), Bytes::new(64 << 20));
    SampleFiles::open(&SampleFilesConfig { dir, capacity, identity, samples: SAMPLES }).unwrap()
}

/// Start the first test of this file in its own process, and return when it has written some samples; with its output.
fn start_writer(dir: &Path) -> (Child, impl Iterator<Item = String>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["disk::sample_files::process_tests::a_writer_of_samples", "--exact", "--nocapture"])
        .env(VARIABLE, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == READY));
    (child, lines)
}

/// Not a test of its own: the process that the others start.
#[test]
fn a_writer_of_samples() {
    let Some(dir) = std::env::var_os(VARIABLE) else { return };
    let files = open(Path::new(&dir));
    for sample in (0..SAMPLES).rev() {
        files.insert(SampleId(sample), &content(sample));
        if sample == SAMPLES - 20 {
            println!("\n{READY}");
        }
    }
}

#[test]
fn two_processes_append_at_the_same_time_and_each_finds_the_samples_of_both() {
    let dir = TempDir::new().unwrap();
    let files = open(dir.path());
    let (mut writer, output) = start_writer(dir.path());
    for sample in 0..SAMPLES {
        files.insert(SampleId(sample), &content(sample));
    }
    output.for_each(drop);
    assert!(writer.wait().unwrap().success());
    for files in [files, open(dir.path())] {
        for sample in 0..SAMPLES {
            assert_eq!(files.get(SampleId(sample)), Some(content(sample)), "sample {sample}");
        }
    }
}

#[test]
fn what_a_killed_writer_has_appended_is_found_or_missing_and_never_wrong() {
    let dir = TempDir::new().unwrap();
    let (mut writer, _output) = start_writer(dir.path());
    writer.kill().unwrap();
    writer.wait().unwrap();
    let files = open(dir.path());
    for sample in 0..SAMPLES {
        match files.get(SampleId(sample)) {
            Some(bytes) => assert_eq!(bytes, content(sample), "sample {sample}"),
            None => assert!(sample < SAMPLES - 20, "it was written before"),
        }
        files.insert(SampleId(sample), &content(sample));
    }
    assert!((0..SAMPLES).all(|sample| files.get(SampleId(sample)) == Some(content(sample))));
}
