// SPDX-License-Identifier: Apache-2.0
//! The ledger as a table: Arrow IPC in stream form, with one column per field of [`Entry`].
//!
//! The stream form has no footer, unlike the file form: after a kill -9 all batches except the last are still
//! readable. Names are dictionary-encoded, so a row takes about 60 bytes.

use std::io::Write;
use std::sync::Arc;

use arrow_array::types::UInt8Type;
use arrow_array::{ArrayRef, DictionaryArray, RecordBatch, UInt32Array, UInt64Array};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, Field, Schema};

use crate::entry::Entry;
use crate::node_cache::NodeCache;

/// Maximum number of rows per write.
const BATCH_ROWS_MAX: usize = 4096;

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
    schema: Arc<Schema>,
    rows: Vec<Entry>,
    rows_per_batch: usize,
}

impl<W: Write> std::fmt::Debug for LedgerWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LedgerWriter").field("rows", &self.rows.len()).finish_non_exhaustive()
    }
}

impl<W: Write> LedgerWriter<W> {
    /// Begin a stream on `writer`, which gets large writes only; `cache` is the cache of the node through which the rank
    /// reads, if it has one.
    pub fn new(writer: W, cache: Option<&NodeCache>) -> Result<Self, LedgerError> {
        Self::with_rows(writer, cache, BATCH_ROWS_MAX)
    }

    /// The same with `rows` rows per write, 1 or more, for callers with many writers.
    pub fn with_rows(writer: W, cache: Option<&NodeCache>, rows: usize) -> Result<Self, LedgerError> {
        let schema = Arc::new(schema(cache));
        let stream = StreamWriter::try_new(writer, &schema)?;
        let rows_per_batch = rows.clamp(1, BATCH_ROWS_MAX);
        Ok(Self { stream, schema, rows: Vec::with_capacity(rows_per_batch), rows_per_batch })
    }

    /// Add one row; writes when enough rows are buffered.
    pub fn push(&mut self, entry: Entry) -> Result<(), LedgerError> {
        self.rows.push(entry);
        if self.rows.len() >= self.rows_per_batch { self.flush() } else { Ok(()) }
    }

    /// Write the buffered rows.
    pub fn flush(&mut self) -> Result<(), LedgerError> {
        if !self.rows.is_empty() {
            self.stream.write(&to_batch(&self.schema, &self.rows)?)?;
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

/// The columns, version 1 (`docs/formats/ledger.md`), and the header of a rank that reads through `cache`.
pub fn schema(cache: Option<&NodeCache>) -> Schema {
    let fields = columns(&[])
        .map(|(name, is_nullable, column)| Field::new(name, column.data_type().clone(), is_nullable));
    let version = [("foresee.ledger".to_owned(), "1".to_owned())];
    let mut schema = Schema::new(fields.to_vec()).with_metadata(version);
    schema.metadata.extend(cache.into_iter().flat_map(NodeCache::metadata));
    schema
}

fn to_batch(schema: &Arc<Schema>, rows: &[Entry]) -> Result<RecordBatch, ArrowError> {
    let columns = columns(rows).map(|(_, _, column)| column);
    RecordBatch::try_new(Arc::clone(schema), columns.to_vec())
}

/// The name of each column, whether it is nullable, and its values.
fn columns(rows: &[Entry]) -> [(&'static str, bool, ArrayRef); 14] {
    [
        ("start_ns", false, u64_column(rows, |row| Some(row.start.get()))),
        ("duration_ns", false, u64_column(rows, |row| Some(row.duration.get()))),
        ("rank", false, u32_column(rows, |row| row.rank.0)),
        ("epoch", false, u64_column(rows, |row| Some(row.epoch.0))),
        ("step", false, u64_column(rows, |row| Some(row.step.0))),
        ("subject", false, name_column(rows, |row| Some(row.subject.name()))),
        ("subject_id", true, u64_column(rows, |row| row.subject.id())),
        ("op", false, name_column(rows, |row| Some(row.op.name()))),
        ("source", false, name_column(rows, |row| Some(row.source.name()))),
        ("cause", true, name_column(rows, |row| row.cause.map(crate::Cause::name))),
        ("bytes", false, u64_column(rows, |row| Some(row.bytes.get()))),
        ("samples", false, u32_column(rows, |row| row.samples)),
        ("attempt", false, u32_column(rows, |row| row.attempt)),
        ("outcome", false, name_column(rows, |row| Some(row.outcome.name()))),
    ]
}

fn u64_column(rows: &[Entry], field: impl Fn(&Entry) -> Option<u64>) -> ArrayRef {
    Arc::new(rows.iter().map(field).collect::<UInt64Array>())
}

fn u32_column(rows: &[Entry], field: impl Fn(&Entry) -> u32) -> ArrayRef {
    Arc::new(UInt32Array::from_iter_values(rows.iter().map(field)))
}

fn name_column(rows: &[Entry], field: impl Fn(&Entry) -> Option<&'static str>) -> ArrayRef {
    Arc::new(rows.iter().map(field).collect::<DictionaryArray<UInt8Type>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Cause, Op, Subject};
    use crate::node_cache::NodeCacheRole;
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
        let mut writer = LedgerWriter::new(&mut bytes, None).expect("a Vec takes everything");
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
    fn the_header_names_the_cache_of_the_node() {
        let cache = NodeCache {
            id: "1f".to_owned(),
            role: NodeCacheRole::RankConsumer,
            ram: Bytes::new(2_000),
            disk: Bytes::ZERO,
        };
        let mut bytes = Vec::new();
        let mut writer = LedgerWriter::new(&mut bytes, Some(&cache)).expect("a Vec takes everything");
        writer.push(wait(0)).expect("a Vec takes everything");
        writer.finish().expect("a Vec takes everything");
        let stream = StreamReader::try_new(bytes.as_slice(), None).expect("a stream");
        let header = stream.schema();
        let found = |key: &str| header.metadata().get(key).map(String::as_str);
        assert_eq!((found("foresee.ledger"), found("foresee.node.id")), (Some("1"), Some("1f")));
        assert_eq!(found("foresee.node.role"), Some("rank_consumer"));
        assert_eq!(found("foresee.node.ram_bytes"), Some("2000"));
        assert_eq!(found("foresee.node.disk_bytes"), Some("0"));
        assert_eq!(stream.map(|batch| batch.expect("a whole batch").num_rows()).sum::<usize>(), 1);
    }

    #[test]
    fn a_truncated_stream_still_has_its_complete_batches() {
        let mut bytes = Vec::new();
        let mut writer = LedgerWriter::new(&mut bytes, None).expect("a Vec takes everything");
        for step in 0..(2 * BATCH_ROWS_MAX as u64) {
            writer.push(wait(step)).expect("a Vec takes everything");
        }
        drop(writer);
        bytes.truncate(bytes.len() - 100);
        let whole =
            StreamReader::try_new(bytes.as_slice(), None).expect("a stream").map_while(Result::ok).count();
        assert_eq!(whole, 1);
    }
}
