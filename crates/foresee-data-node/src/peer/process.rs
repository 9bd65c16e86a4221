// SPDX-License-Identifier: Apache-2.0
//! A handle of the process at the other end of a socket, by which its end is seen.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

use super::{PeerCredentials, socket_option};
use crate::error::NodeError;
use crate::fork::Descriptor;

/// A pidfd of the other end. It becomes readable when that process ends, also if it is not reaped.
#[derive(Debug)]
pub struct PeerProcess(Descriptor);

impl PeerProcess {
    /// Open a handle of the process that connected `socket` or listened there. `None` where the system offers none, or
    /// the process belongs to an invisible pid namespace; then only the socket shows its end.
    ///
    /// # Errors
    /// [`NodeError::PeerEnded`]: it has ended.
    pub fn open(socket: impl AsFd, credentials: &PeerCredentials) -> Result<Option<Self>, NodeError> {
        let found = match by_socket(socket.as_fd()) {
            Ok(fd) => Some(fd),
            Err(why) if why.raw_os_error() == Some(libc::ENOPROTOOPT) => match credentials.pid {
                Some(pid) => by_pid(pid, start_time)?,
                None => None,
            },
            // Linux reports a process that was reaped before.
            Err(why) if matches!(why.raw_os_error(), Some(libc::ESRCH | libc::ENODATA | libc::EINVAL)) => {
                return Err(NodeError::PeerEnded);
            }
            Err(_) => None,
        };
        let process = found.map(Descriptor::new).transpose()?.map(Self);
        match process {
            Some(process) if !process.is_alive()? => Err(NodeError::PeerEnded),
            process => Ok(process),
        }
    }

    /// Whether the process has not ended. A stopped process is alive.
    ///
    /// # Errors
    /// [`NodeError::Forked`], [`NodeError::Io`].
    pub fn is_alive(&self) -> Result<bool, NodeError> {
        let fd = self.0.get()?;
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now))
            .map(|ready| ready == 0)
            .map_err(NodeError::io("polling the process at the other end"))
    }
}

impl AsFd for PeerProcess {
    /// The pidfd, readable once the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.pollable()
    }
}

/// `SO_PEERPIDFD`, since Linux 6.5: the process that the kernel recorded with the credentials.
fn by_socket(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the option's value is a number.
    let fd: RawFd = unsafe { socket_option(socket, SO_PEERPIDFD, -1) }?;
    // SAFETY: a new descriptor, with the close-on-exec flag, that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `asm-generic/socket.h`, which x86-64 and arm64 use; libc 0.2 has no constant.
const SO_PEERPIDFD: libc::c_int = 77;

/// Open a pidfd by number. The start time before and after shows whether the number was reused meanwhile.
fn by_pid(pid: u32, start_time: impl Fn(u32) -> Option<u64>) -> Result<Option<OwnedFd>, NodeError> {
    let Some(before) = start_time(pid) else { return Err(NodeError::PeerEnded) };
    let pid_number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(NodeError::PeerEnded)?;
    match rustix::process::pidfd_open(pid_number, PidfdFlags::empty()) {
        Ok(fd) if start_time(pid) == Some(before) => Ok(Some(fd)),
        Ok(_) | Err(rustix::io::Errno::SRCH) => Err(NodeError::PeerEnded),
        // An older kernel, or a filter of system calls.
        Err(_) => Ok(None),
    }
}

fn start_time(pid: u32) -> Option<u64> {
    parse_start_time(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Field 22 of `proc_pid_stat(5)`, in clock ticks since boot. Field 2 is a name in parentheses that may contain any
/// character.
fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_start_time_is_found_behind_a_name_with_parentheses() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21";
        assert_eq!(parse_start_time(&format!("17 (a) b (c) {rest}")), Some(4242));
        assert_eq!(parse_start_time("17 (a) S 1 2"), None);
        assert_eq!(parse_start_time(""), None);
    }

    #[test]
    fn a_process_number_is_opened_while_its_start_time_is_the_same() {
        let own = std::process::id();
        assert!(by_pid(own, start_time).unwrap().is_some());
        let count = Cell::new(0);
        let reused = |_| Some(count.replace(count.get() + 1));
        assert!(matches!(by_pid(own, reused), Err(NodeError::PeerEnded)));
        assert!(matches!(by_pid(own, |_| None), Err(NodeError::PeerEnded)));
        assert!(matches!(by_pid(u32::MAX, |_| Some(1)), Err(NodeError::PeerEnded)));
    }
}
