//! The programs for Tofino: the profiles of the translator, how each names what it writes (`tna/types.p4`), and the reporter.

use super::read_assembly;

/// The folder in `compiled/` of the profile with postcards.
pub(crate) const POSTCARDS: &str = "tna";
pub(crate) const SKETCHES: &str = "tna-sketches";
pub(crate) const LONG_BATCHES: &str = "tna-batches";
/// All profiles of the translator.
pub(crate) const ALL: [&str; 3] = [POSTCARDS, SKETCHES, LONG_BATCHES];

/// The program of the reporter.
pub(crate) const REPORTER: &str = "reporter";

/// Fields for the words of an element, 4 bytes each, in their order. Those behind the eighth are in long batches alone.
pub(crate) const WORDS: [&str; 16] = [
    "hdr.sum.word",
    "hdr.w0.word",
    "hdr.w1.word",
    "hdr.w2.word",
    "hdr.w3.word",
    "hdr.w4.word",
    "hdr.w5.word",
    "hdr.w6.word",
    "hdr.w7.word",
    "hdr.w8.word",
    "hdr.w9.word",
    "hdr.w10.word",
    "hdr.w11.word",
    "hdr.w12.word",
    "hdr.w13.word",
    "hdr.w14.word",
];

/// The assembly of a profile, or of the reporter.
///
/// # Panics
/// It cannot be read.
pub(crate) fn read_profile_assembly(profile: &str) -> String {
    match profile {
        REPORTER => read_assembly("../reporter-p4/compiled/tna/reporter.bfa.gz"),
        _ => read_assembly(&format!("compiled/{profile}/translator.bfa.gz")),
    }
}

/// The words of an element of `len` bytes. With long batches its last two are always the same fields.
///
/// # Panics
/// No profile has so long an element.
pub(crate) fn words_of_element(profile: &str, len: usize) -> Vec<&'static str> {
    match profile {
        LONG_BATCHES => WORDS[..len / 4 - 2].iter().chain(&WORDS[14..]).copied().collect(),
        _ => WORDS[..len / 4].to_vec(),
    }
}
