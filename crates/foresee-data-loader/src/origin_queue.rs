// SPDX-License-Identifier: Apache-2.0
//! Settings of the fetch queue of an origin, before the first measurement.

use foresee_data_fetch::{CoalesceConfig, DispatchConfig};
use foresee_units::Bytes;

/// Maximum gap between joined ranges of one object: it costs less than a request, some 30 ms at 80 MB/s for a bucket; a
/// disk seeks faster.
const COALESCE_GAP: Bytes = Bytes::new(1 << 20);
const COALESCE_TARGET: Bytes = Bytes::new(8 << 20);
const COALESCE_PARTS: usize = 256;
/// Initial concurrency at a bucket. With a latency of tens of milliseconds and a thousand requests per second, it keeps
/// the bucket busy from the first round trip on.
const STORE_IN_FLIGHT_FIRST: u32 = 32;
/// Initial concurrency at a directory, of all queues of a node together; its latency is lower.
const DIRECTORY_IN_FLIGHT_FIRST: u32 = 16;
/// Maximum concurrency at a directory.
const DIRECTORY_IN_FLIGHT: u32 = 64;
/// Initial maximum of bytes in flight at a directory, of all queues of a node together, but at least two samples per
/// queue. Reads that share a disk end together, so the first batch waits for all of them.
const DIRECTORY_BYTES_FIRST: u64 = 32 << 20;

/// Properties of an origin and its data that determine the settings of a fetch queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OriginQueueInputs {
    /// Whether the origin is a directory, and not a bucket or a web server.
    pub(crate) is_directory: bool,
    /// Threads that read a directory, at least 1; `None` for the default.
    pub(crate) threads: Option<usize>,
    /// Mean size of a sample.
    pub(crate) mean_size: Bytes,
    /// Number of samples.
    pub(crate) samples: u64,
    /// Number of objects that contain them; ranges of one object are joined if there are fewer objects than samples.
    pub(crate) objects: u64,
    /// Queues of this node for the same origin.
    pub(crate) local_queues: u32,
    /// Whether there is any other queue of the job for the same origin, on this node or another.
    pub(crate) is_shared: bool,
}

/// Return the settings of the fetch queue of an origin.
pub(crate) fn origin_queue_config(inputs: &OriginQueueInputs) -> DispatchConfig {
    let mut config = DispatchConfig { shared: inputs.is_shared, ..DispatchConfig::adaptive() };
    if inputs.is_directory {
        // A second read of the same file would queue after the first on the same disk.
        config.hedge_share = 0.0;
        let threads = inputs.threads.and_then(|threads| u32::try_from(threads).ok());
        config.limit.max = threads.unwrap_or(DIRECTORY_IN_FLIGHT);
    }
    config.limit.start = first_in_flight(inputs).min(config.limit.max);
    if inputs.objects < inputs.samples {
        config.coalesce =
            Some(CoalesceConfig { gap: COALESCE_GAP, target: COALESCE_TARGET, max_parts: COALESCE_PARTS });
    }
    config
}

/// Initial concurrency of one queue.
fn first_in_flight(inputs: &OriginQueueInputs) -> u32 {
    if !inputs.is_directory {
        return STORE_IN_FLIGHT_FIRST;
    }
    let fitting = DIRECTORY_BYTES_FIRST / inputs.mean_size.get().max(1);
    let fitting = u32::try_from(fitting).unwrap_or(u32::MAX);
    (DIRECTORY_IN_FLIGHT_FIRST.min(fitting) / inputs.local_queues.max(1)).max(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(is_directory: bool, mean_size: u64, local_queues: u32) -> OriginQueueInputs {
        OriginQueueInputs {
            is_directory,
            threads: None,
            mean_size: Bytes::new(mean_size),
            samples: 1000,
            objects: 1000,
            local_queues,
            is_shared: local_queues > 1,
        }
    }

    fn start(is_directory: bool, mean_size: u64, local_queues: u32) -> u32 {
        origin_queue_config(&inputs(is_directory, mean_size, local_queues)).limit.start
    }

    #[test]
    fn a_directory_of_large_samples_begins_with_few_reads_in_flight() {
        let of = |mean| start(true, mean, 1);
        assert_eq!([0, 1, 110_000, 2 << 20].map(of), [16; 4]);
        assert_eq!([4 << 20, 12 << 20, 1 << 40].map(of), [8, 2, 2]);
    }

    #[test]
    fn queues_of_a_node_together_begin_with_the_concurrency_of_one() {
        let of = |directory, queues| start(directory, 110_000, queues);
        assert_eq!([1, 2, 4, 8, 100].map(|queues| of(true, queues)), [16, 8, 4, 2, 2]);
        assert_eq!([1, 8].map(|queues| of(false, queues)), [32; 2]);
        assert_eq!(start(true, 4 << 20, 2), 4);
    }

    #[test]
    fn the_threads_of_a_directory_bound_its_concurrency_and_it_is_never_hedged() {
        let config = origin_queue_config(&OriginQueueInputs { threads: Some(3), ..inputs(true, 1000, 1) });
        assert_eq!((config.limit.start, config.limit.max, config.hedge_share), (3, 3, 0.0));
        let config = origin_queue_config(&OriginQueueInputs { threads: Some(3), ..inputs(false, 1000, 1) });
        assert_eq!((config.limit.start, config.limit.max), (32, 256));
        assert!(config.hedge_share > 0.0);
    }

    #[test]
    fn only_ranges_of_objects_with_several_samples_are_joined() {
        let of = |objects| origin_queue_config(&OriginQueueInputs { objects, ..inputs(false, 1000, 1) });
        assert_eq!(of(1000).coalesce, None);
        assert_eq!(of(999).coalesce.map(|config| config.max_parts), Some(COALESCE_PARTS));
    }
}
