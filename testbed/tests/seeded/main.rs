//! Every target for a few seconds, on stable: `DTA_FUZZ_SECONDS` each (3), from `DTA_FUZZ_SEED` (0).

mod mutate;
mod run;

use std::time::Duration;

use dta_testbed::fuzz::Target;
use run::{Failure, run};

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

fn holds(target: Target) {
    let (seed, seconds) = (number("DTA_FUZZ_SEED", 0), number("DTA_FUZZ_SECONDS", 3));
    match run(&target, seed, Duration::from_secs(seconds)) {
        Ok(summary) => {
            println!("{}: {} inputs, of which {} were taken", target.name, summary.tried, summary.taken);
            // If the decoder took next to nothing, its inside was not reached.
            assert!(summary.tried > 1000 && summary.taken * 20 > summary.tried, "{summary:?}");
        }
        Err(Failure { after, input }) => {
            let hex = dta_proto::to_hex_digits(&input);
            panic!(
                "target {}, seed {seed}, after {after} inputs: the property does not hold for {hex}",
                target.name
            );
        }
    }
}

#[test]
fn reports_and_nacks() {
    holds(dta_testbed::fuzz::DTA);
}

#[test]
fn transport_packets() {
    holds(dta_testbed::fuzz::ROCE);
}

#[test]
fn whole_packets() {
    holds(dta_testbed::fuzz::PACKET);
}

#[test]
fn keys_as_text() {
    holds(dta_testbed::fuzz::KEY);
}

#[test]
fn int_reports() {
    holds(dta_testbed::fuzz::INT);
}

#[test]
fn flow_exports() {
    holds(dta_testbed::fuzz::FLOWS);
}

/// A decoder with a mistake behind two bytes that no seed has.
#[test]
fn a_mistake_is_found_and_its_input_returned() {
    fn wrong(bytes: &[u8]) -> bool {
        assert!(!(bytes.len() == 5 && bytes[1] == 0xff && bytes[3] == 0x80), "planted");
        true
    }
    let target = Target { name: "wrong", check: wrong, seeds: || vec![b"seed".to_vec(), b"corn".to_vec()] };
    let found = || run(&target, 0, Duration::from_secs(60)).expect_err("the mistake");
    let Failure { after, input } = found();
    assert_eq!((input.len(), input[1], input[3]), (5, 0xff, 0x80));
    assert!(after >= 2, "a seed already");
    assert_eq!(found(), Failure { after, input }, "the same seed gives the same inputs");
}
