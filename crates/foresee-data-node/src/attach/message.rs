// SPDX-License-Identifier: Apache-2.0
//! Messages over the socket between a consumer and the host of a node's cache.
//!
//! They say what a host needs to open the origin of a data set and to know the order of a rank. Storage options and
//! URIs may contain credentials, so `Debug` shows the names of the options, and the URI without user and query.

use std::collections::BTreeMap;
use std::fmt;

use foresee_units::Bytes;
use serde::{Deserialize, Serialize};

/// A message of a consumer. The first one is [`Hello`], and no later one is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum NodeRequest {
    /// See [`Hello`].
    Hello(Hello),
    /// See [`DataSetDescription`]. Answered by [`NodeReply::DataSetOpened`] or [`NodeReply::Refusal`].
    OpenDataSet(DataSetDescription),
    /// See [`OrderDescription`]. It replaces an earlier one of the same data set. Answered by
    /// [`NodeReply::OrderSet`] or [`NodeReply::Refusal`].
    SetOrder(OrderDescription),
    /// The consumer leaves, and sends nothing more.
    Detach,
}

/// A message of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum NodeReply {
    /// See [`Refusal`].
    Refusal(Refusal),
    /// See [`Welcome`]. Two descriptors come with it: of the slab, then of the control memory.
    Welcome(Welcome),
    /// The data set is open.
    DataSetOpened {
        /// Its number in requests of this consumer.
        data_set: u32,
    },
    /// The order is used in plans from now on.
    OrderSet {
        /// The number of its data set.
        data_set: u32,
    },
}

/// The identity and wishes of a consumer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the Foresee package, for logs.
    pub foresee: String,
    /// The consumer's process number in its own pid namespace, for logs.
    pub pid: u32,
    /// Name of its job, for logs and metrics.
    pub job: String,
    /// Its rank.
    pub rank: u32,
    /// Its rank among those of this node.
    pub local_rank: u32,
    /// Wanted size of the request ring, in bytes: a power of two within the bounds of rings.
    pub request_ring_bytes: u32,
    /// Wanted size of the answer ring, in bytes, within the same bounds.
    pub answer_ring_bytes: u32,
}

/// The host's acceptance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Version of the host's Foresee package, for logs.
    pub foresee: String,
    /// The number of this consumer, unique in the life of the host.
    pub consumer: u32,
    /// Slots of the slab.
    pub slots: u64,
    /// Bytes of data in the slab.
    pub slab_bytes: u64,
    /// Memory of the node's cache, in bytes; it replaces the consumer's `ram=`.
    pub ram_bytes: u64,
    /// Disk space of the node's cache, in bytes, 0 for none; it replaces the consumer's `disk_size=`.
    pub disk_bytes: u64,
    /// Size of the request ring, in bytes.
    pub request_ring_bytes: u32,
    /// Size of the answer ring, in bytes.
    pub answer_ring_bytes: u32,
}

impl Welcome {
    /// Bytes of data in the slab.
    pub(crate) fn slab(&self) -> Bytes {
        Bytes::new(self.slab_bytes)
    }
}

/// The host's refusal of the last message, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Its kind, for programs.
    pub code: RefusalCode,
    /// What happened and what to do, for users. It contains no storage option.
    pub text: String,
}

/// Kinds of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RefusalCode {
    /// The consumer has another version of the protocol.
    Version,
    /// The consumer runs as a user who is not allowed.
    User,
    /// The host has as many consumers as it accepts.
    TooManyConsumers,
    /// The host is closing.
    Closing,
    /// The message was invalid, or came in the wrong state.
    Malformed,
    /// The data set cannot be opened.
    DataSet,
    /// The order is unknown or does not fit the data set.
    Order,
    /// The host lacks memory or descriptors.
    Resources,
}

/// A data set that the host opens for a consumer.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataSetDescription {
    /// The origin. It may contain credentials.
    pub uri: String,
    /// Settings of the origin. They may contain credentials.
    pub storage_options: StorageOptions,
    /// Where the host finds the index.
    pub index: DataSetIndex,
    /// Fingerprint of the index, so that both ends mean the same bytes.
    pub fingerprint: [u8; 16],
    /// Number of samples in the index.
    pub samples: u64,
}

impl fmt::Debug for DataSetDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataSetDescription")
            .field("uri", &redact(&self.uri))
            .field("storage_options", &self.storage_options)
            .field("index", &self.index)
            .field("fingerprint", &self.fingerprint)
            .field("samples", &self.samples)
            .finish()
    }
}

/// The source of a data set's index.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DataSetIndex {
    /// A file, as the bytes of its absolute path.
    Path(Vec<u8>),
    /// A listing of the origin with this layout, whose names and sizes have this digest.
    Listing {
        /// Name of the layout.
        layout: String,
        /// Digest of the listing.
        digest: [u8; 16],
    },
    /// The host has an index of this fingerprint from another consumer, or refuses.
    Known,
}

impl fmt::Debug for DataSetIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => f.debug_tuple("Path").field(&String::from_utf8_lossy(path)).finish(),
            Self::Listing { layout, digest } => {
                f.debug_struct("Listing").field("layout", layout).field("digest", digest).finish()
            }
            Self::Known => f.write_str("Known"),
        }
    }
}

/// Settings of an origin by name. `Debug` shows the names only.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageOptions(pub BTreeMap<String, String>);

impl fmt::Debug for StorageOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The order in which a rank reads a data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderDescription {
    /// The number of the data set.
    pub data_set: u32,
    /// Name of the order, as `docs/formats/order.md` lists them.
    pub name: String,
    /// Seed of the run.
    pub seed: u64,
    /// Samples of the order, `n` in the list of orders.
    pub samples: u64,
    /// Whether the order is shuffled, for orders with that field.
    pub is_shuffled: bool,
    /// Whether an incomplete last part of the epoch is dropped.
    pub drop_last: bool,
    /// Whether the last batches are completed, for orders with that field.
    pub even_batches: bool,
    /// Number of ranks, 1 or more.
    pub world_size: u32,
    /// The rank, below `world_size`.
    pub rank: u32,
    /// Samples in a batch, 1 or more.
    pub batch_size: u32,
    /// The epoch of the next batch, from 0.
    pub epoch: u64,
    /// Samples of all ranks of that epoch before the next batch.
    pub position: u64,
    /// Epochs of the run after which nothing is read, if the consumer knows it.
    pub epochs: Option<u64>,
}

/// A URI without user, password and query.
fn redact(uri: &str) -> String {
    let bare = uri.split(['?', '#']).next().unwrap_or_default();
    match bare.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}{path}")
        }
        None => bare.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_shown_without_credentials() {
        let options = [("region", "somewhere"), ("secret_access_key", "hush")];
        let description = DataSetDescription {
            uri: "https://user:hush@host:9000/a/b?X-Amz-Signature=hush#hush".into(),
            storage_options: StorageOptions(options.map(|(name, value)| (name.into(), value.into())).into()),
            index: DataSetIndex::Path(b"/data/x.fidx".to_vec()),
            fingerprint: [1; 16],
            samples: 10,
        };
        let message = format!("{:?}", NodeRequest::OpenDataSet(description));
        assert!(!message.contains("hush") && !message.contains("somewhere"), "{message}");
        for part in ["https://host:9000/a/b\"", "region", "secret_access_key", "/data/x.fidx"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_uri_keeps_its_path() {
        assert_eq!(redact("s3://bucket/train/a@b"), "s3://bucket/train/a@b");
        assert_eq!(redact("/data/train"), "/data/train");
        assert_eq!(redact("s3://key:secret@bucket"), "s3://bucket");
        assert_eq!(redact(""), "");
    }
}
