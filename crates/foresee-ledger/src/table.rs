// SPDX-License-Identifier: Apache-2.0
//! The ledger as a table: Arrow IPC in stream form, with one column per field of [`Entry`].
//!
//! The stream form has no footer, unlike the file form: after a kill -9 all batches except the last are still
//! readable. Words are dictionary-encoded, so a row takes about 60 bytes.

use std::io::Write;
use std::sync::Arc;

use arrow_array::builder::{StringDictionaryBuilder, UInt32Builder, UInt64Builder};
use arrow_array::types::UInt8Type;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema};

use crate::entry::Entry;

/// Rows per write.
const ROWS_PER_BATCH: usize = 4096;

/// Failure to write a ledger.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The writer failed or rejected a batch.
    #[error("the ledger cannot be written: {0}; check the run folder's disk, or run without one")]
    Arrow(#[from] ArrowError),
}

/// Writes entries to an Arrow IPC stream.
pub struct LedgerWriter<W: Write> {
    stream: StreamWriter<W>,
    rows: Vec<Entry>,
    /// Rows per write of this writer.
    together: usize,
}

impl<W: Write> std::fmt::Debug for LedgerWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LedgerWriter").field("gathered", &self.rows.len()).finish_non_exhaustive()
    }
}

impl<W: Write> LedgerWriter<W> {
    /// Begin a stream on `writer`, which gets large writes only.
    pub fn new(writer: W) -> Result<Self, LedgerError> {
        Self::with_rows(writer, ROWS_PER_BATCH)
    }

    /// The same with `rows` rows per write, 1 or more, for callers with many writers.
    pub fn with_rows(writer: W, rows: usize) -> Result<Self, LedgerError> {
        let stream = StreamWriter::try_new(writer, &schema())?;
        let together = rows.clamp(1, ROWS_PER_BATCH);
        Ok(Self { stream, rows: Vec::with_capacity(together), together })
    }

    /// Add one row; writes when enough rows are buffered.
    pub fn push(&mut self, entry: Entry) -> Result<(), LedgerError> {
        self.rows.push(entry);
        if self.rows.len() >= self.together { self.flush() } else { Ok(()) }
    }

    /// Write the buffered rows.
    pub fn flush(&mut self) -> Result<(), LedgerError> {
        if !self.rows.is_empty() {
            self.stream.write(&batch_of(&self.rows)?)?;
            self.rows.clear();
        }
        Ok(self.stream.flush()?)
    }

    /// Write the buffered rows and end the stream.
    pub fn finish(mut self) -> Result<(), LedgerError> {
        self.flush()?;
        Ok(self.stream.finish()?)
    }
}

/// The columns, version 1 (`docs/formats/ledger.md`).
pub fn schema() -> Schema {
    let word = || DataType::Dictionary(Box::new(DataType::UInt8), Box::new(DataType::Utf8));
    let fields = vec![
        Field::new("start_ns", DataType::UInt64, false),
        Field::new("duration_ns", DataType::UInt64, false),
        Field::new("rank", DataType::UInt32, false),
        Field::new("epoch", DataType::UInt64, false),
        Field::new("step", DataType::UInt64, false),
        Field::new("subject", word(), false),
        Field::new("subject_id", DataType::UInt64, true),
        Field::new("op", word(), false),
        Field::new("source", word(), false),
        Field::new("cause", word(), true),
        Field::new("bytes", DataType::UInt64, false),
        Field::new("samples", DataType::UInt32, false),
        Field::new("attempt", DataType::UInt32, false),
        Field::new("outcome", word(), false),
    ];
    Schema::new(fields).with_metadata([("foresee.ledger".to_owned(), "1".to_owned())])
}

fn batch_of(rows: &[Entry]) -> Result<RecordBatch, ArrowError> {
    let columns = vec![
        long(rows, |row| Some(row.start.get())),
        long(rows, |row| Some(row.duration.get())),
        short(rows, |row| row.rank.0),
        long(rows, |row| Some(row.epoch.0)),
        long(rows, |row| Some(row.step.0)),
        word(rows, |row| Some(row.subject.word())),
        long(rows, |row| row.subject.id()),
        word(rows, |row| Some(row.op.word())),
        word(rows, |row| Some(row.source.word())),
        word(rows, |row| row.cause.map(crate::Cause::word)),
        long(rows, |row| Some(row.bytes.get())),
        short(rows, |row| row.samples),
        short(rows, |row| row.attempt),
        word(rows, |row| Some(row.outcome.word())),
    ];
    RecordBatch::try_new(Arc::new(schema()), columns)
}

fn long(rows: &[Entry], field: impl Fn(&Entry) -> Option<u64>) -> ArrayRef {
    let mut column = UInt64Builder::with_capacity(rows.len());
    column.extend(rows.iter().map(field));
    Arc::new(column.finish())
}

fn short(rows: &[Entry], field: impl Fn(&Entry) -> u32) -> ArrayRef {
    let mut column = UInt32Builder::with_capacity(rows.len());
    column.extend(rows.iter().map(|row| Some(field(row))));
    Arc::new(column.finish())
}

fn word(rows: &[Entry], field: impl Fn(&Entry) -> Option<&'static str>) -> ArrayRef {
    let mut column = StringDictionaryBuilder::<UInt8Type>::new();
    column.extend(rows.iter().map(field));
    Arc::new(column.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Cause, Op, Subject};
    use arrow_array::cast::AsArray;
    use arrow_array::types::UInt64Type;
    use arrow_ipc::reader::StreamReader;
    use foresee_units::{Bytes, Epoch, Nanos, Rank, ReadOutcome, SampleId, Source, Step};

    fn wait(step: u64) -> Entry {
        Entry {
            start: Nanos::new(step * 10),
            duration: Nanos::new(7),
            rank: Rank(3),
            epoch: Epoch(1),
            step: Step(step),
            subject: Subject::Sample(SampleId(1 << 40)),
            op: Op::Wait,
            source: Source::Origin,
            cause: Some(Cause::OriginQueue),
            bytes: Bytes::ZERO,
            samples: 0,
            attempt: 1,
            outcome: ReadOutcome::Ok,
        }
    }

    #[test]
    fn written_rows_are_read_back() {
        let mut bytes = Vec::new();
        let mut writer = LedgerWriter::new(&mut bytes).expect("a Vec takes everything");
        for step in 0..5000 {
            writer.push(wait(step)).expect("a Vec takes everything");
        }
        writer.finish().expect("a Vec takes everything");
        let batches: Vec<_> = StreamReader::try_new(bytes.as_slice(), None)
            .expect("a stream")
            .collect::<Result<_, _>>()
            .expect("whole batches");
        assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 5000);
        let last = batches.last().expect("two batches");
        let steps = last.column_by_name("step").expect("a column").as_primitive::<UInt64Type>();
        assert_eq!(steps.value(steps.len() - 1), 4999);
        assert_eq!(last.schema().metadata().get("foresee.ledger").map(AsRef::as_ref), Some("1"));
    }

    #[test]
    fn a_truncated_stream_still_has_its_complete_batches() {
        let mut bytes = Vec::new();
        let mut writer = LedgerWriter::new(&mut bytes).expect("a Vec takes everything");
        for step in 0..(2 * ROWS_PER_BATCH as u64) {
            writer.push(wait(step)).expect("a Vec takes everything");
        }
        drop(writer);
        bytes.truncate(bytes.len() - 100);
        let whole =
            StreamReader::try_new(bytes.as_slice(), None).expect("a stream").map_while(Result::ok).count();
        assert_eq!(whole, 1);
    }
}
