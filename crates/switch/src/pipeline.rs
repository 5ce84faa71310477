//! The programs that P4 switches run, and their differences as far as the control plane needs them.

use super::bfrt_json::BfrtInfo;
use super::counters::SwitchCounts;
use super::reporter;
use super::schema::Used;
use super::tofino::{self, Profile};
use super::translator;

pub struct P4Pipeline {
    /// Its name: of its files, and on a Tofino.
    pub name: &'static str,
    /// What the control plane uses of it on bmv2.
    pub used: &'static Used,
    /// Tables whose default action the control plane sets.
    pub defaults: &'static [&'static str],
    /// The compiled program for bmv2: its P4Info in binary form, and what the switch runs.
    pub compiled: (&'static [u8], &'static [u8]),
    pub tofino: OnTofino,
}

/// What is different about a program on Tofino.
pub struct OnTofino {
    /// What the control plane uses of a profile.
    pub used: fn(Profile) -> &'static Used,
    pub registers: fn(Profile) -> &'static [&'static str],
    /// Whether a switch runs a profile; what to do if not.
    pub check_profile: fn(Profile, &BfrtInfo) -> Result<(), String>,
    /// Renames counters to their names on bmv2. The number is what the register [`tofino::NACKED`] counted.
    pub name_counts: fn(&mut SwitchCounts, u64),
}

/// `translator-p4`.
pub static TRANSLATOR: P4Pipeline = P4Pipeline {
    name: "translator",
    used: &translator::USED,
    defaults: &["reporter"],
    compiled: (
        include_bytes!("../../../translator-p4/compiled/v1model/translator.p4info.bin"),
        include_bytes!("../../../translator-p4/compiled/v1model/translator.json"),
    ),
    tofino: OnTofino {
        used: tofino::required_schema,
        registers: tofino::registers_of,
        check_profile: tofino::check_profile,
        name_counts: tofino::name_counts,
    },
};

/// `reporter-p4`.
pub static REPORTER: P4Pipeline = P4Pipeline {
    name: "reporter",
    used: &reporter::tables::USED,
    defaults: &["settings"],
    compiled: (
        include_bytes!("../../../reporter-p4/compiled/v1model/reporter.p4info.bin"),
        include_bytes!("../../../reporter-p4/compiled/v1model/reporter.json"),
    ),
    tofino: OnTofino {
        used: |_| &reporter::tofino::USED,
        registers: |_| &[],
        check_profile: |_, _| Ok(()),
        name_counts: |_, _| {},
    },
};
