//! Keys and flows as people write them: any text is a key or an error, and what is shown reads the same again.
#![no_main]

use dta_proto::key::{Flow, Key};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(key) = text.parse::<Key>() {
        assert_eq!(key.to_string().parse(), Ok(key));
    }
    if let Ok(flow) = text.parse::<Flow>() {
        assert_eq!(flow.to_string().parse(), Ok(flow));
    }
});
