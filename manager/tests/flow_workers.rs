//! Several workers of a translator share its listeners for flow exports: all of an exporter comes to one of them, whatever others
//! send, and what is limited is limited for all together.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};

use common::int_bed::{Counted, IntBed, Setup, until_room};
use dta_proto::flow_query::{FlowQuestion, FlowSum};
use dta_proto::flow_record::Column;
use dta_rpc::Ask;
use dta_telemetry::flows::emit;

const EXPORTERS: u8 = 200;
const LISTS: u32 = 4;
/// Datagrams of an exporter before and after a reload, and records of each.
const DATAGRAMS: u32 = 5;
const RECORDS: u32 = 24;
/// Bytes of the first record.
const FIRST_BYTES: u64 = 100;
const PLACES: u64 = EXPORTERS as u64 + 10;

/// Addresses that end alike, as those of routers do.
fn exporter(number: u8) -> IpAddr {
    IpAddr::from([127, 1, number, 1])
}

/// Every tenth exporter loses its third datagram.
fn is_lost(exporter: u8, sequence: u32) -> bool {
    exporter % 10 == 7 && sequence == 2
}

/// A datagram of NetFlow v9 with a template and records whose bytes are their number.
fn datagram(sequence: u32, domain: u32) -> Vec<u8> {
    let flow = "10.0.0.1:1->10.0.0.2:443/tcp".parse().unwrap();
    let numbers = sequence * RECORDS..(sequence + 1) * RECORDS;
    let records = numbers.flat_map(|number| {
        emit::encode_record(&emit::unsampled_record(flow, 1, FIRST_BYTES + u64::from(number)))
    });
    let sets = [
        emit::set(0, &emit::encode_template(256, &emit::FIELDS)),
        emit::set(256, &records.collect::<Vec<_>>()),
    ];
    emit::netflow_v9_datagram(sequence, domain, &sets)
}

struct Bed {
    bed: IntBed,
    to: SocketAddr,
    /// One for each exporter, so that its port stays.
    sockets: Vec<UdpSocket>,
}

impl Bed {
    async fn start() -> Bed {
        let translator =
            format!("workers = {LISTS}\n[translator.flows]\nexporters = {PLACES}\nsources_per_address = 4");
        let bed = IntBed::start(&Setup { flows: true, translator: &translator, ..Setup::default() }).await;
        let to = bed.translator.ready["flows"][0].as_str().unwrap().parse().unwrap();
        let sockets = (0..EXPORTERS).map(|number| UdpSocket::bind((exporter(number), 0)).unwrap()).collect();
        Bed { bed, to, sockets }
    }

    fn send(&self, socket: &UdpSocket, datagram: &[u8]) {
        let SocketAddr::V4(to) = self.to else { unreachable!("it listens at IPv4") };
        until_room(to);
        socket.send_to(datagram, to).unwrap();
    }

    /// All exporters' datagrams of these numbers, in turn. Returns how many were sent.
    fn send_from_all(&self, sequences: std::ops::Range<u32>) -> u64 {
        let mut sent = 0;
        for sequence in sequences {
            for (number, socket) in (0..).zip(&self.sockets) {
                if !is_lost(number, sequence) {
                    self.send(socket, &datagram(sequence, 0));
                    sent += 1;
                }
            }
        }
        sent
    }

    async fn until(&mut self, what: &str, datagrams: u64) -> Counted {
        let all = |counted: &Counted| {
            counted.own("flows.datagrams") == datagrams && counted.own("held") == 0 && counted.is_executed()
        };
        self.bed.until(what, all).await
    }

    /// Of each exporter, the bytes of its records from one number on, in the order of its list, of which there is one.
    async fn assert_records(&self, sequences: std::ops::Range<u32>, lists: std::ops::Range<u32>) {
        let mut found: BTreeMap<IpAddr, Vec<u64>> = BTreeMap::new();
        for list in lists {
            let mut in_list: BTreeMap<IpAddr, Vec<u64>> = BTreeMap::new();
            for record in self.bed.flow_records(list).await {
                let number = record.bytes - FIRST_BYTES;
                if number >= (sequences.start * RECORDS).into() {
                    in_list.entry(IpAddr::from(record.exporter).to_canonical()).or_default().push(number);
                }
            }
            assert!(!in_list.is_empty(), "list {list} is empty");
            for (exporter, numbers) in in_list {
                assert_eq!(found.insert(exporter, numbers), None, "{exporter} has two lists");
            }
        }
        for number in 0..EXPORTERS {
            let sent = sequences.clone().filter(|sequence| !is_lost(number, *sequence));
            let expected =
                sent.flat_map(|sequence| sequence * RECORDS..(sequence + 1) * RECORDS).map(u64::from);
            let numbers =
                found.get(&exporter(number)).unwrap_or_else(|| panic!("{} is not there", exporter(number)));
            assert!(numbers.iter().copied().eq(expected), "{}: {numbers:?}", exporter(number));
        }
    }
}

#[tokio::test]
async fn four_workers_take_two_hundred_exporters_in_order_and_a_reload_moves_them() {
    let mut bed = Bed::start().await;
    let sent = bed.send_from_all(0..DATAGRAMS);
    let counted = bed.until("records of all", sent).await;
    let appended = sent * u64::from(RECORDS);
    let own = |name: &str| counted.own(name);
    assert_eq!(
        [own("flows.records"), own("flows.appended"), own("flows.sources")],
        [appended, appended, EXPORTERS.into()]
    );
    let lossy: Vec<u8> = (0..EXPORTERS).filter(|number| is_lost(*number, 2)).collect();
    for number in &lossy {
        assert_eq!(own(&format!("flows.gaps_of.{}/v9/0", exporter(*number))), 1);
    }
    assert_eq!(own("flows.gaps"), lossy.len() as u64);

    // Its own limit for one address, and the others' for all: eight domains of one, and twenty addresses for the places left.
    let many = UdpSocket::bind("127.2.0.1:0").unwrap();
    (0..8).for_each(|domain| bed.send(&many, &datagram(0, domain)));
    for number in 1..=20 {
        bed.send(&UdpSocket::bind((format!("127.2.0.{}", 1 + number), 0)).unwrap(), &datagram(0, 0));
    }
    let counted = bed.until("the limits", sent + 28).await;
    assert_eq!(counted.own("flows.sources"), PLACES);
    assert_eq!(counted.own("flows.dropped.no_room"), 28 - 10);

    bed.assert_records(0..DATAGRAMS, 0..LISTS).await;

    // Two of the lists are left to this translator, and so two workers.
    let file = bed.bed.folder.path().join("translator.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let lists = "lists = [{ store = \"flow-records\", first = 1, count = 2 }]\nworkers";
    std::fs::write(&file, text.replace("workers", lists)).unwrap();
    bed.bed.translator.hang_up();
    // All begin anew, and their places are free.
    bed.bed.until_unasked("the reload", |counted| counted.own("flows.sources") == 0).await;
    let more = bed.send_from_all(DATAGRAMS..2 * DATAGRAMS);
    let counted = bed.until("records after the reload", sent + 28 + more).await;
    assert_eq!(counted.own("flows.sources"), u64::from(EXPORTERS));
    assert_eq!(counted.own("flows.dropped.no_room"), 28 - 10);
    assert_eq!(counted.own("flows.appended"), (sent + 10 + more) * u64::from(RECORDS));
    bed.assert_records(DATAGRAMS..2 * DATAGRAMS, 1..3).await;
}

/// Of both families at one listener, by addresses as their exporters have them.
#[tokio::test]
async fn listeners_take_ipv6() {
    let setup = Setup { arguments: &["--flows", "udp://[::]:0,udp://[::1]:0"], ..Setup::default() };
    let mut bed = IntBed::start(&setup).await;
    let ready = &bed.translator.ready["flows"];
    let [any, only] = [0, 1].map(|at| ready[at].as_str().unwrap().parse::<SocketAddr>().unwrap());
    assert!(any.ip().is_unspecified() && only.ip().is_loopback() && any.is_ipv6());
    for (from, to) in [("127.0.0.1", any.port()), ("::1", any.port()), ("::1", only.port())] {
        let from: IpAddr = from.parse().unwrap();
        let socket = UdpSocket::bind((from, 0)).unwrap();
        socket.send_to(&datagram(0, to.into()), (from, to)).unwrap();
    }
    let all =
        |counted: &Counted| counted.own("flows.appended") == 3 * u64::from(RECORDS) && counted.is_executed();
    let counted = bed.until("records of both families", all).await;
    assert_eq!((counted.own("link.flows.received"), counted.own("flows.sources")), (3, 3));
    let group = vec![Column::from_name("exporter").unwrap()];
    let question = FlowQuestion { group, ..FlowQuestion::default() };
    let (answer, _) = bed.client.query_flows("", &question, FlowSum::Bytes, 10).await.unwrap();
    let exporters = answer.rows.iter().map(|row| Ipv6Addr::from(row.values[0]).to_canonical().to_string());
    assert_eq!(exporters.collect::<BTreeSet<_>>(), ["127.0.0.1", "::1"].map(String::from).into());
}
