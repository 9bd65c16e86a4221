// SPDX-License-Identifier: Apache-2.0
//! What the tests of this module attach with.

use std::os::unix::fs::PermissionsExt as _;

use foresee_data_node::{Hello, RING_BYTES_MIN};
use tempfile::TempDir;

/// A directory that the host of a cache accepts for its socket and its disk.
pub(crate) fn private_dir() -> TempDir {
    let permissions = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().permissions(permissions).tempdir().expect("a directory")
}

/// The greeting of a consumer with the smallest rings.
pub(crate) fn hello() -> Hello {
    Hello {
        foresee: "test".into(),
        pid: std::process::id(),
        job: "job".into(),
        rank: 0,
        local_rank: 0,
        request_ring_bytes: RING_BYTES_MIN,
        answer_ring_bytes: RING_BYTES_MIN,
    }
}
