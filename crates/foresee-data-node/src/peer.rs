// SPDX-License-Identifier: Apache-2.0
//! The process at the other end of a Unix socket: its user, and whether it still lives.
//!
//! Users are the trust boundary of a node's cache. The kernel reports the user, so no proof is exchanged.

mod process;
#[cfg(test)]
mod process_tests;

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

pub use process::PeerProcess;

use crate::error::NodeError;

/// The uid by which the kernel shows every user without a mapping in this user namespace.
pub const OVERFLOW_UID: u32 = 65534;

/// What the kernel recorded about the other end when it connected or began to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its process in this pid namespace; `None` if it is not visible here.
    pub pid: Option<u32>,
    /// Its effective user.
    pub uid: u32,
}

impl PeerCredentials {
    /// Read the credentials of the other end of `socket` (`SO_PEERCRED`).
    ///
    /// # Errors
    /// [`NodeError::Io`]: it is no connected Unix socket.
    pub fn of(socket: impl AsFd) -> Result<Self, NodeError> {
        let initial = libc::ucred { pid: 0, uid: OVERFLOW_UID, gid: OVERFLOW_UID };
        // rustix represents the pid as a number other than 0, which the kernel returns for an invisible process.
        // SAFETY: the option's value is this structure of integers.
        let found = unsafe { socket_option(socket.as_fd(), libc::SO_PEERCRED, initial) }
            .map_err(NodeError::io("reading the credentials of the other end"))?;
        Ok(Self { pid: u32::try_from(found.pid).ok().filter(|pid| *pid > 0), uid: found.uid })
    }

    /// Check that the user is `ours` or one of `allowed`. The overflow uid is never accepted, because it stands for
    /// many users.
    ///
    /// # Errors
    /// [`NodeError::OtherUid`], [`NodeError::OverflowUid`].
    pub fn check(&self, ours: u32, allowed: &[u32]) -> Result<(), NodeError> {
        match self.uid {
            OVERFLOW_UID => Err(NodeError::OverflowUid),
            uid if uid == ours || allowed.contains(&uid) => Ok(()),
            uid => Err(NodeError::OtherUid { uid, ours }),
        }
    }
}

/// Read an option of a socket into `value`.
///
/// # Safety
/// `T` has the layout of the option's value, and every content of its bytes is valid.
unsafe fn socket_option<T>(socket: BorrowedFd<'_>, option: libc::c_int, mut value: T) -> io::Result<T> {
    let mut len = libc::socklen_t::try_from(size_of::<T>()).expect("options are small");
    let (to, to_len) = ((&raw mut value).cast(), &raw mut len);
    // SAFETY: both pointers are valid for the given length during the call.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, to, to_len) } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(uid: u32, ours: u32, allowed: &[u32]) -> Result<(), NodeError> {
        PeerCredentials { pid: None, uid }.check(ours, allowed)
    }

    #[test]
    fn only_the_own_user_and_allowed_users_are_accepted() {
        assert!(check(1000, 1000, &[]).is_ok());
        assert!(check(1001, 1000, &[7, 1001]).is_ok());
        let refused = check(1001, 1000, &[7]).unwrap_err();
        assert!(matches!(refused, NodeError::OtherUid { uid: 1001, ours: 1000 }));
        assert!(refused.to_string().contains("uid 1001"), "{refused}");
        assert!(check(0, 1000, &[]).is_err());
    }

    #[test]
    fn the_overflow_uid_is_never_accepted() {
        for (ours, allowed) in [(1000, &[OVERFLOW_UID][..]), (OVERFLOW_UID, &[])] {
            assert!(matches!(check(OVERFLOW_UID, ours, allowed), Err(NodeError::OverflowUid)));
        }
    }
}
