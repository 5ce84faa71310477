//! Which worker handles a report.

use std::net::Ipv4Addr;

use dta_proto::layout::hash;
use dta_proto::wire::dta::{Address, DtaBody, DtaReport, Version};

pub const MAX_WORKERS: usize = 16;

/// The worker with the window of a version-1 reporter: its id modulo the number of workers, as in the eBPF
/// program on the report sockets.
#[inline]
pub fn judge_of_id(reporter: u16, workers: usize) -> usize {
    usize::from(reporter) % workers
}

/// The worker with the window of version-0 reports from an address: the address, as a number, modulo the
/// number of workers, as in the eBPF program.
#[inline]
pub fn judge_of_source(source: Ipv4Addr, workers: usize) -> usize {
    u32::from(source) as usize % workers
}

#[inline]
pub(super) fn judging_worker(report: &DtaReport<'_>, source: Ipv4Addr, workers: usize) -> usize {
    match report.version {
        Version::V1 => judge_of_id(report.reporter, workers),
        Version::V0 => judge_of_source(source, workers),
    }
}

/// The worker that executes a report. All stores have the same rule, so a version-0 report's store need not
/// be known.
#[inline]
pub(super) fn executing_worker(body: &DtaBody<'_>, workers: usize) -> usize {
    match body.store_address() {
        // The low half: the top byte says which collector has the key.
        Address::Key(key) => ((hash::key_hash(key) & 0xffff) as usize * workers) >> 16,
        Address::List(number) | Address::Column(number) => number as usize % workers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::key::Key;

    #[test]
    fn keys_lists_and_columns_are_spread_evenly() {
        for workers in [1, 2, 3, MAX_WORKERS] {
            let mut of = vec![0usize; workers];
            for n in 0..48_000u32 {
                let mut key = Key([0; 16]);
                key.0[..4].copy_from_slice(&n.to_be_bytes());
                of[executing_worker(&DtaBody::KeyWrite { redundancy: 0, key, value: &[0; 4] }, workers)] += 1;
                of[executing_worker(&DtaBody::Append { list: n, value: &[0; 4] }, workers)] += 1;
                of[executing_worker(
                    &DtaBody::SketchMerge { epoch: 1, column: n, cells: &[0; 4] },
                    workers,
                )] += 1;
            }
            let even = 3 * 48_000 / workers;
            assert!(of.iter().all(|n| n.abs_diff(even) < even / 10), "{of:?}");
        }
    }

    #[test]
    fn all_that_is_said_of_one_key_goes_to_one_worker() {
        let key = Key([7; 16]);
        let bodies = [
            DtaBody::KeyWrite { redundancy: 1, key, value: &[1; 60] },
            DtaBody::KeyIncrement { redundancy: 0, key, delta: 5 },
            DtaBody::Postcard { key, hop: 3, path_length: 5, value: 9 },
        ];
        let at: Vec<_> = bodies.iter().map(|body| executing_worker(body, 5)).collect();
        assert!(at.windows(2).all(|two| two[0] == two[1]), "{at:?}");
    }
}
