//! The digests of frames, checked against a list that another program wrote (`reporter/vectors/frames.py`).

#[path = "frames/mod.rs"]
mod frames;
mod twin;

use dta_reporter::packet_trace::digest::{Digest, Sampling};

use twin::digest::Identity;
use twin::packet::{Refused, Start, read};

#[test]
fn frames_have_their_digests() {
    for frame in frames::all() {
        let packet =
            read(&frame.bytes, Start::Ethernet).unwrap_or_else(|error| panic!("{}: {error}", frame.name));
        let digest = packet.identity.digest();
        assert_eq!((digest.full, digest.core), (frame.full, frame.core), "{}: {packet:?}", frame.name);
    }
}

#[test]
fn a_frame_that_was_cut_is_refused_or_read_and_never_panics() {
    for frame in frames::all() {
        for length in 0..frame.bytes.len() {
            match read(&frame.bytes[..length], Start::Ethernet) {
                Ok(_) => assert!(length >= 34, "{} with {length} bytes", frame.name),
                Err(error) => assert_eq!(error, Refused::Unreadable, "{} with {length} bytes", frame.name),
            }
        }
    }
}

#[test]
fn what_is_no_ip_is_refused() {
    let mut arp = vec![0; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(read(&arp, Start::Ethernet), Err(Refused::NotIp));
    assert_eq!(read(&[0x75; 60], Start::Network), Err(Refused::NotIp));
}

#[test]
fn addresses_and_ports_change_the_full_digest_alone() {
    let packet = Identity { protocol: 17, source_port: 1, ..Identity::default() };
    let translated = Identity { source: [7; 16], source_port: 2, ..packet };
    assert_eq!(packet.digest().core, translated.digest().core);
    assert_ne!(packet.digest().full, translated.digest().full);
}

#[test]
fn identities_that_differ_in_one_bit_or_two_have_digests_of_their_own() {
    let flipped = |bits: &[usize]| {
        let mut bytes = [0u8; 80];
        bits.iter().for_each(|bit| bytes[bit / 8] ^= 1 << (bit % 8));
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Identity {
            source: std::array::from_fn(|i| bytes[i]),
            destination: std::array::from_fn(|i| bytes[16 + i]),
            payload: std::array::from_fn(|i| bytes[32 + i]),
            source_port: u16_at(64),
            destination_port: u16_at(66),
            ip_id: u16_at(68),
            fragment_offset: u16_at(70),
            sequence: u32_at(72),
            acknowledgement: u32_at(76),
            ..Identity::default()
        }
        .digest()
        .full
    };
    let mut seen = std::collections::HashSet::new();
    for one in 0..640 {
        assert!(seen.insert(flipped(&[one])), "bit {one}");
        for other in 0..one {
            assert!(seen.insert(flipped(&[one, other])), "bits {one} and {other}");
        }
    }
}

#[test]
fn rate_is_kept_and_a_higher_rate_keeps_what_a_lower_one_chose() {
    let digests: Vec<Digest> = (0..64_000)
        .map(|sequence| Identity { protocol: 6, sequence, ..Identity::default() }.digest())
        .collect();
    let chosen = |n| digests.iter().filter(|digest| Sampling::one_in(n).includes_packet(**digest)).count();
    assert_eq!((chosen(0), chosen(1)), (64_000, 64_000));
    assert!((7_600..8_400).contains(&chosen(8)), "{}", chosen(8));
    let both = |digest: &&Digest| {
        Sampling::one_in(64).includes_packet(**digest) && Sampling::one_in(8).includes_packet(**digest)
    };
    assert_eq!(digests.iter().filter(both).count(), chosen(64));
}
