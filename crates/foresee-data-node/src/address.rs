// SPDX-License-Identifier: Apache-2.0
//! Where the host of a node's cache is found.
//!
//! A path is a pure function of the environment's values, so both ends compute the same one. A service has one path for
//! each user. A host within a launched job has one for each run and restart, so two jobs never meet by accident.

mod directory;
mod launcher;
mod owner;
#[cfg(test)]
mod tests;
mod wait;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

pub use directory::DirectoryFault;
pub(crate) use directory::{Access, SocketDirectory};
pub use launcher::LauncherValues;
use xxhash_rust::xxh3::xxh3_128;

use crate::error::NodeError;

/// The longest path of a socket: `sun_path` has 108 bytes, one of which ends it.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The socket of a host of a node's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    path: PathBuf,
    is_explicit: bool,
}

impl NodeAddress {
    /// An address that the user gave.
    ///
    /// # Errors
    /// [`NodeError::PathTooLong`].
    pub fn explicit(path: impl Into<PathBuf>) -> Result<Self, NodeError> {
        Self::new(path.into(), true)
    }

    fn new(path: PathBuf, is_explicit: bool) -> Result<Self, NodeError> {
        if path.as_os_str().as_bytes().len() > SOCKET_PATH_BYTES_MAX {
            return Err(NodeError::PathTooLong { path });
        }
        Ok(Self { path, is_explicit })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the user gave it. Otherwise its directory is private to one user, and both ends check that.
    pub fn is_explicit(&self) -> bool {
        self.is_explicit
    }

    /// Identity of the host at this address: 32 hexadecimal digits, which depend on the node of boot `boot_id` and on the
    /// file of the socket, and not on its path, because containers may mount its directory at different paths. Without that
    /// file the path counts.
    pub fn host_id(&self, boot_id: &str) -> String {
        let file = self.path.metadata().map(|file| format!("{boot_id} {} {}", file.dev(), file.ino()));
        let text = file.unwrap_or_else(|_| format!("{boot_id} {}", self.path.display()));
        format!("{:032x}", xxh3_128(text.as_bytes()))
    }

    /// Users beside the own one whose host a consumer may trust: the owner of the directory of an address that the user
    /// gave. That owner can replace the socket anyway.
    ///
    /// Empty if other users can write to that directory or to one above it, or if a symbolic link leads there: they
    /// could replace the directory by one of their own.
    pub fn trusted_uids(&self) -> Vec<u32> {
        if !self.is_explicit {
            return Vec::new();
        }
        let ours = rustix::process::geteuid().as_raw();
        owner::trusted_owner(self.directory(), ours).into_iter().collect()
    }

    pub(crate) fn directory(&self) -> &Path {
        self.path.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }
}

/// The answer to "which service?".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeDiscovery {
    /// The user wants no cache of the node: `FORESEE_OFF=1`, or `FORESEE_NODE=off`.
    Off,
    /// The service is there, if one runs.
    At(NodeAddress),
}

/// Values of the environment that locate the service of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressValues {
    /// `FORESEE_OFF`: 1 or 0.
    pub off: Option<OsString>,
    /// `FORESEE_NODE`: the absolute path of a socket, or `off`.
    pub node: Option<OsString>,
    /// `XDG_RUNTIME_DIR`, if it is an existing directory.
    pub runtime_directory: Option<PathBuf>,
    /// The directory of temporary files.
    pub temporary_directory: PathBuf,
    /// The effective user.
    pub uid: u32,
}

impl AddressValues {
    /// Read them from the environment of this process.
    pub fn from_environment() -> Self {
        Self {
            off: std::env::var_os("FORESEE_OFF"),
            node: std::env::var_os("FORESEE_NODE"),
            // It is often inherited by jobs on nodes where it does not exist.
            runtime_directory: std::env::var_os("XDG_RUNTIME_DIR")
                .map(PathBuf::from)
                .filter(|path| path.is_dir()),
            temporary_directory: std::env::temp_dir(),
            uid: rustix::process::geteuid().as_raw(),
        }
    }

    /// Locate the service.
    ///
    /// # Errors
    /// [`NodeError::Setting`], [`NodeError::PathTooLong`].
    pub fn service(&self) -> Result<NodeDiscovery, NodeError> {
        if self.is_off()? {
            return Ok(NodeDiscovery::Off);
        }
        let address = match self.node.as_ref().filter(|node| !node.is_empty()) {
            Some(node) => explicit(node)?,
            None => NodeAddress::new(self.directory().join("node.sock"), false)?,
        };
        Ok(NodeDiscovery::At(address))
    }

    /// Locate the host within the job of `launcher`; `None` if the user wants no cache, or nothing identifies the run.
    ///
    /// # Errors
    /// As [`service`](Self::service).
    pub fn launched(&self, launcher: &LauncherValues) -> Result<Option<NodeAddress>, NodeError> {
        self.of_run(launcher, "")
    }

    /// Locate the host of the listings that ranks of the job of `launcher` share; `None` as in [`launched`](Self::launched).
    ///
    /// # Errors
    /// As [`service`](Self::service).
    pub fn listings(&self, launcher: &LauncherValues) -> Result<Option<NodeAddress>, NodeError> {
        self.of_run(launcher, "list-")
    }

    /// Locate the `number`th cache of samples that process `pid` shares with its worker processes.
    ///
    /// # Errors
    /// [`NodeError::PathTooLong`].
    pub fn samples(&self, pid: u32, number: u32) -> Result<NodeAddress, NodeError> {
        NodeAddress::new(self.directory().join(format!("samples-{pid}-{number}.sock")), false)
    }

    fn of_run(&self, launcher: &LauncherValues, prefix: &str) -> Result<Option<NodeAddress>, NodeError> {
        if self.is_off()? {
            return Ok(None);
        }
        let file = launcher.file_name(self.uid);
        file.map(|file| NodeAddress::new(self.directory().join(format!("{prefix}{file}")), false)).transpose()
    }

    fn is_off(&self) -> Result<bool, NodeError> {
        let off = match self.off.as_ref().map(|off| off.as_bytes()) {
            None | Some(b"0") => false,
            Some(b"1") => true,
            Some(other) => return Err(setting("FORESEE_OFF", other, "use 1 or 0")),
        };
        Ok(off || self.node.as_ref().is_some_and(|node| node == "off"))
    }

    /// The directory of this user's sockets.
    fn directory(&self) -> PathBuf {
        match self.runtime_directory.as_ref().filter(|path| path.is_absolute()) {
            Some(path) => path.join("foresee"),
            None => self.temporary_directory.join(format!("foresee-{}", self.uid)),
        }
    }
}

fn explicit(node: &OsString) -> Result<NodeAddress, NodeError> {
    let path = Path::new(node);
    // Ranks may have other working directories than the host.
    if !path.is_absolute() || path.file_name().is_none() {
        let remedy = "use the absolute path of the socket, or `off`";
        return Err(setting("FORESEE_NODE", node.as_bytes(), remedy));
    }
    NodeAddress::explicit(path)
}

fn setting(name: &'static str, value: &[u8], remedy: &'static str) -> NodeError {
    NodeError::Setting { name, value: String::from_utf8_lossy(value).into_owned(), remedy }
}
