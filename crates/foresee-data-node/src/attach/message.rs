// SPDX-License-Identifier: Apache-2.0
//! Messages over the socket between a consumer and the host of a node's cache.
//!
//! They contain what a host needs to open the origin of a data set. Storage options and URIs may contain credentials,
//! so `Debug` shows the names of the options, and the URI without user and query.

use std::collections::BTreeMap;
use std::fmt;

use foresee_units::Bytes;
use serde::{Deserialize, Serialize};

use super::listing::{ListingReply, ListingRequest};
use super::sample_cache::{SampleCacheReply, SampleCacheRequest};
use super::status::NodeStatus;

/// A message of a peer. The first one is [`Hello`], `Status`, [`ListingRequest::Find`] or [`SampleCacheRequest::Open`], and no
/// later one is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum NodeRequest {
    /// See [`Hello`].
    Hello(Hello),
    /// See [`DataSetDescription`]. A descriptor of the index file may come with it. Answered by
    /// [`NodeReply::DataSetOpened`], [`NodeReply::IndexNeeded`] or [`NodeReply::Refusal`], after any number of
    /// [`NodeReply::Opening`].
    OpenDataSet(DataSetDescription),
    /// The consumer leaves, and sends nothing more.
    Detach,
    /// The only message of a tool, which does not attach. Answered by [`NodeReply::Status`] or [`NodeReply::Refusal`].
    Status,
    /// A message of a rank that shares a listing, which does not attach. See [`ListingRequest`].
    Listing(ListingRequest),
    /// A message of a worker process that shares a cache of samples, which does not attach. See [`SampleCacheRequest`].
    SampleCache(SampleCacheRequest),
}

/// A message of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum NodeReply {
    /// See [`Refusal`].
    Refusal(Refusal),
    /// See [`Welcome`]. Two descriptors come with it: of the slab, then of the control memory.
    Welcome(Welcome),
    /// The host still opens the data set. It is repeated, so that the consumer knows that the host is alive.
    Opening,
    /// The data set is open. The descriptor of the table of its locations comes with it.
    DataSetOpened {
        /// Its number in requests of this consumer.
        data_set: u32,
    },
    /// The host has no index with the fingerprint of the last [`NodeRequest::OpenDataSet`], which the consumer sends
    /// again with the descriptor of its index file.
    IndexNeeded,
    /// See [`NodeStatus`].
    Status(NodeStatus),
    /// See [`ListingReply`]. The descriptor of the index comes with [`ListingReply::Built`].
    Listing(ListingReply),
    /// See [`SampleCacheReply`]. Two descriptors come with [`SampleCacheReply::Opened`].
    SampleCache(SampleCacheReply),
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
    /// Identity of its loader within the job: the loaders of all ranks have equal ones.
    pub loader: [u8; 16],
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
    /// Fingerprint of the index, by which the host finds it among those it has.
    pub fingerprint: [u8; 16],
    /// Number of entries in the index. A sample of requests and announcements is an entry, numbered from 0.
    pub samples: u64,
    /// Whether a rank of the consumer's job has just listed the origin.
    pub is_listed: bool,
}

impl DataSetDescription {
    /// The URI without user, password and query, for logs and [`NodeStatus`].
    pub fn public_uri(&self) -> String {
        redact(&self.uri)
    }
}

impl fmt::Debug for DataSetDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataSetDescription")
            .field("uri", &self.public_uri())
            .field("storage_options", &self.storage_options)
            .field("fingerprint", &self.fingerprint)
            .field("samples", &self.samples)
            .field("is_listed", &self.is_listed)
            .finish()
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
            fingerprint: [1; 16],
            samples: 10,
            is_listed: false,
        };
        let message = format!("{:?}", NodeRequest::OpenDataSet(description));
        assert!(!message.contains("hush") && !message.contains("somewhere"), "{message}");
        for part in ["https://host:9000/a/b\"", "region", "secret_access_key"] {
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
