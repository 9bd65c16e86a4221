// SPDX-License-Identifier: Apache-2.0
//! Data sets with and without their index, the status, and other messages after the handshake.

use std::io::Write as _;
use std::os::fd::AsFd as _;

use foresee_units::SampleId;

use super::*;
use crate::memory::{LocationTable, index_file, map_index};

fn description() -> DataSetDescription {
    DataSetDescription {
        uri: "s3://bucket/train".into(),
        storage_options: StorageOptions([("region".into(), "x".into())].into()),
        fingerprint: [1; 16],
        samples: 1_281_167,
        is_listed: true,
    }
}

/// Receive the next message, which is there or comes soon.
fn receive(attachment: &Attachment) -> ReceivedRequest {
    let mut received = None;
    foresee_testkit::wait_until("a message comes", || {
        received = attachment.receive().unwrap();
        received.is_some()
    });
    received.unwrap()
}

/// Open a data set, for which the host gives these answers. Returns the consumer's outcome and the last descriptor.
fn open(
    rig: &mut Rig,
    index: impl FnOnce() -> Result<OwnedFd, NodeError> + Send,
    answers: &[NodeReply],
) -> (Result<u32, NodeError>, Option<OwnedFd>) {
    let (attachment, consumer) = rig.attach(1);
    assert!(attachment.receive().unwrap().is_none());
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| consumer.open_data_set(description(), index, WATCHDOG, || true));
        let mut last = None;
        for answer in answers {
            let ReceivedRequest { message, index } = receive(&attachment);
            assert_eq!(message, NodeRequest::OpenDataSet(description()));
            last = index;
            answer_with(&attachment, answer);
        }
        (opening.join().unwrap().map(|(data_set, _)| data_set), last)
    })
}

/// Send an answer about the data set, with the locations of its samples if it is open.
fn answer_with(attachment: &Attachment, answer: &NodeReply) {
    match answer {
        NodeReply::DataSetOpened { data_set } => {
            let locations = LocationTable::create(description().samples).unwrap();
            attachment.send_opened(*data_set, &locations).unwrap();
        }
        other => attachment.send(other).unwrap(),
    }
}

#[test]
fn a_host_that_has_the_index_opens_the_data_set_without_it() {
    let mut rig = Rig::new();
    let unused = || panic!("the index is not needed");
    let (opened, index) = open(&mut rig, unused, &[NodeReply::DataSetOpened { data_set: 4 }]);
    assert_eq!((opened.unwrap(), index.is_none()), (4, true));
}

#[test]
fn a_host_that_lacks_the_index_gets_its_bytes() {
    let mut rig = Rig::new();
    let answers = [NodeReply::IndexNeeded, NodeReply::DataSetOpened { data_set: 4 }];
    let (opened, index) = open(&mut rig, || index_file(b"the index"), &answers);
    assert_eq!(opened.unwrap(), 4);
    assert_eq!(map_index(index.unwrap()).unwrap().as_ref(), b"the index");
    let regular = || {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"a file").unwrap();
        Ok(file.into())
    };
    let (opened, index) = open(&mut rig, regular, &answers);
    assert_eq!(opened.unwrap(), 4);
    assert_eq!(map_index(index.unwrap()).unwrap().as_ref(), b"a file");
}

#[test]
fn reports_of_a_host_that_opens_a_data_set_are_no_answers() {
    let mut rig = Rig::new();
    let (attachment, consumer) = rig.attach(1);
    let answers = [NodeReply::Opening, NodeReply::Opening, NodeReply::DataSetOpened { data_set: 4 }];
    for answer in &answers {
        answer_with(&attachment, answer);
    }
    let opened = consumer.open_data_set(description(), || index_file(b"x"), WATCHDOG, || true);
    assert_eq!(opened.unwrap().0, 4);
    attachment.send(&answers[0]).unwrap();
    let given_up = consumer.open_data_set(description(), || index_file(b"x"), WATCHDOG, || false);
    assert!(matches!(given_up, Err(NodeError::Late { what: "open the data set" })));
}

#[test]
fn a_data_set_that_is_refused_has_a_reason() {
    let mut rig = Rig::new();
    let refusal = Refusal { code: RefusalCode::DataSet, text: "no such bucket".into() };
    let answers = [NodeReply::IndexNeeded, NodeReply::Refusal(refusal)];
    let (opened, _) = open(&mut rig, || index_file(b"x"), &answers);
    let refused = opened.unwrap_err();
    assert!(
        matches!(&refused, NodeError::Refused { code: RefusalCode::DataSet, text } if text == "no such bucket")
    );
    let (opened, _) = open(&mut rig, || index_file(b""), &answers[..1]);
    assert!(matches!(opened, Err(NodeError::Index(_))), "the consumer has no index");
}

#[test]
fn the_locations_of_a_data_set_come_with_the_answer_that_it_is_open() {
    let mut rig = Rig::new();
    let (attachment, consumer) = rig.attach(1);
    let open = || consumer.open_data_set(description(), || index_file(b"x"), WATCHDOG, || true);
    let table = LocationTable::create(description().samples).unwrap();
    attachment.send_opened(4, &table).unwrap();
    let (_, locations) = open().unwrap();
    let published = table.publish(SampleId(1), 128).unwrap();
    assert_eq!(locations.get(SampleId(1)).unwrap(), published);
    attachment.send(&NodeReply::DataSetOpened { data_set: 4 }).unwrap();
    assert!(matches!(open(), Err(NodeError::Malformed { .. })), "it has no locations");
    attachment.send_opened(4, &LocationTable::create(1 << 20).unwrap()).unwrap();
    assert!(matches!(open(), Err(NodeError::NotSealed { what: "table of locations", .. })));
}

#[test]
fn an_answer_that_is_none_to_a_data_set_is_malformed() {
    let mut rig = Rig::new();
    let twice = [NodeReply::IndexNeeded, NodeReply::IndexNeeded];
    let (opened, _) = open(&mut rig, || index_file(b"x"), &twice);
    assert!(matches!(opened, Err(NodeError::Malformed { .. })));
    let status = [NodeReply::Status(NodeStatus::default())];
    let (opened, _) = open(&mut rig, || index_file(b"x"), &status);
    assert!(matches!(opened, Err(NodeError::Malformed { .. })));
}

#[test]
fn descriptors_come_only_with_a_data_set_and_one_at_a_time() {
    let mut rig = Rig::new();
    let open = frame::encode(&NodeRequest::OpenDataSet(description()), MESSAGE_BYTES_MAX).unwrap();
    let detach = frame::encode(&NodeRequest::Detach, MESSAGE_BYTES_MAX).unwrap();
    let file = index_file(b"x").unwrap();
    for (message, count) in [(&open, 2), (&detach, 1)] {
        let peer = raw_connection(&rig.address);
        let greeting = frame::encode(&NodeRequest::Hello(hello()), HELLO_BYTES_MAX).unwrap();
        peer.send(&greeting, &[], WATCHDOG).unwrap();
        let attachment = rig.accept(2);
        peer.send(message, &vec![file.as_fd(); count], WATCHDOG).unwrap();
        assert!(matches!(attachment.receive(), Err(NodeError::Malformed { .. })));
    }
}

#[test]
fn a_message_arrives_as_it_was_sent_and_a_wait_for_none_ends() {
    let mut rig = Rig::new();
    let (attachment, consumer) = rig.attach(1);
    assert!(attachment.receive().unwrap().is_none());
    consumer.check_fork().unwrap();
    consumer.send(&NodeRequest::Detach, WATCHDOG).unwrap();
    assert_eq!(receive(&attachment).message, NodeRequest::Detach);
    attachment.send(&NodeReply::IndexNeeded).unwrap();
    assert_eq!(consumer.receive(WATCHDOG).unwrap(), NodeReply::IndexNeeded);
    let nothing = consumer.receive(Duration::from_millis(20)).unwrap_err();
    assert!(matches!(nothing, NodeError::Late { .. }));
}

#[test]
fn a_message_above_the_bound_is_not_sent() {
    let mut rig = Rig::new();
    let (_attachment, consumer) = rig.attach(1);
    let options = [("token".to_owned(), "x".repeat(MESSAGE_BYTES_MAX))];
    let description = DataSetDescription {
        uri: "hush".into(),
        storage_options: StorageOptions(options.into()),
        ..description()
    };
    let refused = consumer.open_data_set(description, || index_file(b"x"), WATCHDOG, || true).unwrap_err();
    assert!(matches!(refused, NodeError::TooLong { max: MESSAGE_BYTES_MAX, .. }));
    assert!(!format!("{refused} {refused:?}").contains("hush"));
}

/// Query the status of a host that handles the request like this.
fn query(rig: &mut Rig, handle: impl FnOnce(StatusRequest)) -> Result<NodeStatus, NodeError> {
    let address = rig.address.clone();
    std::thread::scope(|scope| {
        let options = ConnectOptions { allow_uids: Vec::new(), timeout: WATCHDOG };
        let querying = scope.spawn(move || NodeStatus::query(&address, &options));
        match rig.listener.accept(WATCHDOG).unwrap() {
            Some(Incoming::Status(request)) => handle(request),
            other => panic!("{other:?}"),
        }
        querying.join().unwrap()
    })
}

#[test]
fn a_tool_gets_the_status_without_attaching() {
    let mut rig = Rig::new();
    let consumer = ConsumerStatus { number: 7, job: "training".into(), ..ConsumerStatus::default() };
    let status = NodeStatus { pid: 3, consumers: vec![consumer], ..NodeStatus::default() };
    let found = query(&mut rig, |request| {
        assert_eq!(request.credentials().pid, Some(std::process::id()));
        request.answer(status.clone()).unwrap();
    });
    assert_eq!(found.unwrap(), status);
    let refused = query(&mut rig, |request| request.refuse(RefusalCode::Closing, "the host is closing"));
    assert!(matches!(refused, Err(NodeError::Refused { code: RefusalCode::Closing, .. })));
    assert!(matches!(query(&mut rig, drop), Err(NodeError::Ended)));
    rig.attach(1);
}
