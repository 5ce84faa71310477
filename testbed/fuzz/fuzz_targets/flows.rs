#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    (dta_testbed::fuzz::FLOWS.check)(bytes);
});
