//! Transport packets of RoCEv2, without the checksums that would keep a fuzzer out.
#![no_main]

use dta_proto::wire::roce::{ICRC_LEN, Packet, Repr};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(packet) = Packet::new_checked(bytes) else { return };
    let Ok(repr) = Repr::parse(&packet) else { return };
    let mut again = vec![0xa5; bytes.len()];
    let len = repr.emit(&mut again).expect("what parses can be emitted");
    assert_eq!(len + ICRC_LEN, bytes.len());
    let packet = Packet::new_checked(&again).expect("what was emitted parses");
    assert_eq!(Repr::parse(&packet), Ok(repr));
});
