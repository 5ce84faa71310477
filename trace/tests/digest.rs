//! The digests of frames, checked against a list that another program wrote (`trace/vectors/frames.py`).

#[path = "frames/mod.rs"]
mod frames;

use dta_trace::packet::{Refused, Start, read};

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
