//! Reports and NACKs: any bytes are a value or an error, and a value's bytes are that value again.
#![no_main]

use dta_proto::wire::dta::{Nack, Report};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut again = [0xa5; 128];
    if let Ok(report) = Report::parse(bytes) {
        let len = report.emit(&mut again).expect("what parses can be emitted");
        assert_eq!(len, bytes.len());
        assert_eq!(Report::parse(&again[..len]), Ok(report));
    }
    if let Ok(nack) = Nack::parse(bytes) {
        let len = nack.emit(&mut again).expect("what parses can be emitted");
        assert_eq!(Nack::parse(&again[..len]), Ok(nack));
    }
});
