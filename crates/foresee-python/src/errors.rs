// SPDX-License-Identifier: Apache-2.0
//! Conversion of errors of the core to the exceptions of `foresee.errors`.

use std::borrow::Borrow;
use std::path::Path;

use foresee_calibrate::CalibrateError;
use foresee_data_index::IndexError;
use foresee_data_loader::{IndexingError, LoaderError};
use foresee_data_tier::{DiskError, OriginError};
use foresee_grad_exchange::{ExchangeError, LostPeer};
use foresee_grad_queue::QueueError;
use foresee_wire::{FaultCode, WireError};
use pyo3::prelude::*;

/// The exceptions, imported on first use: `foresee.errors` is pure Python and imports no other module of Foresee.
mod classes {
    pyo3::import_exception!(foresee.errors, CacheError);
    pyo3::import_exception!(foresee.errors, Closed);
    pyo3::import_exception!(foresee.errors, ConfigError);
    pyo3::import_exception!(foresee.errors, ForeseeError);
    pyo3::import_exception!(foresee.errors, IndexInvalid);
    pyo3::import_exception!(foresee.errors, NoSamples);
    pyo3::import_exception!(foresee.errors, OriginChanged);
    pyo3::import_exception!(foresee.errors, OriginDenied);
    pyo3::import_exception!(foresee.errors, OriginError);
    pyo3::import_exception!(foresee.errors, OriginMissing);
    pyo3::import_exception!(foresee.errors, RankLost);
    pyo3::import_exception!(foresee.errors, ServerLost);
    pyo3::import_exception!(foresee.errors, StallTimeout);
}

pub(crate) fn of_loader(error: impl Borrow<LoaderError>) -> PyErr {
    let error = error.borrow();
    match error {
        LoaderError::Stopped(error) => of_loader(&**error),
        LoaderError::Config { faults } => classes::ConfigError::new_err(faults.clone()),
        LoaderError::Origin(error) => of_origin(error),
        LoaderError::Disk(error) => of_disk(error),
        LoaderError::Changed { .. } => classes::OriginChanged::new_err(error.to_string()),
        LoaderError::Closed => classes::Closed::new_err(error.to_string()),
        LoaderError::Timeout { .. } => classes::StallTimeout::new_err(error.to_string()),
        other => classes::ForeseeError::new_err(other.to_string()),
    }
}

pub(crate) fn of_peers(error: foresee_data_loader::ExchangeError) -> PyErr {
    match error {
        foresee_data_loader::ExchangeError::Loader(error) => of_loader(error),
        other => classes::ForeseeError::new_err(other.to_string()),
    }
}

pub(crate) fn of_disk(error: impl Borrow<DiskError>) -> PyErr {
    classes::CacheError::new_err(error.borrow().to_string())
}

pub(crate) fn of_indexing(error: IndexingError) -> PyErr {
    match error {
        IndexingError::Origin(error) => of_origin(error),
        IndexingError::Index(error) => of_index(error),
        IndexingError::File { path, source } => {
            // The built-in exception of the system's error, with its file name.
            let message = source.to_string();
            match source.raw_os_error() {
                Some(number) => pyo3::exceptions::PyOSError::new_err((number, message, path)),
                None => pyo3::exceptions::PyOSError::new_err(format!("{}: {message}", path.display())),
            }
        }
        IndexingError::Absent { .. } => classes::OriginMissing::new_err(error.to_string()),
        IndexingError::NoDtype { .. } => classes::ConfigError::new_err(error.to_string()),
        other => classes::ForeseeError::new_err(other.to_string()),
    }
}

/// As [`of_indexing`], with the path of the index file.
pub(crate) fn of_opening(error: IndexingError, path: &Path) -> PyErr {
    match error {
        IndexingError::Index(error) => invalid_index(format!("{}: {error}", path.display())),
        other => of_indexing(other),
    }
}

pub(crate) fn of_exchange(error: impl Borrow<ExchangeError>) -> PyErr {
    let error = error.borrow();
    let message = error.to_string();
    match error {
        ExchangeError::Setting { .. }
        | ExchangeError::Disagree(_)
        | ExchangeError::Queue(
            QueueError::PlansDiffer(_)
            | QueueError::PacketBytes { .. }
            | QueueError::TooManyTensors { .. }
            | QueueError::NameLength { .. }
            | QueueError::NameTwice { .. }
            | QueueError::Dimensions { .. }
            | QueueError::NotDense { .. }
            | QueueError::TooLarge { .. }
            | QueueError::Pattern { .. },
        ) => classes::ConfigError::new_err(message),
        ExchangeError::Server { why, .. } if is_config(why) => classes::ConfigError::new_err(message),
        ExchangeError::Server { address, .. }
        | ExchangeError::ServerLost { address, .. }
        | ExchangeError::Refused { address, .. }
        | ExchangeError::NodeFailed { lost: LostPeer::Server(address), .. } => {
            classes::ServerLost::new_err((message, address.to_string()))
        }
        ExchangeError::RankLost { rank, .. }
        | ExchangeError::NodeFailed { lost: LostPeer::Rank(rank), .. } => {
            classes::RankLost::new_err((message, rank.0))
        }
        ExchangeError::System(why) => of_wire(&**why),
        ExchangeError::Closed => classes::Closed::new_err(message),
        _ => classes::ForeseeError::new_err(message),
    }
}

/// A forked child used the exchange of its parent.
pub(crate) fn of_fork() -> PyErr {
    classes::ForeseeError::new_err(
        "gradients do not survive a fork: the process that called synchronize() exchanges them; call optimizer.flush() \
         before the fork, where the child needs the weights",
    )
}

pub(crate) fn of_calibrate(error: CalibrateError) -> PyErr {
    match error {
        CalibrateError::Origin(error) => of_origin(error),
        CalibrateError::Wire(error) => of_wire(error),
        CalibrateError::Folder { .. } | CalibrateError::Full { .. } => {
            classes::CacheError::new_err(error.to_string())
        }
        CalibrateError::NoBytes { .. } => invalid_index(error.to_string()),
        CalibrateError::Sample { .. } => classes::OriginError::new_err(error.to_string()),
        other => classes::ForeseeError::new_err(other.to_string()),
    }
}

/// Convert an error of a secret, a certificate or a socket.
pub(crate) fn of_wire(error: impl Borrow<WireError>) -> PyErr {
    let error = error.borrow();
    let message = error.to_string();
    if is_config(error) {
        classes::ConfigError::new_err(message)
    } else {
        classes::ForeseeError::new_err(message)
    }
}

/// An argument or a file of the user is wrong.
pub(crate) fn config_error(message: String) -> PyErr {
    classes::ConfigError::new_err(message)
}

fn is_config(error: &WireError) -> bool {
    match error {
        WireError::Denied { fault, .. } => fault.code == FaultCode::Plan,
        WireError::SecretDiffers { .. }
        | WireError::SecretFile { .. }
        | WireError::SecretExposed { .. }
        | WireError::SecretLength { .. }
        | WireError::NoSecret
        | WireError::Setting { .. }
        | WireError::TlsFile { .. }
        | WireError::TlsMismatch { .. }
        | WireError::TlsSetup { .. } => true,
        _ => false,
    }
}

pub(crate) fn of_index(error: impl Borrow<IndexError>) -> PyErr {
    let error = error.borrow();
    match error {
        IndexError::Empty { .. } | IndexError::NoClasses { .. } => {
            classes::NoSamples::new_err(error.to_string())
        }
        IndexError::Row { .. } | IndexError::NotSelectable { .. } | IndexError::NoneSelected { .. } => {
            classes::ConfigError::new_err(error.to_string())
        }
        IndexError::EmptyClasses { count, of, .. } if count == of => {
            classes::NoSamples::new_err(error.to_string())
        }
        _ => classes::IndexInvalid::new_err(error.to_string()),
    }
}

pub(crate) fn invalid_index(message: String) -> PyErr {
    classes::IndexInvalid::new_err(message)
}

/// An internal error; if it is a panic, its message is on stderr.
pub(crate) fn defect(what: &str) -> PyErr {
    classes::ForeseeError::new_err(format!("{what}: this is a defect of foresee, please report it"))
}

pub(crate) fn of_origin(error: impl Borrow<OriginError>) -> PyErr {
    use std::io::ErrorKind;
    let error = error.borrow();
    let message = error.to_string();
    match error {
        OriginError::Missing { .. }
        | OriginError::NoFile { .. }
        | OriginError::Nothing { .. }
        | OriginError::Unreadable { kind: ErrorKind::NotFound, .. } => {
            classes::OriginMissing::new_err(message)
        }
        OriginError::Changed { .. } => classes::OriginChanged::new_err(message),
        OriginError::Denied { .. }
        | OriginError::NoCredentials { .. }
        | OriginError::ClockDiffers { .. }
        | OriginError::Unreadable { kind: ErrorKind::PermissionDenied, .. } => {
            classes::OriginDenied::new_err(message)
        }
        _ => classes::OriginError::new_err(message),
    }
}
