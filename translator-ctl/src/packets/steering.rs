//! The kernel's part of steering: which worker's socket receives a datagram.
//!
//! It delivers each report to the worker with its reporter's window, which avoids a handover. Anything it
//! does not understand goes to any worker, which hands it over. It delivers flow exports by their sender, so
//! only those that come through an interface's queues are handed over.

use std::net::IpAddr;

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

/// Knuth's multiplier for hashing (The Art of Computer Programming, 6.4): addresses that differ in any bits are spread.
const GOLDEN: u32 = 0x9e37_79b1;

/// Sends all datagrams of one source address to one of these workers, chosen by the upper half of a product:
/// the address (for IPv6, the sum of its four words) times a constant.
pub fn exporter_steering(workers: &[usize]) -> Vec<I> {
    let mut program = vec![
        I::load_network_byte(0),
        I::keep_bits(0xf0),
        // The ten instructions for IPv6, and the jump behind them.
        I::skip_unless(0x60, 11),
        I::load_network_word(8),
        I::remember(),
        I::load_network_word(12),
        I::add_remembered(),
        I::remember(),
        I::load_network_word(16),
        I::add_remembered(),
        I::remember(),
        I::load_network_word(20),
        I::add_remembered(),
        I::skip_always(1),
        I::load_source_address(),
        I::multiply(GOLDEN),
        I::shift_right(16),
        I::modulo(workers.len().max(1) as u32),
    ];
    for (number, worker) in (0..).zip(workers) {
        program.extend([I::skip_unless(number, 1), I::choose_socket_number(*worker as u32)]);
    }
    // Not reached: the remainder is one of these numbers.
    program.push(I::choose_socket());
    program
}

/// The worker to which [`exporter_steering`] sends the datagrams of an address; the first if there is none.
pub fn exporter_worker(address: IpAddr, workers: &[usize]) -> usize {
    let word = match address.to_canonical() {
        IpAddr::V4(address) => u32::from(address),
        IpAddr::V6(address) => {
            let octets = address.octets();
            let words = octets.as_chunks().0.iter().map(|word| u32::from_be_bytes(*word));
            words.fold(0, u32::wrapping_add)
        }
    };
    let hash = word.wrapping_mul(GOLDEN) >> 16;
    workers.get(hash as usize % workers.len().max(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
    use std::time::Duration;

    use dta_dataplane::workers::{judge_of_id, judge_of_source};
    use dta_link::{Link, UdpConfig, UdpLink, UdpListener};
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
            // The last is too short to judge.
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

    /// From addresses of loopback and, at the same port, of IPv6: each exporter's datagrams come to one of
    /// the workers that take any, and each of these gets some, though all addresses end alike.
    #[test]
    fn the_kernel_gives_all_of_an_exporter_to_one_of_these_workers() {
        const WORKERS: usize = 4;
        for some in [&[0, 1, 2, 3][..], &[1, 3], &[2]] {
            let (all, chosen) = (exporter_steering(&[0, 1, 2, 3]), exporter_steering(some));
            let mut group = UdpListener::open_group("[::]:0".parse().unwrap(), WORKERS, &all).unwrap();
            group[0].replace_choice(&chosen).unwrap();
            let port = group[0].local_addr().port();
            let v4 = |last: u8| {
                (SocketAddr::from(([127, 0, last, 1], 0)), SocketAddr::from(([127, 0, 0, 1], port)))
            };
            let v6 =
                (SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 0)), format!("[::1]:{port}").parse().unwrap());
            let pairs: Vec<_> = (0..40).map(v4).chain([v6]).collect();
            for (from, to) in &pairs {
                // From two ports.
                for _ in 0..2 {
                    UdpSocket::bind(from).unwrap().send_to(&[7; 9], to).unwrap();
                }
            }
            let mut batch = PacketBatch::default();
            let mut came: BTreeMap<IpAddr, BTreeMap<usize, usize>> = BTreeMap::new();
            let mut count = 0;
            while count < 2 * pairs.len() {
                for (worker, link) in group.iter_mut().enumerate() {
                    count += link.recv(&mut batch, Some(Duration::from_millis(10))).unwrap();
                    for index in 0..batch.len() {
                        let (from, _) = batch.source_and_payload(index).unwrap();
                        *came.entry(from.ip()).or_default().entry(worker).or_default() += 1;
                    }
                }
            }
            assert_eq!(came.len(), pairs.len());
            let is_chosen = |(address, at): (&IpAddr, &BTreeMap<usize, usize>)| {
                at.iter().eq([(&exporter_worker(*address, some), &2)])
            };
            assert!(came.iter().all(is_chosen), "{came:?}");
            let used: BTreeSet<usize> = came.values().flat_map(BTreeMap::keys).copied().collect();
            assert!(used.iter().eq(some), "{some:?}: {used:?}");
        }
    }
}
