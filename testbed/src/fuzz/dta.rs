use dta_proto::wire::dta::{DtaReport, Nack};

pub(crate) fn check(bytes: &[u8]) -> bool {
    let mut again = [0xa5; 128];
    let report = DtaReport::parse_payload(bytes);
    if let Ok(report) = report {
        let len = report.encode_into(&mut again).expect("what parses can be emitted");
        assert_eq!(len, bytes.len());
        assert_eq!(DtaReport::parse_payload(&again[..len]), Ok(report));
    }
    let nack = Nack::parse_payload(bytes);
    if let Ok(nack) = nack {
        let len = nack.encode_into(&mut again).expect("what parses can be emitted");
        assert_eq!(Nack::parse_payload(&again[..len]), Ok(nack));
    }
    report.is_ok() || nack.is_ok()
}
