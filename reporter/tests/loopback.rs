//! A reporter and a receiver on loopback that loses reports and requests them again.

#[path = "../../testbed/tests/shared/loopback.rs"]
mod loopback;

use std::collections::BTreeMap;
use std::net::{SocketAddrV4, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dta_link::fault::FaultOutcome;
use dta_proto::key::Key;
use dta_proto::wire::dta::{DtaBody, DtaReport, Nack, Version};
use dta_reporter::{Config, ReportOptions, Reporter};

const KEY: Key = Key([7; 16]);

/// The far end: what a translator is to a reporter.
struct Receiver {
    socket: UdpSocket,
}

impl Receiver {
    fn new() -> (Self, SocketAddrV4) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let std::net::SocketAddr::V4(address) = socket.local_addr().unwrap() else { unreachable!() };
        (Receiver { socket }, address)
    }

    /// All datagrams until no more arrive.
    fn drain(&self) -> Vec<(Vec<u8>, std::net::SocketAddr)> {
        let mut all = Vec::new();
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
            all.push((buffer[..len].to_vec(), from));
        }
        all
    }

    fn next(&self) -> (Vec<u8>, std::net::SocketAddr) {
        let mut buffer = [0; 2048];
        let came = (0..200).find_map(|_| self.socket.recv_from(&mut buffer).ok());
        let (len, from) = came.expect("a datagram within a minute");
        (buffer[..len].to_vec(), from)
    }

    fn ask(&self, to: std::net::SocketAddr, nack: Nack) {
        let mut bytes = [0; 12];
        let len = nack.encode_into(&mut bytes).unwrap();
        self.socket.send_to(&bytes[..len], to).unwrap();
    }
}

fn config(to: SocketAddrV4) -> Config {
    Config {
        reporter: 9,
        first_sequence: Some(0),
        options: ReportOptions { retransmittable: true, immediate: false },
        ..Config::new(to)
    }
}

fn key_write(reporter: &mut Reporter, n: u32) -> u32 {
    reporter.report(3, DtaBody::KeyWrite { redundancy: 0, key: KEY, value: &n.to_be_bytes() }).unwrap()
}

#[test]
fn every_primitive_arrives_as_it_was_said() {
    let (receiver, address) = Receiver::new();
    let mut reporter = Reporter::open(config(address)).unwrap();
    let bodies = [
        DtaBody::KeyWrite { redundancy: 2, key: KEY, value: &[1; 12] },
        DtaBody::Append { list: 5, value: &[2; 60] },
        DtaBody::KeyIncrement { redundancy: 0, key: KEY, delta: u64::MAX },
        DtaBody::Postcard { key: KEY, hop: 3, path_length: 5, value: 99 },
        DtaBody::SketchMerge { epoch: 4, column: 17, cells: &[3; 16] },
    ];
    let options = ReportOptions { retransmittable: false, immediate: true };
    for (n, body) in bodies.iter().enumerate() {
        let sequence = match n {
            0 => reporter.report(100, *body),
            _ => reporter.report_with(100 + n as u16, *body, options),
        };
        assert_eq!(sequence, Ok(n as u32));
    }
    reporter.flush().unwrap();
    for (n, body) in bodies.iter().enumerate() {
        let (bytes, from) = receiver.next();
        assert_eq!(from, reporter.local_addr().into());
        let expect = DtaReport {
            version: Version::V1,
            immediate: n != 0,
            retransmittable: n == 0,
            restarted: true,
            sequence: n as u32,
            reporter: 9,
            store: 100 + n as u16,
            body: *body,
        };
        assert_eq!(DtaReport::parse_payload(&bytes), Ok(expect));
    }
}

#[test]
fn what_the_format_cannot_say_is_refused_and_takes_no_sequence() {
    let (receiver, address) = Receiver::new();
    let mut reporter = Reporter::open(config(address)).unwrap();
    assert!(reporter.report(1, DtaBody::Append { list: 0, value: &[0; 5] }).is_err());
    assert!(reporter.report(1, DtaBody::Postcard { key: KEY, hop: 14, path_length: 0, value: 0 }).is_err());
    assert_eq!(key_write(&mut reporter, 1), 0);
    let counters = reporter.close().unwrap();
    assert_eq!((counters.reports, counters.refused, counters.link.sent), (1, 2, 1));
    assert_eq!(receiver.drain().len(), 1);
}

#[test]
fn exactly_the_missing_ones_are_sent_again() {
    let (receiver, address) = Receiver::new();
    // Over the wrap of the sequence.
    let first = u32::MAX - 49;
    let mut reporter =
        Reporter::open(Config { first_sequence: Some(first), backup: 64, ..config(address) }).unwrap();
    let sent: Vec<u32> = (0..100).map(|n| key_write(&mut reporter, n)).collect();
    reporter.flush().unwrap();
    let original: BTreeMap<u32, Vec<u8>> = receiver
        .drain()
        .into_iter()
        .map(|(bytes, _)| (DtaReport::parse_payload(&bytes).unwrap().sequence, bytes))
        .collect();
    assert_eq!(original.len(), 100);

    // Reports 40 to 44 (held, over the wrap from 50 on) and 0 to 1 (pushed out by later ones).
    let here = reporter.local_addr().into();
    receiver.ask(here, Nack::V1 { reporter: 9, first: sent[48], count: 5 });
    receiver.ask(here, Nack::V1 { reporter: 9, first: sent[0], count: 2 });
    // Not for us, and not a NACK at all.
    receiver.ask(here, Nack::V1 { reporter: 8, first: sent[60], count: 5 });
    receiver.ask(here, Nack::V0 { sequence: 3 });
    receiver.socket.send_to(b"what?", here).unwrap();
    // From a host that is not the translator.
    let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
    let mut bytes = [0; 12];
    Nack::V1 { reporter: 9, first: sent[60], count: 1 }.encode_into(&mut bytes).unwrap();
    stranger.send_to(&bytes, reporter.local_addr()).unwrap();
    reporter.answer_nacks_for(Duration::from_millis(200)).unwrap();

    let again: Vec<Vec<u8>> = receiver.drain().into_iter().map(|(bytes, _)| bytes).collect();
    let expect: Vec<Vec<u8>> = sent[48..53].iter().map(|sequence| original[sequence].clone()).collect();
    assert_eq!(again, expect);
    let counters = reporter.close().unwrap();
    assert_eq!(
        (counters.nacks, counters.nacked, counters.retransmitted, counters.nack_unavailable),
        (2, 7, 5, 2)
    );
    assert_eq!((counters.nack_foreign, counters.nack_malformed), (2, 2));
    assert_eq!((counters.reports, counters.link.sent), (100, 105));
    assert!(counters.is_balanced());
}

#[test]
fn reports_that_are_not_retransmittable_are_not_kept() {
    let (receiver, address) = Receiver::new();
    let mut reporter = Reporter::open(config(address)).unwrap();
    let body = DtaBody::Append { list: 0, value: &[1; 4] };
    reporter.report_with(1, body, ReportOptions::default()).unwrap();
    reporter.report(1, body).unwrap();
    reporter.flush().unwrap();
    assert_eq!(receiver.drain().len(), 2);
    receiver.ask(reporter.local_addr().into(), Nack::V1 { reporter: 9, first: 0, count: 2 });
    reporter.answer_nacks_for(Duration::from_millis(100)).unwrap();
    let again = receiver.drain();
    assert_eq!(again.len(), 1);
    assert_eq!(DtaReport::parse_payload(&again[0].0).unwrap().sequence, 1);
    let counters = reporter.counters();
    assert_eq!((counters.retransmitted, counters.nack_unavailable), (1, 1));
}

#[test]
fn the_first_reports_say_that_the_sequence_starts_anew() {
    let (receiver, address) = Receiver::new();
    for (version, say_so) in [(Version::V1, 8), (Version::V0, 1)] {
        let config = Config { version, backup: 0, first_sequence: None, ..config(address) };
        let mut reporter = Reporter::open(config).unwrap();
        let mut first = None;
        for n in 0..20u32 {
            let sequence = reporter.report(0, DtaBody::Append { list: 0, value: &n.to_be_bytes() }).unwrap();
            assert_eq!(sequence, first.get_or_insert(sequence).wrapping_add(n));
        }
        reporter.flush().unwrap();
        let flags: Vec<bool> =
            receiver.drain().iter().map(|(b, _)| DtaReport::parse_payload(b).unwrap().restarted).collect();
        assert_eq!(flags, (0..20).map(|n| n < say_so).collect::<Vec<_>>());
    }
}

#[test]
fn a_report_sent_again_does_not_restart_the_sequence() {
    let (receiver, address) = Receiver::new();
    let mut reporter = Reporter::open(config(address)).unwrap();
    key_write(&mut reporter, 1);
    reporter.flush().unwrap();
    assert!(DtaReport::parse_payload(&receiver.next().0).unwrap().restarted);
    receiver.ask(reporter.local_addr().into(), Nack::V1 { reporter: 9, first: 0, count: 1 });
    reporter.answer_nacks_for(Duration::from_millis(100)).unwrap();
    let report = receiver.next().0;
    let report = DtaReport::parse_payload(&report).unwrap();
    assert!(!report.restarted && report.sequence == 0);
}

#[test]
fn version_0_answers_its_own_nacks() {
    let (receiver, address) = Receiver::new();
    let host = loopback::own_address();
    let free = UdpSocket::bind((host, 0)).unwrap().local_addr().unwrap().port();
    let config = Config {
        version: Version::V0,
        nack_port_v0: free,
        bind: SocketAddrV4::new(host, 0),
        ..config(address)
    };
    let mut reporter = Reporter::open(config.clone()).unwrap();
    let key = Key(*b"\x0a\x0b\x0c\x0d\0\0\0\0\0\0\0\0\0\0\0\0");
    for n in 0..300u32 {
        if n == 150 {
            // A socket's queue holds some 250 datagrams by default.
            reporter.flush().unwrap();
            assert_eq!(receiver.drain().len(), 150);
        }
        reporter.report(3, DtaBody::KeyWrite { redundancy: 1, key, value: &n.to_be_bytes() }).unwrap();
    }
    assert!(
        reporter.report(3, DtaBody::KeyWrite { redundancy: 1, key: KEY, value: &[0; 4] }).is_err(),
        "16-byte key"
    );
    reporter.flush().unwrap();
    assert_eq!(receiver.drain().len(), 150);
    // 43 is report 299, 44 is report 44: the latest with these low 8 bits.
    for sequence in [43, 44] {
        receiver.ask(SocketAddrV4::new(host, free).into(), Nack::V0 { sequence });
    }
    reporter.answer_nacks_for(Duration::from_millis(100)).unwrap();
    let values: Vec<u32> = receiver
        .drain()
        .iter()
        .map(|(bytes, _)| match DtaReport::parse_payload(bytes).unwrap().body {
            DtaBody::KeyWrite { value, .. } => u32::from_be_bytes(value.try_into().unwrap()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(values, [299, 44]);
    assert_eq!(reporter.counters().retransmitted, 2);

    let second = Reporter::open(config);
    let error = second.err().expect("the NACK port is taken").to_string();
    assert!(error.contains("NACK") && error.contains("in use") && error.contains("backup of 0"), "{error}");
}

#[test]
fn the_fate_of_each_datagram_is_observed() {
    let (receiver, address) = Receiver::new();
    let faults = "drop=0.1,dup=0.1,reorder=0.1".parse().unwrap();
    let mut reporter = Reporter::open(Config { faults, seed: 5, ..config(address) }).unwrap();
    let fates = Arc::new(Mutex::new(BTreeMap::new()));
    let observed = Arc::clone(&fates);
    reporter.set_observer(move |fate, sent| {
        assert!(!sent.again);
        assert_eq!(observed.lock().unwrap().insert(sent.sequence, fate), None, "one fate each");
    });
    for n in 0..200 {
        key_write(&mut reporter, n);
    }
    let counters = reporter.close().unwrap();
    assert!(counters.is_balanced());
    let mut arrived = BTreeMap::new();
    for (bytes, _) in receiver.drain() {
        *arrived.entry(DtaReport::parse_payload(&bytes).unwrap().sequence).or_insert(0) += 1;
    }
    let fates = fates.lock().unwrap();
    assert_eq!(fates.len(), 200);
    for (sequence, fate) in fates.iter() {
        let expect = match fate {
            FaultOutcome::Dropped => None,
            FaultOutcome::Duplicated => Some(&2),
            _ => Some(&1),
        };
        assert_eq!(arrived.get(sequence), expect, "{sequence}: {fate:?}");
    }
    let count = |is: fn(&FaultOutcome) -> bool| fates.values().filter(|fate| is(fate)).count() as u64;
    assert_eq!(counters.fault.dropped, count(|fate| *fate == FaultOutcome::Dropped));
    assert_eq!(counters.fault.reordered, count(|fate| matches!(fate, FaultOutcome::Reordered { .. })));
    assert!(counters.fault.dropped > 0 && counters.fault.duplicated > 0 && counters.fault.reordered > 0);
}

/// Asks for 65,535 sequences at a time that were never sent: the cost must be as if it
/// asked for one. The least of ten is compared, as others run, too.
#[test]
fn a_flood_of_nacks_costs_little_whatever_they_ask_for() {
    let cost = |count: u16| {
        let (receiver, address) = Receiver::new();
        let mut reporter = Reporter::open(config(address)).unwrap();
        key_write(&mut reporter, 0);
        reporter.flush().unwrap();
        let here = reporter.local_addr().into();
        let mut cost = Duration::MAX;
        for _ in 0..10 {
            for _ in 0..100 {
                receiver.ask(here, Nack::V1 { reporter: 9, first: 1 << 20, count });
            }
            let start = Instant::now();
            reporter.poll().unwrap();
            cost = cost.min(start.elapsed());
        }
        let counters = reporter.counters();
        assert_eq!((counters.nacks, counters.nacked), (1000, 1000 * u64::from(count)));
        assert_eq!(counters.nack_unavailable, counters.nacked);
        cost
    };
    let (one, many) = (cost(1), cost(u16::MAX));
    assert!(many < one * 50, "{many:?} for {} sequences each, {one:?} for one", u16::MAX);
}

#[test]
fn nacks_from_another_port_of_the_translators_address_are_refused() {
    let (receiver, address) = Receiver::new();
    let mut reporter = Reporter::open(config(address)).unwrap();
    key_write(&mut reporter, 0);
    reporter.flush().unwrap();
    receiver.next();
    let (other, _) = Receiver::new();
    other.ask(reporter.local_addr().into(), Nack::V1 { reporter: 9, first: 0, count: 1 });
    reporter.answer_nacks_for(Duration::from_millis(50)).unwrap();
    let counters = reporter.counters();
    assert_eq!((counters.nack_foreign, counters.nacks, counters.retransmitted), (1, 0, 0));
}

#[test]
fn what_blind_nacks_release_is_bounded() {
    let (receiver, address) = Receiver::new();
    let mut reporter = Reporter::open(config(address)).unwrap();
    for n in 0..4096 {
        key_write(&mut reporter, n);
    }
    reporter.flush().unwrap();
    let here = reporter.local_addr().into();
    for _ in 0..100 {
        receiver.ask(here, Nack::V1 { reporter: 9, first: 0, count: u16::MAX });
    }
    let start = Instant::now();
    reporter.poll().unwrap();
    let counters = reporter.counters();
    let earned = (start.elapsed().as_secs_f64() * 20_000.0) as u64;
    assert!(counters.retransmitted > 2000, "{counters:?}");
    assert!(counters.retransmitted <= 2048 + earned + 1, "{counters:?}");
    assert_eq!(counters.nacked, counters.retransmitted + counters.nack_unavailable + counters.nack_refused);

    // One report is sent again 8 times, however often it is asked for and however slowly.
    let config = Config { resends_per_second: 0, ..config(address) };
    let mut reporter = Reporter::open(config).unwrap();
    key_write(&mut reporter, 0);
    reporter.flush().unwrap();
    for _ in 0..20 {
        receiver.ask(reporter.local_addr().into(), Nack::V1 { reporter: 9, first: 0, count: 1 });
        reporter.answer_nacks_for(Duration::from_millis(1)).unwrap();
    }
    reporter.answer_nacks_for(Duration::from_millis(50)).unwrap();
    let counters = reporter.close().unwrap();
    assert_eq!((counters.nacks, counters.retransmitted, counters.nack_refused), (20, 8, 12));
    assert!(counters.is_balanced());
}

/// A receiver that loses a tenth and requests every gap it sees: in the end nothing is missing.
#[test]
fn losses_are_made_good() {
    let (receiver, address) = Receiver::new();
    let faults = "drop=0.1".parse().unwrap();
    let mut reporter = Reporter::open(Config { faults, seed: 3, batch: 8, ..config(address) }).unwrap();
    let from = reporter.local_addr();
    let collect = std::thread::spawn(move || {
        let mut seen = std::collections::BTreeSet::<u32>::new();
        let mut asked = None::<(u32, Instant)>;
        let mut buffer = [0; 2048];
        while seen.range(..500).count() < 500 {
            let Ok((len, _)) = receiver.socket.recv_from(&mut buffer) else { continue };
            let sequence = DtaReport::parse_payload(&buffer[..len]).unwrap().sequence;
            seen.insert(sequence);
            // The first gap before it, each time something comes: a NACK that was not answered is
            // asked again. Not at once, as a report is sent again 8 times at most.
            if let Some(gap) = (0..sequence).find(|s| !seen.contains(s))
                && asked.is_none_or(|(last, at)| last != gap || at.elapsed() > Duration::from_millis(5))
            {
                receiver.ask(from.into(), Nack::V1 { reporter: 9, first: gap, count: 1 });
                asked = Some((gap, Instant::now()));
            }
        }
        // It is open as long as something is sent to it.
        receiver
    });
    for n in 0..500 {
        key_write(&mut reporter, n);
        if n % 8 == 7 {
            reporter.answer_nacks_for(Duration::from_millis(2)).unwrap();
        }
    }
    // The last datagrams show the last gaps. In a minute they are fewer than the 4096 that are kept.
    let begun = Instant::now();
    for n in 500.. {
        if collect.is_finished() {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "gaps are left: {:?}", reporter.counters());
        key_write(&mut reporter, n);
        reporter.answer_nacks_for(Duration::from_millis(20)).unwrap();
    }
    let _receiver = collect.join().unwrap();
    let counters = reporter.close().unwrap();
    assert!(counters.fault.dropped > 20 && counters.retransmitted > 20, "{counters:?}");
    assert!(counters.is_balanced());
}

/// What a reporter sends in its first hundred reports, plainly or in runs.
fn sent(runs: bool, batch: usize, report: impl Fn(&mut Reporter)) -> Vec<Vec<u8>> {
    let (receiver, address) = Receiver::new();
    let mut reporter = Reporter::open(Config { runs, batch, ..config(address) }).unwrap();
    report(&mut reporter);
    reporter.flush().unwrap();
    let counters = reporter.close().unwrap();
    assert!(counters.is_balanced());
    receiver.drain().into_iter().map(|(bytes, _)| bytes).collect()
}

#[test]
fn reports_written_in_place_are_those_that_are_handed_over() {
    let one_by_one = |reporter: &mut Reporter| {
        for n in 0..100 {
            key_write(reporter, n);
        }
    };
    let in_place = |reporter: &mut Reporter| {
        let like = DtaBody::KeyWrite { redundancy: 0, key: KEY, value: &[0; 4] };
        for begin in [0, 70] {
            let count = if begin == 0 { 70 } else { 30 };
            let first = reporter.report_many(3, like, count, |n, fields| {
                assert_eq!((&*fields.key, fields.place.len(), &*fields.value), (&KEY.0[..], 0, &[0; 4][..]));
                fields.value.copy_from_slice(&(begin + n as u32).to_be_bytes());
            });
            assert_eq!(first, Ok(begin));
        }
    };
    let expected = sent(false, 1, one_by_one);
    assert_eq!(expected.len(), 100);
    for (runs, batch) in [(false, 64), (true, 64), (true, 7), (true, 128)] {
        assert_eq!(sent(runs, batch, one_by_one), expected, "one by one, {runs}, {batch}");
        assert_eq!(sent(runs, batch, in_place), expected, "in place, {runs}, {batch}");
    }
}

#[test]
fn reports_written_in_place_are_kept_and_a_bad_one_takes_no_sequence() {
    let (receiver, address) = Receiver::new();
    let mut reporter = Reporter::open(config(address)).unwrap();
    let bad = DtaBody::Append { list: 0, value: &[0; 5] };
    assert!(reporter.report_many(1, bad, 3, |_, _| panic!("there is nothing to fill")).is_err());
    let like = DtaBody::Append { list: 0, value: &[0; 8] };
    let first = reporter.report_many(1, like, 20, |n, fields| {
        fields.place.copy_from_slice(&(n as u32).to_be_bytes());
        fields.value.fill(n as u8);
    });
    assert_eq!(first, Ok(0));
    reporter.flush().unwrap();
    assert_eq!(receiver.drain().len(), 20);
    receiver.ask(reporter.local_addr().into(), Nack::V1 { reporter: 9, first: 12, count: 2 });
    reporter.answer_nacks_for(Duration::from_millis(200)).unwrap();
    let again = receiver.drain();
    for (n, (bytes, _)) in (12..14).zip(&again) {
        let report = DtaReport::parse_payload(bytes).unwrap();
        assert_eq!((report.sequence, report.restarted), (n, false));
        assert_eq!(report.body, DtaBody::Append { list: n, value: &[n as u8; 8] });
    }
    let counters = reporter.close().unwrap();
    assert_eq!((counters.reports, counters.refused, counters.retransmitted), (20, 3, 2));
}

#[test]
fn gathered_reports_of_one_store_keep_their_order_and_are_numbered_as_they_leave() {
    let (receiver, address) = Receiver::new();
    let mut reporter = Reporter::open(Config { gather: true, ..config(address) }).unwrap();
    // Three stores alternate with reports of three lengths; some of the last one's are retransmittable.
    let again = |n: u32| ReportOptions { retransmittable: n.is_multiple_of(2), immediate: false };
    for n in 0..60u32 {
        let value = n.to_be_bytes();
        match n % 3 {
            0 => reporter.report_with(
                1,
                DtaBody::KeyWrite { redundancy: 0, key: KEY, value: &value },
                again(1),
            ),
            1 => reporter.report_with(2, DtaBody::Append { list: n, value: &value }, again(1)),
            _ => reporter.report_with(
                3,
                DtaBody::KeyIncrement { redundancy: 0, key: KEY, delta: n.into() },
                again(n),
            ),
        }
        .unwrap();
    }
    reporter.flush().unwrap();
    let came: Vec<Vec<u8>> = receiver.drain().into_iter().map(|(bytes, _)| bytes).collect();
    let reports: Vec<DtaReport<'_>> =
        came.iter().map(|bytes| DtaReport::parse_payload(bytes).unwrap()).collect();
    assert!(reports.iter().map(|report| report.sequence).eq(0..60), "a sequence for each, in order");
    assert!(came.is_sorted_by_key(Vec::len), "those of one length stand together");
    let number = |report: &DtaReport<'_>| match report.body {
        DtaBody::KeyWrite { value, .. } => u32::from_be_bytes(value.try_into().unwrap()),
        DtaBody::Append { list, .. } => list,
        DtaBody::KeyIncrement { delta, .. } => delta as u32,
        _ => unreachable!(),
    };
    for store in 1..=3 {
        let of: Vec<u32> = reports.iter().filter(|r| r.store == store).map(number).collect();
        assert_eq!(of, (0..20).map(|n| 3 * n + u32::from(store) - 1).collect::<Vec<_>>());
    }
    // What is requested is what had that sequence.
    receiver.ask(reporter.local_addr().into(), Nack::V1 { reporter: 9, first: 0, count: 60 });
    reporter.answer_nacks_for(Duration::from_millis(200)).unwrap();
    let kept: Vec<&Vec<u8>> = came
        .iter()
        .zip(&reports)
        .filter(|(_, report)| report.retransmittable)
        .map(|(bytes, _)| bytes)
        .collect();
    let mut resent: Vec<Vec<u8>> = receiver.drain().into_iter().map(|(bytes, _)| bytes).collect();
    // Only the first reports of all say that the reporter has restarted.
    for bytes in &mut resent {
        bytes[2] |= kept.iter().find(|kept| kept[8..12] == bytes[8..12]).map_or(0, |kept| kept[2] & 0x20);
    }
    assert_eq!(resent.iter().collect::<Vec<_>>(), kept);
    assert_eq!(kept.len(), 10);

    // Two lengths in one store may be two values of one key: nothing moves.
    for n in 0..10u8 {
        let value = vec![n; if n % 2 == 0 { 8 } else { 4 }];
        reporter.report(1, DtaBody::KeyWrite { redundancy: 0, key: KEY, value: &value }).unwrap();
    }
    reporter.flush().unwrap();
    let came = receiver.drain();
    let order: Vec<u8> = came.iter().map(|(bytes, _)| *bytes.last().unwrap()).collect();
    assert_eq!(order, (0..10).collect::<Vec<u8>>());
    assert!(reporter.close().unwrap().is_balanced());
}
