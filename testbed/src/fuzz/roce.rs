use dta_proto::wire::roce::{ICRC_LEN, RocePacket, RoceRepr};

pub(crate) fn check(bytes: &[u8]) -> bool {
    let Ok(packet) = RocePacket::new_checked(bytes) else { return false };
    let Ok(repr) = RoceRepr::parse_packet(&packet) else { return false };
    let mut again = vec![0xa5; bytes.len()];
    let len = repr.encode_into(&mut again).expect("what parses can be emitted");
    assert_eq!(len + ICRC_LEN, bytes.len());
    let packet = RocePacket::new_checked(&again).expect("what was emitted parses");
    assert_eq!(RoceRepr::parse_packet(&packet), Ok(repr));
    true
}
