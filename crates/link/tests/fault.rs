//! The fault injector: how often, how far, which bits, and that nothing is lost uncounted.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use dta_link::Scope;
use dta_link::fault::{FaultCounts, FaultInjector, FaultOutcome, Faults, HOLD, REORDER_MAX};
use dta_proto::batch::PacketBatch;
use dta_proto::wire::datagram;
use proptest::prelude::*;

/// Sends `frames` numbered UDP packets through an injector in batches of `size`; returns what was sent, in
/// order, the fates by frame number, and the counts.
fn run(
    faults: Faults,
    seed: u64,
    scope: Scope,
    frames: u64,
    size: usize,
) -> (Vec<Vec<u8>>, HashMap<u64, FaultOutcome>, FaultCounts) {
    let mut injector = FaultInjector::new(faults, seed, scope);
    let now = Instant::now();
    let mut batch = PacketBatch::new(size);
    let mut left = Vec::new();
    let mut fates = HashMap::new();
    let mut observe = |fate: FaultOutcome, cookie: u64, packet: &[u8]| {
        assert_eq!(packet, numbered(cookie), "the observer gets the packet as it came");
        assert_eq!(fates.insert(cookie, fate), None, "frame {cookie} has two fates");
    };
    for number in 0..frames {
        batch.push(&numbered(number), number).unwrap();
        if batch.is_full() || number + 1 == frames {
            let leaving = injector.apply_to_batch(&mut batch, now, &mut observe);
            left.extend(leaving.iter().map(<[u8]>::to_vec));
            leaving.clear();
        }
    }
    left.extend(injector.flush_held_frames(&mut observe).iter().map(<[u8]>::to_vec));
    (left, fates, injector.fault_counts())
}

fn numbered(number: u64) -> Vec<u8> {
    let from = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 50000);
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 40040);
    let mut batch = PacketBatch::new(1);
    batch.push_datagram(from, to, &number.to_be_bytes(), 0).unwrap();
    batch.packet(0).to_vec()
}

fn number_of(packet: &[u8]) -> u64 {
    u64::from_be_bytes(packet[datagram::HEADER_LEN..].try_into().unwrap())
}

/// Whether `count` of `n` is within 5 standard deviations of probability `p` (1 in 1.7 million misses).
fn likely(count: u64, n: u64, p: f64) -> bool {
    let (mean, deviation) = (n as f64 * p, (n as f64 * p * (1.0 - p)).sqrt());
    (count as f64 - mean).abs() <= 5.0 * deviation
}

#[test]
fn each_fault_happens_as_often_as_it_says() {
    let faults: Faults = "drop=0.01,dup=0.02,reorder=0.03,corrupt=0.04".parse().unwrap();
    for seed in 0..8 {
        let n = 100_000;
        let (left, _, counts) = run(faults, seed, Scope::Payload, n, 64);
        assert!(likely(counts.dropped, n, 0.01), "{counts:?}");
        assert!(likely(counts.duplicated, n, 0.02), "{counts:?}");
        assert!(likely(counts.reordered, n, 0.03), "{counts:?}");
        assert!(likely(counts.corrupted, n, 0.04), "{counts:?}");
        assert_eq!(left.len() as u64, n + counts.duplicated - counts.dropped);
    }
}

#[test]
fn the_seed_decides_everything() {
    let faults: Faults = "drop=0.1,dup=0.1,reorder=0.1,corrupt=0.1".parse().unwrap();
    let once = run(faults, 5, Scope::Packet, 5_000, 64);
    assert_eq!(once, run(faults, 5, Scope::Packet, 5_000, 64));
    // Where batches begin and end does not matter.
    assert_eq!(once.1, run(faults, 5, Scope::Packet, 5_000, 7).1);
    assert_ne!(once.1, run(faults, 6, Scope::Packet, 5_000, 64).1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Frames in, plus duplicates, minus drops, are frames out; every frame has one fate; what left
    /// bears it out.
    #[test]
    fn every_frame_is_accounted_for(
        weights in prop::array::uniform5(0u32..100), seed: u64, frames in 0u64..600, size in 1usize..80,
    ) {
        let total = f64::from(weights.iter().sum::<u32>().max(1));
        let [drop, dup, reorder, corrupt, _] = weights.map(|weight| f64::from(weight) / total);
        let text = format!("drop={drop},dup={dup},reorder={reorder},corrupt={corrupt}");
        let (left, fates, counts) = run(text.parse().unwrap(), seed, Scope::Payload, frames, size);

        prop_assert_eq!(counts.frames, frames);
        prop_assert_eq!(counts.held, 0);
        prop_assert_eq!(
            counts.passed + counts.dropped + counts.duplicated + counts.reordered + counts.corrupted, frames
        );
        prop_assert_eq!(left.len() as u64, frames + counts.duplicated - counts.dropped);
        prop_assert_eq!(fates.len() as u64, frames);

        let mut expected: HashMap<Vec<u8>, i32> = HashMap::new();
        for (number, fate) in &fates {
            let mut packet = numbered(*number);
            let copies = match *fate {
                FaultOutcome::Dropped => 0,
                FaultOutcome::Duplicated => 2,
                FaultOutcome::Corrupted { bit } => {
                    packet[bit as usize / 8] ^= 0x80 >> (bit % 8);
                    1
                }
                FaultOutcome::Passed | FaultOutcome::Reordered { .. } => 1,
            };
            *expected.entry(packet).or_default() += copies;
        }
        for packet in &left {
            *expected.entry(packet.clone()).or_default() -= 1;
        }
        prop_assert!(expected.values().all(|missing| *missing == 0));
    }

    /// A reordered frame is overtaken by exactly as many later frames as its fate says, 1 to 16;
    /// others by none.
    #[test]
    fn reordered_frames_move_as_far_as_said(
        reorder in 0.0f64..0.9, seed: u64, frames in 1u64..600, size in 1usize..80,
    ) {
        let faults = format!("reorder={reorder},drop={},dup={}", (1.0 - reorder) / 3.0, (1.0 - reorder) / 3.0);
        let (left, fates, _) = run(faults.parse().unwrap(), seed, Scope::Payload, frames, size);
        let mut numbers: Vec<u64> = left.iter().map(|packet| number_of(packet)).collect();
        numbers.dedup();
        for (position, number) in numbers.iter().enumerate() {
            let overtakers = numbers[..position].iter().filter(|other| *other > number).count();
            match fates[number] {
                FaultOutcome::Reordered { places } => {
                    prop_assert!((1..=REORDER_MAX).contains(&places));
                    prop_assert_eq!(overtakers, usize::from(places));
                }
                _ => prop_assert_eq!(overtakers, 0),
            }
        }
    }
}

#[test]
fn all_distances_from_1_to_16_occur() {
    let (_, fates, _) = run("reorder=0.05".parse().unwrap(), 3, Scope::Packet, 50_000, 64);
    let mut seen = [0u32; 17];
    for fate in fates.values() {
        if let FaultOutcome::Reordered { places } = fate {
            seen[usize::from(*places)] += 1;
        }
    }
    let total: u32 = seen.iter().sum();
    for (places, count) in seen.iter().enumerate().skip(1) {
        assert!(likely((*count).into(), total.into(), 1.0 / 16.0), "{places}: {seen:?}");
    }
}

#[test]
fn a_held_frame_leaves_after_a_while_though_nothing_follows() {
    let mut injector = FaultInjector::new("reorder=1".parse().unwrap(), 1, Scope::Packet);
    let start = Instant::now();
    let mut batch = PacketBatch::new(4);
    for number in 0..4 {
        batch.push(&numbered(number), number).unwrap();
    }
    assert!(injector.apply_to_batch(&mut batch, start, |_, _, _| ()).is_empty());
    assert!(batch.is_empty());
    assert_eq!(injector.fault_counts().held, 4);
    assert!(
        injector.apply_to_batch(&mut batch, start + HOLD - Duration::from_millis(1), |_, _, _| ()).is_empty()
    );
    let mut fates = Vec::new();
    let leaving =
        injector.apply_to_batch(&mut batch, start + HOLD, |fate, cookie, _| fates.push((cookie, fate)));
    assert_eq!(leaving.iter().map(number_of).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(fates, [0, 1, 2, 3].map(|cookie| (cookie, FaultOutcome::Passed)), "nothing overtook them");
    assert_eq!(injector.fault_counts().held, 0);
}

#[test]
fn reordering_everything_holds_a_bounded_number() {
    let (left, _, counts) = run("reorder=1".parse().unwrap(), 2, Scope::Packet, 10_000, 64);
    assert_eq!(left.len(), 10_000);
    assert!(counts.reordered > 5_000, "{counts:?}");
}

#[test]
fn corruption_stays_within_what_the_link_can_carry() {
    for (scope, first) in [(Scope::Packet, 0), (Scope::Payload, 28), (Scope::Datagram, 20)] {
        let (_, fates, _) = run("corrupt=1".parse().unwrap(), 4, scope, 20_000, 64);
        let mut seen = [0u32; 36 * 8];
        for fate in fates.values() {
            let FaultOutcome::Corrupted { bit } = fate else { panic!("{fate:?} at corrupt=1") };
            seen[*bit as usize] += 1;
        }
        assert!(seen[..first * 8].iter().all(|count| *count == 0), "{scope:?}");
        assert!(
            seen[first * 8..].iter().all(|count| *count > 0),
            "{scope:?}: every bit has its turn: {seen:?}"
        );
    }
}

#[test]
fn a_corrupted_datagram_keeps_the_checksum_of_what_it_was() {
    let (left, fates, _) = run("corrupt=1".parse().unwrap(), 9, Scope::Datagram, 20_000, 64);
    assert_eq!(left.len(), 20_000);
    for (number, packet) in left.iter().enumerate() {
        assert!(!datagram::udp_checksum_ok(packet), "a receiver must be able to see it");
        let FaultOutcome::Corrupted { bit } = fates[&(number as u64)] else { panic!("not corrupted") };
        let mut mended = packet.clone();
        mended[bit as usize / 8] ^= 0x80 >> (bit % 8);
        assert!(datagram::udp_checksum_ok(&mended));
        assert_ne!(mended[26..28], [0, 0], "the checksum is there, not left out");
        mended[26..28].fill(0);
        assert_eq!(mended, numbered(number as u64));
    }
}

#[test]
fn what_has_no_bit_to_flip_passes() {
    let mut injector = FaultInjector::new("corrupt=1".parse().unwrap(), 1, Scope::Payload);
    let mut batch = PacketBatch::new(2);
    batch.push(&numbered(0)[..datagram::HEADER_LEN], 0).unwrap();
    batch.push(&[], 1).unwrap();
    let mut fates = Vec::new();
    injector.apply_to_batch(&mut batch, Instant::now(), |fate, _, _| fates.push(fate));
    assert_eq!(fates, [FaultOutcome::Passed, FaultOutcome::Passed]);
}

#[test]
fn without_faults_the_batch_itself_leaves() {
    let mut injector = FaultInjector::new(Faults::NONE, 1, Scope::Packet);
    let mut batch = PacketBatch::new(2);
    batch.push_frame(&[9; 60], 77).unwrap();
    let mut fates = Vec::new();
    let leaving =
        injector.apply_to_batch(&mut batch, Instant::now(), |fate, cookie, _| fates.push((fate, cookie)));
    assert_eq!(leaving.ethernet_frame(0), Some(&[9; 60][..]));
    assert_eq!(fates, [(FaultOutcome::Passed, 77)]);
    assert_eq!(injector.fault_counts(), FaultCounts { frames: 1, passed: 1, ..FaultCounts::default() });
}

#[test]
fn ethernet_headers_and_cookies_come_through_holding_and_duplicating() {
    for faults in ["reorder=1", "dup=1"] {
        let mut injector = FaultInjector::new(faults.parse().unwrap(), 1, Scope::Packet);
        let mut batch = PacketBatch::new(2);
        batch.push_frame(&[9; 60], 77).unwrap();
        let now = Instant::now();
        let first = injector.apply_to_batch(&mut batch, now, |_, _, _| ());
        let leaving = if first.is_empty() { injector.flush_held_frames(|_, _, _| ()) } else { first };
        assert_eq!(leaving.ethernet_frame(0), Some(&[9; 60][..]), "{faults}");
        assert_eq!(leaving.packet_cookie(0), 77);
    }
}

#[test]
fn faults_are_written_one_way_everywhere() {
    let text = "drop=0.01,dup=0.02,reorder=0.03,corrupt=0.04";
    let faults: Faults = text.parse().unwrap();
    assert_eq!(faults.to_string(), text);
    assert!(faults.can_corrupt() && !faults.is_none());
    assert_eq!(serde_json::to_string(&faults).unwrap(), format!("\"{text}\""));
    assert_eq!(serde_json::from_str::<Faults>(&format!("\"{text}\"")).unwrap(), faults);
    assert_eq!(" corrupt = 0.5 , drop = 0 ".parse::<Faults>().unwrap().to_string(), "corrupt=0.5");
    assert_eq!("none".parse::<Faults>().unwrap(), Faults::NONE);
    assert_eq!("".parse::<Faults>().unwrap().to_string(), "none");
    assert!("drop=0.7,dup=0.1,reorder=0.1,corrupt=0.1".parse::<Faults>().is_ok());
}

#[test]
fn bad_faults_are_refused_with_a_reason() {
    let message = |text: &str| text.parse::<Faults>().unwrap_err().to_string();
    assert_eq!(message("drop"), "`drop` is not of the form name=probability, such as drop=0.01");
    assert_eq!(message("delay=0.1"), "there is no fault `delay`; there are drop, dup, reorder and corrupt");
    assert_eq!(message("drop=0.1,drop=0.2"), "fault `drop` is given twice");
    for value in ["1.5", "-0.1", "1%", "NaN", ""] {
        let expected = format!("`{value}` is not a probability for drop: give a number from 0 to 1");
        assert_eq!(message(&format!("drop={value}")), expected);
    }
    assert!(message("drop=0.6,dup=0.6").starts_with("the probabilities sum to 1.200"));
    let error = serde_json::from_str::<Faults>("\"delay=1\"").unwrap_err().to_string();
    assert!(error.contains("there is no fault `delay`"), "{error}");
}
