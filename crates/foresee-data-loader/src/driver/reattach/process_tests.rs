// SPDX-License-Identifier: Apache-2.0
//! A driver without its thread that returns to a host between two turns.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use foresee_data_fetch::Dispatch;
use foresee_data_node::NodeAddress;
use foresee_data_order::Order;
use foresee_data_plan::{HierarchyPlanner, PlannerConfig, PolicyChoice, SlowestTier};
use foresee_data_tier::{Completions, OriginOptions, Uri, open_origin};
use foresee_ledger::NodeCacheRole;
use foresee_testkit::wait_until;
use foresee_units::{Bytes, Nanos, World};
use tempfile::TempDir;

use super::*;
use crate::batch_queue::{BatchQueue, QueueEntry};
use crate::buffer::BufferPool;
use crate::cache::CacheShare;
use crate::config::{LoaderConfig, LoaderOptions};
use crate::data_set::DataSet;
use crate::driver::schedule::EpochSink;
use crate::driver::{CommandQueue, DriverNode, DriverTiers, Shared};
use crate::node::test_support::{address, flat_index, hello, host_options, private_dir};
use crate::node::{AttachTarget, NodeEvent, NodeHost};
use crate::notices::Notices;
use crate::origin_queue::{OriginQueueInputs, origin_queue_config};
use crate::recorder::Recorder;
use crate::waker::Waker;

/// More than a turn plans.
const SAMPLES: u64 = 1500;

/// A driver of one batch without caches, as after the loss of its host.
fn driver(data: &Arc<DataSet>, uri: &str) -> Driver {
    let options = LoaderOptions {
        uri: uri.to_owned(),
        storage: Vec::new(),
        batch_size: SAMPLES,
        drop_last: false,
        order: Some(Order::Sequential { n: SAMPLES, drop_last: false }),
        avoid: Vec::new(),
        epochs: Some(1),
        world: World::ALONE,
        local_world: World::ALONE,
        staging: None,
        threads: Some(2),
        run_dir: None,
        node: None,
        peers: false,
        listed: false,
    };
    let config = LoaderConfig::check(options, data.index(), Bytes::ZERO).expect("a configuration that fits");
    let waker = Arc::new(Waker::default());
    let woken = Arc::clone(&waker);
    let completions = Completions::new(move || woken.wake());
    let shared = Shared {
        commands: CommandQueue::default(),
        batches: BatchQueue::new(Arc::clone(&waker)),
        recorder: Recorder::new(World::ALONE.rank()),
        buffers: Arc::new(BufferPool::new(config.staging, Arc::clone(&waker))),
        stats: Mutex::default(),
        notices: Notices::default(),
        waker,
    };
    let location = Uri::parse(uri).expect("a directory");
    let origin =
        open_origin(&location, &OriginOptions::default(), Arc::clone(data) as _, completions.clone());
    let tiers = DriverTiers {
        origin: origin.expect("a directory"),
        ram: None,
        disk: None,
        copies: Bytes::ZERO,
        completions,
        share: Arc::new(CacheShare::empty()),
    };
    let plan =
        PlannerConfig { tiers: Vec::new(), policy: PolicyChoice::Auto, table_budget: Bytes::new(1 << 20) };
    let planner = HierarchyPlanner::new(plan, SlowestTier::OfThisRun, Arc::clone(data) as _).expect("a plan");
    let queue = origin_queue_config(&OriginQueueInputs {
        is_directory: true,
        threads: Some(2),
        mean_size: data.index().mean_size(),
        samples: SAMPLES,
        objects: SAMPLES,
        local_queues: 1,
        is_shared: false,
    });
    let dispatch = Dispatch::new(queue);
    let mut driver =
        Driver::new(Arc::new(shared), &config, Arc::clone(data), tiers, planner, dispatch, DriverNode::None);
    driver.begin();
    driver
}

fn attempt(address: &NodeAddress, data: &Arc<DataSet>, uri: &str, waker: &Arc<Waker>) -> HostSearch {
    let target = AttachTarget {
        address: address.clone(),
        role: NodeCacheRole::ServiceConsumer,
        hello: hello(),
        data: Arc::clone(data),
        uri: uri.to_owned(),
        storage: Vec::new(),
        is_listed: false,
        waker: Arc::clone(waker),
    };
    HostSearch::attempt(target).expect("a thread")
}

/// A driver before its first turn, next to a host.
struct Setup {
    driver: Driver,
    data: Arc<DataSet>,
    uri: String,
    content: Vec<u8>,
    host: NodeHost,
    address: NodeAddress,
    _folders: [TempDir; 2],
}

impl Setup {
    fn new() -> Self {
        let (folder, home) = (private_dir(), private_dir());
        let content: Vec<u8> = (0..SAMPLES).flat_map(u64::to_le_bytes).collect();
        for (sample, bytes) in content.chunks(8).enumerate() {
            std::fs::write(folder.path().join(format!("{sample:06}")), bytes).expect("a file");
        }
        let uri = folder.path().display().to_string();
        let data = Arc::new(DataSet::new(flat_index(&uri, Vec::new()), &uri));
        let host = NodeHost::start(host_options(home.path(), 1 << 20)).expect("a host");
        let (driver, address) = (driver(&data, &uri), address(home.path()));
        Self { driver, data, uri, content, host, address, _folders: [folder, home] }
    }

    fn attach(&mut self) {
        let Self { driver, data, uri, address, .. } = self;
        driver.search = Some(attempt(address, data, uri, &driver.shared.waker));
        wait_until("the attachment", || {
            driver.handle_search();
            driver.node.is_some()
        });
    }

    /// Take the only batch, which is complete and has the right bytes.
    fn take_batch(&mut self) {
        let mut taken = None;
        wait_until("the batch", || {
            self.driver.turn();
            taken = self.driver.shared.batches.take(Duration::ZERO, Nanos::ZERO).expect("no error");
            taken.is_some()
        });
        let Some(QueueEntry::Batch(batch)) = taken else {
            panic!("a batch comes before the end of its epoch")
        };
        assert!(batch.faults.is_empty());
        assert_eq!(batch.bytes(), self.content);
    }
}

#[test]
fn the_rest_of_a_batch_that_is_half_planned_is_read_alone() {
    let mut setup = Setup::new();
    wait_until("a batch is half planned", || {
        setup.driver.turn();
        setup.driver.delivery.staging.planning().is_some_and(|stage| stage.planned > 0)
    });
    setup.attach();
    assert!(setup.driver.delivery.staging.planning().is_none(), "the whole batch has a source");
    setup.take_batch();
}

#[test]
fn a_loader_whose_last_batch_is_refused_says_that_the_host_is_gone() {
    let mut setup = Setup::new();
    setup.attach();
    let Setup { driver, host, .. } = &mut setup;
    wait_until("the host wants the accesses", || {
        driver.handle_node(driver.shared.batches.snapshot());
        driver.node.as_ref().is_some_and(EpochSink::wants_epoch)
    });
    host.close();
    wait_until("the end of the attachment", || {
        let node = driver.node.as_mut().expect("its end was not handled");
        node.client.drain(&mut node.events);
        node.events.iter().any(|event| matches!(event, NodeEvent::Ended { .. }))
    });
    driver.shared.notices.take();
    wait_until("the batch has its sources", || {
        driver.request_turn(driver.shared.batches.snapshot());
        driver.schedule.is_over()
    });
    setup.take_batch();
    let notices = setup.driver.shared.notices.take();
    assert_eq!(
        notices.iter().filter(|text| text.contains("this node's cache is gone")).count(),
        1,
        "{notices:?}"
    );
}
