// SPDX-License-Identifier: Apache-2.0
//! Class `LedgerFile`: ledger entries of a rank's gradients or file reads. The loader writes its own ledger.

use std::path::PathBuf;

use foresee_ledger::{Cause, Entry, Op, Subject};
use foresee_ledger_file::LedgerFileError;
use foresee_units::{Bytes, Epoch, Nanos, Rank, ReadOutcome, SampleId, Source, Step};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::errors::{config_error, defect};

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct LedgerFile {
    file: foresee_ledger_file::LedgerFile,
    rank: Rank,
}

#[pymethods]
impl LedgerFile {
    #[staticmethod]
    fn create(folder: PathBuf, rank: u32) -> PyResult<Self> {
        let file =
            foresee_ledger_file::LedgerFile::create(&folder, Rank(rank), None).map_err(|why| match why {
                LedgerFileError::RunFolder { .. } => config_error(format!("FORESEE_TRACE: {why}")),
                other => PyOSError::new_err(other.to_string()),
            })?;
        Ok(Self { file, rank: Rank(rank) })
    }

    #[expect(clippy::too_many_arguments, reason = "the columns of an entry")]
    fn add(
        &self,
        py: Python<'_>,
        op: &str,
        start_ns: u64,
        duration_ns: u64,
        step: u64,
        tensor: u64,
        nbytes: u64,
    ) -> PyResult<()> {
        let known = [Op::Push, Op::Pull, Op::Wait].into_iter().find(|known| known.name() == op);
        let op = known.ok_or_else(|| defect("an entry of the ledger"))?;
        let waits = op == Op::Wait;
        let entry = Entry {
            start: Nanos::new(start_ns),
            duration: Nanos::new(duration_ns),
            rank: self.rank,
            epoch: Epoch(0),
            step: Step(step),
            subject: Subject::Tensor(tensor),
            op,
            source: if waits { Source::None } else { Source::Server },
            cause: waits.then_some(Cause::Gradient),
            bytes: Bytes::new(nbytes),
            samples: 0,
            attempt: 1,
            outcome: ReadOutcome::Ok,
        };
        py.detach(|| self.file.add(entry));
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the columns of an entry")]
    fn add_files(
        &self,
        py: Python<'_>,
        op: &str,
        source: &str,
        epoch: u64,
        start_ns: PyReadonlyArray1<'_, u64>,
        duration_ns: PyReadonlyArray1<'_, u64>,
        step: PyReadonlyArray1<'_, u64>,
        sample: PyReadonlyArray1<'_, u64>,
        nbytes: u64,
    ) -> PyResult<()> {
        let unknown = || defect("an entry of the ledger");
        let op = [Op::Open, Op::Read, Op::Close].into_iter().find(|known| known.name() == op);
        let op = op.ok_or_else(unknown)?;
        let source = [Source::Origin, Source::Disk].into_iter().find(|known| known.name() == source);
        let source = source.ok_or_else(unknown)?;
        let (start, duration) = (start_ns.as_slice()?, duration_ns.as_slice()?);
        let (step, sample) = (step.as_slice()?, sample.as_slice()?);
        if [duration.len(), step.len(), sample.len()] != [start.len(); 3] {
            return Err(unknown());
        }
        py.detach(|| {
            for (((&start, &duration), &step), &sample) in start.iter().zip(duration).zip(step).zip(sample) {
                self.file.add(Entry {
                    start: Nanos::new(start),
                    duration: Nanos::new(duration),
                    rank: self.rank,
                    epoch: Epoch(epoch),
                    step: Step(step),
                    subject: Subject::Sample(SampleId(sample)),
                    op,
                    source,
                    cause: None,
                    bytes: Bytes::new(nbytes),
                    samples: 1,
                    attempt: 1,
                    outcome: ReadOutcome::Ok,
                });
            }
        });
        Ok(())
    }

    #[getter]
    fn lost(&self) -> Option<String> {
        self.file.failure()
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.file.close());
    }
}
