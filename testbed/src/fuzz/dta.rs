use dta_proto::wire::dta::{Nack, Report};

pub(crate) fn check(bytes: &[u8]) -> bool {
    let mut again = [0xa5; 128];
    let report = Report::parse(bytes);
    if let Ok(report) = report {
        let len = report.emit(&mut again).expect("what parses can be emitted");
        assert_eq!(len, bytes.len());
        assert_eq!(Report::parse(&again[..len]), Ok(report));
    }
    let nack = Nack::parse(bytes);
    if let Ok(nack) = nack {
        let len = nack.emit(&mut again).expect("what parses can be emitted");
        assert_eq!(Nack::parse(&again[..len]), Ok(nack));
    }
    report.is_ok() || nack.is_ok()
}
