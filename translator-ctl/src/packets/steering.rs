//! The kernel's part of steering: which worker's socket receives a datagram.
//!
//! It delivers each report to the worker with its reporter's window, which avoids a handover. Anything it
//! does not understand goes to any worker, which hands it over.

use dta_link::udp::Instruction as I;

/// Offset of the version in a report (low 2 bits).
const VERSION: u32 = 2;
/// Offset of a version-1 report's reporter.
const REPORTER: u32 = 6;

/// The rule of `dta_dataplane::workers` as a BPF program on UDP payloads: the reporter of a version-1 report,
/// otherwise the source address, modulo the number of workers. Datagrams that are too short go to the first.
pub fn steering_program(workers: usize) -> [I; 8] {
    [
        I::load_byte(VERSION),
        I::keep_bits(3),
        I::skip_unless(1, 2),
        I::load_half(REPORTER),
        I::skip_always(1),
        I::load_source_address(),
        I::modulo(workers as u32),
        I::choose_socket(),
    ]
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};
    use std::time::Duration;

    use dta_dataplane::workers::{judge_of_id, judge_of_source};
    use dta_link::{Link, UdpConfig, UdpLink};
    use dta_proto::batch::PacketBatch;

    use super::*;

    #[test]
    fn the_kernel_gives_each_report_to_the_worker_that_judges_it() {
        const WORKERS: usize = 3;
        let at = |last| SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, last), 0).into();
        let config = UdpConfig::for_reports(at(1), false);
        let mut group = UdpLink::open_group(&config, WORKERS, &steering_program(WORKERS)).unwrap();
        let (to, mut batch) = (group[0].local_addr(), PacketBatch::default());
        let mut expected = [0; WORKERS];
        for n in 0..30u16 {
            let mut sender = UdpLink::open(&UdpConfig::for_reports(at(2 + n as u8), false)).unwrap();
            let from = sender.local_addr();
            let mut version1 = [0; 40];
            version1[2] = 1;
            version1[6..8].copy_from_slice(&n.wrapping_mul(7_919).to_be_bytes());
            expected[judge_of_id(n.wrapping_mul(7_919), WORKERS)] += 1;
            expected[judge_of_source(*from.ip(), WORKERS)] += 1;
            // The last is too short to tell.
            expected[0] += 1;
            for payload in [&version1[..], &[1; 3][..2], &[1, 0, 0, 0, 0, 0, 0, 0]] {
                batch.push_datagram(from, to, payload, 0).unwrap();
                sender.send(&mut batch).unwrap();
            }
        }
        for (worker, link) in group.iter_mut().enumerate() {
            let mut got = 0;
            while got < expected[worker] {
                let count = link.recv(&mut batch, Some(Duration::from_secs(30))).unwrap();
                assert_ne!(count, 0, "worker {worker} got {got} of {}", expected[worker]);
                got += count;
            }
            assert_eq!((got, link.recv(&mut batch, Some(Duration::ZERO)).unwrap()), (expected[worker], 0));
        }
    }
}
