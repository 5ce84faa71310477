//! The programs that P4 switches run, as far as the control plane has to know them apart.

use super::bfrt_json::BfrtInfo;
use super::counters::Counts;
use super::reporter;
use super::schema::Used;
use super::{tofino, translator};
use crate::config::Profile;

/// A P4 program.
pub struct Pipeline {
    /// Its name: of its files, and by which a Tofino knows it.
    pub name: &'static str,
    /// What is used of it on bmv2.
    pub used: &'static Used,
    /// Tables of which the control plane sets what they do where no row fits.
    pub defaults: &'static [&'static str],
    /// What the compiler made of it for bmv2: its P4Info in binary form, and what the switch runs.
    pub compiled: (&'static [u8], &'static [u8]),
    /// What is otherwise on Tofino.
    pub tofino: OnTofino,
}

/// What a program has in another way on Tofino.
pub struct OnTofino {
    /// What is used of a profile of it.
    pub used: fn(Profile) -> &'static Used,
    /// Registers that have to be there.
    pub registers: fn(Profile) -> &'static [&'static str],
    /// Whether a switch runs a profile of it; what to do where not.
    pub check_profile: fn(Profile, &BfrtInfo) -> Result<(), String>,
    /// Brings counters under the names that they have on bmv2. The number is what the register
    /// [`tofino::NACKED`] counted.
    pub name_counts: fn(&mut Counts, u64),
}

/// `translator-p4`.
pub static TRANSLATOR: Pipeline = Pipeline {
    name: "translator",
    used: &translator::USED,
    defaults: &["reporter"],
    compiled: (
        include_bytes!("../../../../translator-p4/compiled/v1model/translator.p4info.bin"),
        include_bytes!("../../../../translator-p4/compiled/v1model/translator.json"),
    ),
    tofino: OnTofino {
        used: tofino::used_of,
        registers: tofino::registers_of,
        check_profile: tofino::check_profile,
        name_counts: tofino::name_counts,
    },
};

/// `reporter-p4`.
pub static REPORTER: Pipeline = Pipeline {
    name: "reporter",
    used: &reporter::tables::USED,
    defaults: &["settings"],
    compiled: (
        include_bytes!("../../../../reporter-p4/compiled/v1model/reporter.p4info.bin"),
        include_bytes!("../../../../reporter-p4/compiled/v1model/reporter.json"),
    ),
    tofino: OnTofino {
        used: |_| &reporter::tofino::USED,
        registers: |_| &[],
        check_profile: |_, _| Ok(()),
        name_counts: |_, _| {},
    },
};
