//! Where the loop begins: the vectors that every implementation is tested on.

use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../dta-proto/vectors/wire.json")).expect("the vectors are JSON")
}

fn cases<'a>(vectors: &'a Value, lists: &'a [&str]) -> impl Iterator<Item = &'a Value> {
    lists.iter().flat_map(|list| vectors[list].as_array().expect("a list of vectors"))
}

fn bytes(case: &Value) -> Vec<u8> {
    let hex = case["hex"].as_str().expect("a vector with bytes");
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
    (0..hex.len()).step_by(2).map(byte).collect()
}

pub(crate) fn reports() -> Vec<Vec<u8>> {
    let lists = ["reports", "reports_reserved", "report_errors", "nacks", "nack_errors"];
    cases(&vectors(), &lists).map(bytes).collect()
}

pub(crate) fn frames() -> Vec<Vec<u8>> {
    cases(&vectors(), &["frames", "received", "frame_errors"]).map(bytes).collect()
}

pub(crate) fn transport() -> Vec<Vec<u8>> {
    let vectors = vectors();
    let packets = cases(&vectors, &["frames", "received", "frame_errors"])
        .filter(|case| case.get("ethernet").is_none());
    // After 20 bytes of IPv4 header and 8 of UDP.
    packets.filter_map(|case| bytes(case).get(28..).map(<[u8]>::to_vec)).collect()
}

pub(crate) fn keys() -> Vec<Vec<u8>> {
    cases(&vectors(), &["keys"]).map(|case| case["text"].as_str().expect("a key as text").into()).collect()
}
