//! Lists marked `notify`: a WRITE with immediate wakes their followers.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::common::{config, open_request, start};
use dta_collector::config::Config;
use dta_link::{Link, UdpConfig, UdpLink};
use dta_proto::batch::PacketBatch;
use dta_proto::control::{self, Purpose, TailRequest};
use dta_proto::layout::append;
use dta_proto::store::StoreKind;
use dta_proto::wire::frame::FrameRoute;
use dta_proto::wire::roce::{BthFields, Psn, RoceRepr, Transport};
use dta_rpc::Ask;
use dta_rpc::collector::RemoteCollector;

const LIST: u32 = 3;
const BATCHES: u32 = 20;

/// A translator of one list, as far as this test needs one.
struct Writer {
    link: UdpLink,
    route: FrameRoute,
    qpn: u32,
    events: control::Region,
}

impl Writer {
    async fn open(client: &mut RemoteCollector) -> Writer {
        let link =
            UdpLink::open(&UdpConfig::for_roce_frames((Ipv4Addr::new(127, 0, 0, 2), 0).into())).unwrap();
        let mut request = open_request("t", 50);
        request.translator.as_mut().unwrap().port = link.local_addr().port().into();
        let session = client.open_session(request).await.unwrap();
        let pair = session.queue_pairs.iter().find(|pair| pair.purpose() == Purpose::Write).unwrap();
        let to = session.collector.clone().unwrap();
        let route = FrameRoute {
            src_port: link.local_addr().port(),
            dst_port: to.port as u16,
            ..FrameRoute::new(*link.local_addr().ip(), to.ip.parse().unwrap(), pair.qpn)
        };
        let named = |region: &&control::Region| region.store.as_ref().unwrap().name == "events";
        let events = session.regions.iter().find(named).unwrap().clone();
        Writer { link, route, qpn: pair.qpn, events }
    }

    /// Writes a batch of one entry, with immediate or without.
    fn write(&mut self, sequence: u32, immediate: Option<u32>) {
        let mut bytes = [0; 64];
        append::encode_batch(&mut bytes, LIST, sequence, 1, &[sequence as u8; 16]);
        let place = BthFields { dest_qp: self.qpn, psn: Psn::new(0xff_fff0 + sequence), ack_req: false };
        let va = self.events.address + append::batch_offset(LIST, sequence, 1 << 12, 64);
        let packet = RoceRepr::write(Transport::Uc, place, va, self.events.rkey, &bytes, immediate);
        let mut frame = [0; 300];
        let len = self.route.write_frame(&packet, &mut frame).unwrap();
        let mut batch = PacketBatch::new(1);
        batch.push(&frame[..len], 0).unwrap();
        assert_eq!(self.link.send(&mut batch).unwrap(), 1);
    }
}

fn with_notify(notify: bool) -> Config {
    let mut config = config();
    let events = config.stores.iter_mut().find(|store| store.name == "events").unwrap();
    let StoreKind::Append { notify: wanted, .. } = &mut events.kind else { panic!("an append store") };
    *wanted = notify;
    config
}

/// Follows the list while batches are written one by one, each after the reader has gone to sleep.
/// Returns how often it was woken.
async fn woken(config: &Config, immediate: Option<u32>) -> u64 {
    let (server, mut client) = start(config).await;
    let mut writer = Writer::open(&mut client).await;
    let request =
        TailRequest { store: "events".into(), list: LIST, from_sequence: 1, ..TailRequest::default() };
    let mut tail = client.tail_list(request).await.unwrap();
    for sequence in 1..=BATCHES {
        // Long enough for its sleep to have become the longest.
        tokio::time::sleep(Duration::from_millis(120)).await;
        writer.write(sequence, immediate);
        let message = tokio::time::timeout(Duration::from_secs(60), tail.next_message()).await;
        let message = message.expect("the batch is read").unwrap().unwrap();
        assert_eq!(
            (message.sequence, &message.entries[..]),
            (sequence.into(), &[vec![sequence as u8; 16]][..])
        );
    }
    let expected = if immediate.is_some() { u64::from(BATCHES) } else { 0 };
    let until = Instant::now() + Duration::from_secs(60);
    let woken = loop {
        let nodes = client.statistics().await.unwrap();
        let count = |node: &str, name: &str| {
            let node = nodes.iter().find(|n| n.node == node).unwrap();
            node.counters.iter().find(|c| c.name == name).map_or(0, |c| c.value)
        };
        // A write is counted a moment after it can be read.
        match count("nic/soft", "immediates") {
            counted if counted == expected => break count("collector", "tail.woken"),
            counted => assert!(counted < expected && Instant::now() < until, "{counted} immediates"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    server.shut_down().await.unwrap();
    woken
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_with_immediate_wakes_the_tail_of_a_list_marked_notify() {
    let woken = woken(&with_notify(true), Some(LIST)).await;
    // It also polls 20 times a second, and may find a batch first.
    assert!(woken > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_immediate_the_tail_looks_by_itself() {
    assert_eq!(woken(&with_notify(true), None).await, 0);
    assert_eq!(woken(&with_notify(false), None).await, 0);
}
