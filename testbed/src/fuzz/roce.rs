use dta_proto::wire::roce::{ICRC_LEN, Packet, Repr};

pub(crate) fn check(bytes: &[u8]) -> bool {
    let Ok(packet) = Packet::new_checked(bytes) else { return false };
    let Ok(repr) = Repr::parse(&packet) else { return false };
    let mut again = vec![0xa5; bytes.len()];
    let len = repr.emit(&mut again).expect("what parses can be emitted");
    assert_eq!(len + ICRC_LEN, bytes.len());
    let packet = Packet::new_checked(&again).expect("what was emitted parses");
    assert_eq!(Repr::parse(&packet), Ok(repr));
    true
}
