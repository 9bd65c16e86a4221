// SPDX-License-Identifier: Apache-2.0
//! What the tests of this module read, where its hosts are, and what its consumers attach with.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use foresee_data_index::{Exclude, Index, LayoutOptions};
use foresee_data_node::{Hello, NodeAddress, RING_BYTES_MIN};
use foresee_units::Bytes;
use tempfile::TempDir;

use super::{NodeHostOptions, OtherNodes};

/// A directory that the host of a cache accepts for its socket and its disk.
pub(crate) fn private_dir() -> TempDir {
    let permissions = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().permissions(permissions).tempdir().expect("a directory")
}

/// The index of the files or objects below `uri`, which have no classes.
pub(crate) fn flat_index(uri: &str, storage: Vec<(String, String)>) -> Index {
    let layout = LayoutOptions::Flat { extensions: Vec::new() };
    let (exclude, cancel) = (Exclude::default(), AtomicBool::new(false));
    let built = crate::build_index(uri, storage, layout, false, None, &exclude, &|_| {}, &cancel);
    built.expect("an index").0
}

/// The address of a host in `home`.
pub(crate) fn address(home: &Path) -> NodeAddress {
    NodeAddress::explicit(home.join("node.sock")).expect("a short path")
}

/// A host in `home` with `ram` bytes of memory and no disk.
pub(crate) fn host_options(home: &Path, ram: u64) -> NodeHostOptions {
    NodeHostOptions {
        address: address(home),
        ram: Bytes::new(ram),
        disk: None,
        allow_uids: Vec::new(),
        version: "test".into(),
        ranks: 1,
        others: OtherNodes::None,
        probes_listed: true,
        huge_pages: false,
    }
}

/// The greeting of a consumer with the smallest rings.
pub(crate) fn hello() -> Hello {
    Hello {
        foresee: "test".into(),
        pid: std::process::id(),
        job: "job".into(),
        loader: [7; 16],
        rank: 0,
        local_rank: 0,
        request_ring_bytes: RING_BYTES_MIN,
        answer_ring_bytes: RING_BYTES_MIN,
    }
}
