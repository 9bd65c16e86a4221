// SPDX-License-Identifier: Apache-2.0
//! Opens the data sets of consumers one after another, on a thread of its own: a slow origin or the recovery of a large
//! disk cache takes time, in which the reception serves all consumers.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use foresee_data_index::Index;
use foresee_data_node::{DataSetDescription, LocationTable, map_index};

use super::data_sets::{DataSetOpener, Opening};
use super::inbox::{HostEvent, Inbox};
use super::log::HostLog;
use super::reception::ReceptionHandle;

/// A consumer's request to open a data set.
#[derive(Debug)]
pub(super) struct OpenRequest {
    pub(super) consumer: u32,
    pub(super) description: DataSetDescription,
    /// The file of the index, if the host has asked for it.
    pub(super) index: Option<OwnedFd>,
}

/// The answer to such a request.
#[derive(Debug)]
pub(super) enum OpenReply {
    /// The data set is open under this number.
    Opened(u32, Arc<LocationTable>),
    IndexNeeded,
    /// It cannot be opened, with the reason.
    Refused(String),
}

/// The state of the thread. It ends when the reception has dropped its end of `requests`.
#[derive(Debug)]
pub(super) struct OpenerThread {
    pub(super) opener: DataSetOpener,
    pub(super) requests: Receiver<OpenRequest>,
    pub(super) reception: Arc<ReceptionHandle>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) log: HostLog,
}

impl OpenerThread {
    pub(super) fn run(mut self) {
        while let Ok(OpenRequest { consumer, description, index }) = self.requests.recv() {
            if self.reception.has_ended() {
                return;
            }
            let opened = catch_unwind(AssertUnwindSafe(|| self.open(&description, index)));
            let reply =
                match opened.unwrap_or_else(|_| Err("opening it panicked; report this defect".to_owned())) {
                    Ok(Some(data_set)) => {
                        OpenReply::Opened(data_set, Arc::clone(self.opener.locations(data_set)))
                    }
                    Ok(None) => OpenReply::IndexNeeded,
                    Err(text) => {
                        self.log.add("data set refused", Some(consumer), vec![("why", text.clone())]);
                        OpenReply::Refused(text)
                    }
                };
            self.reception.reply(consumer, reply);
        }
    }

    /// Open a data set, or find it; `None` without its index. The driver learns of it before the consumer does.
    fn open(
        &mut self,
        description: &DataSetDescription,
        index: Option<OwnedFd>,
    ) -> Result<Option<u32>, String> {
        match (self.opener.find(description).map_err(|error| error.to_string())?, index) {
            (Opening::Known(data_set), _) => Ok(Some(data_set)),
            (Opening::Renewed(data_set, origin), _) => {
                self.inbox.push(HostEvent::DataSetRenewed { data_set, origin });
                Ok(Some(data_set))
            }
            (Opening::IndexNeeded, None) => Ok(None),
            (Opening::IndexNeeded, Some(file)) => {
                let bytes = map_index(file).map_err(|error| error.to_string())?;
                let index = Index::open_mapped(Arc::new(bytes)).map_err(|error| error.to_string())?;
                let locations = LocationTable::create(index.len()).map_err(|error| error.to_string())?;
                let opened = self.opener.open(description, index, Arc::new(locations));
                let (number, data_set) = opened.map_err(|error| error.to_string())?;
                let fields = vec![
                    ("uri", description.public_uri()),
                    ("samples", data_set.data.index().samples().to_string()),
                    ("cached", data_set.held.len().to_string()),
                ];
                self.log.add("data set opened", None, fields);
                self.inbox.push(HostEvent::DataSetOpened { data_set: Box::new(data_set) });
                Ok(Some(number))
            }
        }
    }
}
