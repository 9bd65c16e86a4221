// SPDX-License-Identifier: Apache-2.0
//! The effect of a slow, throttling, failing, stalled or incomplete origin on batches.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc;

use foresee_data_index::LayoutOptions;
use foresee_data_loader::{LoaderError, LoaderOptions};
use foresee_ledger::Op;
use foresee_testbed::Options;
use foresee_testkit::wait_until;
use foresee_units::{Bytes, Epoch, Source};
use tempfile::TempDir;
use tokio::sync::oneshot;

use crate::support::{DataSet, epoch, expected, ids_of, index_of, key_of, next, ram, write_sample};

/// Samples of these sizes in the bucket `data` of `folder`, which the web server at `url` serves.
fn served_data_set(sizes: &[u64], folder: TempDir, url: &str) -> DataSet {
    let uri = format!("{url}/data");
    let keys: Vec<Vec<u8>> = (0..sizes.len() as u64).map(|id| key_of(id).into_bytes()).collect();
    let index = index_of(&uri, LayoutOptions::Flat { extensions: Vec::new() }, Some(&keys));
    DataSet { dir: folder, sizes: sizes.to_vec(), index, uri }
}

/// A web server in this process with injected faults.
pub(crate) struct Testbed {
    set: DataSet,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Testbed {
    /// Serve samples of `sizes` under these limits.
    pub(crate) fn serve(sizes: &[u64], limits: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let bucket = folder.path().join("data");
        fs::create_dir(&bucket).expect("a folder");
        for (id, &size) in (0..).zip(sizes) {
            write_sample(&bucket, id, size);
        }
        let arguments = ["serve".to_owned(), folder.path().display().to_string()];
        let options = Options::parse(arguments).expect("a valid line");
        let (bound, address) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let testbed = foresee_testbed::Testbed::bind(options).await.expect("a free port");
                bound.send(testbed.address().expect("an address")).expect("a receiver");
                testbed.run(async { drop(stopped.await) }).await;
            });
            runtime.shutdown_background();
        };
        let thread = std::thread::spawn(serve);
        let address: SocketAddr = address.recv().expect("the testbed is bound");
        let set = served_data_set(sizes, folder, &format!("http://{address}"));
        let testbed = Self { set, address, stop: Some(stop), thread: Some(thread) };
        let mut wanted = String::new();
        for (name, value) in limits {
            let _ = write!(wanted, "{}\"{name}\": {value}", if wanted.is_empty() { "" } else { ", " });
        }
        testbed.post("/-/limits", &format!("{{{wanted}}}"));
        testbed.post("/-/reset", "");
        testbed
    }

    pub(crate) const fn data_set(&self) -> &DataSet {
        &self.set
    }

    /// The file behind a sample.
    fn path(&self, id: u64) -> PathBuf {
        self.set.dir.path().join(format!("data/{id:06}"))
    }

    /// Replace the rules of the testbed.
    fn faults(&self, rules: &str) {
        self.post("/-/faults", rules);
    }

    /// A counter of the testbed.
    fn counter(&self, name: &str) -> u64 {
        let counters = self.exchange("GET /-/counters HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
        let (_, rest) = counters.split_once(&format!("\"{name}\":")).expect("a counter of this name");
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    }

    fn post(&self, path: &str, body: &str) {
        let head = format!("POST {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n");
        let answer = self.exchange(&format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()));
        assert!(answer.starts_with("HTTP/1.1 200"), "{body}: {answer}");
    }

    fn exchange(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the testbed did not panic");
        }
    }
}

/// Sample, kind and message.
type SampleFault = (u64, &'static str, String);

/// The epoch's batches and the faults of their samples; all other bytes are checked.
fn faults_of(set: &DataSet, loader: &foresee_data_loader::Loader) -> (Vec<Vec<u64>>, Vec<SampleFault>) {
    let (mut batches, mut faults) = (Vec::new(), Vec::new());
    while let Some(batch) = next(loader).expect("a batch or the end") {
        set.check(&batch);
        for fault in &batch.faults {
            faults.push((batch.ids[fault.index].0, fault.kind(), fault.message.clone()));
        }
        batches.push(ids_of(&batch));
    }
    faults.sort_by_key(|fault| fault.0);
    (batches, faults)
}

#[test]
fn a_web_server_is_read_once_per_sample() {
    let testbed = Testbed::serve(&[3000; 40], &[]);
    let set = testbed.data_set();
    let mut options = LoaderOptions { epochs: Some(3), ..set.options() };
    let loader = set.loader(&ram(set.ram_for(&mut options, 40 * 3008)), options.clone());
    for number in 0..3 {
        assert_eq!(epoch(set, &loader), expected(&options, number, 0));
    }
    let origin = loader.stats().driver.origin;
    let (served, moved) = (testbed.counter("body_bytes"), origin.moved.get());
    // A slow answer is hedged, and the losing answer may be cut off anywhere.
    assert!((120_000..=served).contains(&moved), "{served} bytes served: {origin:?}");
    assert!(served <= 120_000 + origin.hedged_bytes.get(), "{served} bytes served: {origin:?}");
}

#[test]
fn missing_changed_and_denied_objects_are_faults_of_their_samples_only() {
    let testbed = Testbed::serve(&[900; 30], &[]);
    let set = testbed.data_set();
    let mut options = LoaderOptions { epochs: Some(2), ..set.options() };
    let loader = set.loader(&ram(set.ram_for(&mut options, 30 * 960)), options.clone());
    fs::remove_file(testbed.path(3)).expect("the file exists");
    fs::write(testbed.path(11), [1; 901]).expect("a file");
    testbed.faults(r#"[{"kind": "status", "status": 403, "path": "000020"}]"#);
    for number in 0..2 {
        let (batches, faults) = faults_of(set, &loader);
        assert_eq!(batches, expected(&options, number, 0), "the epoch has its full length");
        let kinds: Vec<_> = faults.iter().map(|(id, kind, _)| (*id, *kind)).collect();
        assert_eq!(kinds, [(3, "missing"), (11, "changed"), (20, "denied")]);
        for (_, _, message) in &faults {
            assert!(message.contains("attempt"), "{message}");
        }
    }
    let other = set.loader(&ram(0), options);
    testbed.faults("[]");
    fs::write(testbed.path(3), [1; 899]).expect("a file");
    let (_, faults) = faults_of(set, &other);
    let kinds: Vec<_> = faults.iter().map(|(id, kind, _)| (*id, *kind)).collect();
    assert_eq!(kinds, [(3, "changed"), (11, "changed")], "access granted again is no fault");
}

#[test]
fn heavy_throttling_causes_no_fault() {
    let testbed = Testbed::serve(&[700; 40], &[]);
    let set = testbed.data_set();
    let options = set.options();
    let loader = set.loader(&ram(0), options.clone());
    testbed.faults(r#"[{"kind": "status", "status": 503, "next": 30}]"#);
    assert_eq!(epoch(set, &loader), expected(&options, 0, 0));
    let origin = loader.stats().driver.origin;
    assert!(origin.throttles > 0 && origin.retries >= origin.throttles, "{origin:?}");
}

#[test]
fn broken_connections_and_short_bodies_are_retried() {
    let testbed = Testbed::serve(&[5000; 40], &[]);
    let set = testbed.data_set();
    let options = set.options();
    let loader = set.loader(&ram(0), options.clone());
    testbed.faults(
        r#"[{"kind": "reset", "percent": 20, "seed": 1, "next": 6}, {"kind": "short_body", "percent": 20, "seed": 2, "next": 6},
            {"kind": "status", "status": 500, "percent": 20, "seed": 3, "next": 6}]"#,
    );
    assert_eq!(epoch(set, &loader), expected(&options, 0, 0));
    assert!(loader.stats().driver.origin.retries >= 10);
    let failed = loader.stats().totals.failed(Op::Read, Source::Origin).expect("recorded").count;
    assert!(failed >= 10, "{failed}");
}

#[test]
fn a_stalled_connection_is_hedged() {
    let testbed = Testbed::serve(&[2000; 200], &[]);
    let set = testbed.data_set();
    let mut options = LoaderOptions { epochs: Some(2), ..set.options() };
    options.staging = Some(Bytes::new(16 * 4 * 2000));
    let loader = set.loader(&ram(0), options.clone());
    // The first epoch measures usual latencies.
    assert_eq!(epoch(set, &loader), expected(&options, 0, 0));
    testbed.faults(r#"[{"kind": "stall", "next": 1}]"#);
    assert_eq!(epoch(set, &loader), expected(&options, 1, 0));
    let origin = loader.stats().driver.origin;
    assert!(testbed.counter("faults") == 0 || origin.hedge_wins > 0 || origin.retries > 0, "{origin:?}");
}

#[test]
fn a_wait_for_a_stalled_sample_names_it_and_earlier_batches_are_delivered() {
    let testbed = Testbed::serve(&[2000; 40], &[]);
    let set = testbed.data_set();
    let options = set.options();
    let stuck = expected(&options, 0, 0)[5][2];
    testbed.faults(&format!(r#"[{{"kind": "stall", "path": "{stuck:06}"}}]"#));
    let loader = set.loader(&ram(0), options.clone());
    for batch in &expected(&options, 0, 0)[..5] {
        assert_eq!(&ids_of(&next(&loader).expect("a batch").expect("not the end")), batch);
    }
    let uri = format!("/data/{stuck:06}");
    wait_until("the wait names the sample", || {
        match loader.next_batch(std::time::Duration::from_millis(50)) {
            Ok(foresee_data_loader::Next::Waiting { what, .. }) => {
                what.is_some_and(|what| what.contains(&uri))
            }
            other => panic!("{other:?}"),
        }
    });
    // Later batches are ready meanwhile, and are delivered in order.
    testbed.faults("[]");
    loader.begin_epoch(Epoch(0), 0, None).expect("a valid position");
    assert_eq!(epoch(set, &loader), expected(&options, 0, 0));
}

#[test]
fn a_seek_while_reads_are_in_flight_changes_no_byte() {
    let testbed = Testbed::serve(&[6000; 60], &[("latency_ms", "3")]);
    let set = testbed.data_set();
    let mut options = LoaderOptions { epochs: Some(4), ..set.options() };
    let loader = set.loader(&ram(set.ram_for(&mut options, 60 * 3000)), options.clone());
    for (number, position) in [(0, 7), (2, 0), (1, 40), (1, 41), (3, 59), (0, 0), (2, 20)] {
        loader.start(std::time::Duration::ZERO).expect("an origin");
        wait_until("reads are in flight", || {
            loader.stats().driver.origin.in_flight > 0 || loader.stats().ready > 0
        });
        loader.begin_epoch(Epoch(number), position, None).expect("a valid position");
        for batch in expected(&options, number, position).iter().take(3) {
            let got = next(&loader).expect("a batch").expect("not the end");
            set.check(&got);
            assert_eq!((got.epoch, &ids_of(&got)), (Epoch(number), batch));
        }
    }
}

#[test]
fn closing_from_another_thread_ends_a_wait() {
    let testbed = Testbed::serve(&[2000; 8], &[]);
    let set = testbed.data_set();
    testbed.faults(r#"[{"kind": "stall", "path": "0000"}]"#);
    let loader = set.loader(&ram(0), set.options());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| next(&loader));
        wait_until("reads are in flight", || loader.stats().driver.origin.in_flight > 0);
        loader.close();
        assert!(matches!(waiter.join().expect("no panic"), Err(LoaderError::Closed)));
    });
    loader.close();
    assert!(matches!(next(&loader), Err(LoaderError::Closed)));
}

#[test]
fn dropping_the_loader_while_reads_are_in_flight_ends_every_request() {
    let testbed = Testbed::serve(&[60_000; 32], &[("bytes_per_s", "2000000")]);
    let set = testbed.data_set();
    for _ in 0..3 {
        let loader = set.loader(&ram(0), set.options());
        loader.start(std::time::Duration::ZERO).expect("an origin");
        wait_until("reads are in flight", || loader.stats().driver.origin.in_flight > 0);
    }
    wait_until("every request has ended", || testbed.counter("in_flight") == 0);
}

#[test]
fn an_unreachable_origin_is_named_before_the_first_batch() {
    let set = DataSet::files(&[10; 4]);
    let uri = set.dir.path().join("gone").display().to_string();
    let loader = set.loader(&ram(0), LoaderOptions { uri: uri.clone(), ..set.options() });
    let error = loader.start(std::time::Duration::ZERO).expect_err("no such folder");
    assert!(matches!(error, LoaderError::Origin(_)) && error.to_string().contains("gone"), "{error}");
    let unreachable = LoaderOptions { uri: "http://127.0.0.1:9/data".to_owned(), ..set.options() };
    let error =
        set.loader(&ram(0), unreachable).start(std::time::Duration::ZERO).expect_err("no server listens");
    assert!(error.to_string().contains("127.0.0.1:9"), "{error}");
}
