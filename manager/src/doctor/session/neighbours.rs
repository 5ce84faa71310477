//! The kernel's neighbours and routes, from `/proc/net`.

use std::net::Ipv4Addr;
use std::path::Path;

use crate::doctor::read_trimmed;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    known: Vec<Neighbour>,
    routes: Vec<KernelRoute>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Neighbour {
    ip: Ipv4Addr,
    resolved: bool,
    interface: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct KernelRoute {
    interface: String,
    destination: u32,
    gateway: Ipv4Addr,
    mask: u32,
    metric: u32,
}

/// What the kernel knows about the path to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NextHop {
    None,
    /// By a neighbour whose Ethernet address is known.
    Known {
        interface: String,
    },
    /// By a neighbour that did not answer.
    Silent {
        by: Ipv4Addr,
        interface: String,
    },
    /// By a neighbour that the kernel has not resolved lately.
    Unasked {
        by: Ipv4Addr,
        interface: String,
    },
}

impl Neighbours {
    /// Reads `proc/net/arp` and `proc/net/route`. `root` is `/` except in tests.
    pub fn read(root: &Path) -> Self {
        let lines = |file: &str| read_trimmed(root.join("proc/net").join(file)).unwrap_or_default();
        Self {
            known: lines("arp").lines().skip(1).filter_map(neighbour).collect(),
            routes: lines("route").lines().skip(1).filter_map(parse_route).collect(),
        }
    }

    /// What is known about the path to `ip`.
    pub(super) fn next_hop(&self, ip: Ipv4Addr) -> NextHop {
        let fits = |route: &&KernelRoute| (u32::from(ip) ^ route.destination) & route.mask == 0;
        // The longest prefix wins, then the lowest metric.
        let best = self.routes.iter().filter(fits).min_by_key(|r| (std::cmp::Reverse(r.mask), r.metric));
        let Some(route) = best else { return NextHop::None };
        let by = if route.gateway.is_unspecified() { ip } else { route.gateway };
        let interface = route.interface.clone();
        match self.known.iter().find(|n| n.ip == by && n.interface == interface) {
            Some(known) if known.resolved => NextHop::Known { interface },
            Some(_) => NextHop::Silent { by, interface },
            None => NextHop::Unasked { by, interface },
        }
    }
}

/// `10.9.0.2 0x1 0x2 02:00:00:00:00:02 * vrx`: address, hardware type, flags, Ethernet address,
/// mask, interface.
fn neighbour(line: &str) -> Option<Neighbour> {
    /// `ATF_COM` of `<net/if_arp.h>`: the Ethernet address is known.
    const COMPLETE: u32 = 2;
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [ip, _, flags, _, _, interface] = fields[..] else { return None };
    let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?;
    Some(Neighbour { ip: ip.parse().ok()?, resolved: flags & COMPLETE != 0, interface: interface.to_owned() })
}

/// `vrx 0000090A 00000000 0001 0 0 0 00FFFFFF 0 0 0`: interface, destination, gateway, flags, two
/// counts, metric, mask, …
fn parse_route(line: &str) -> Option<KernelRoute> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (interface, number) = (fields.first()?, |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok());
    // Addresses are printed as numbers in the host's byte order.
    let address = |at| Some(u32::from_be_bytes(number(at)?.to_ne_bytes()));
    Some(KernelRoute {
        interface: (*interface).to_owned(),
        destination: address(1)?,
        gateway: address(2)?.into(),
        metric: fields.get(6)?.parse().ok()?,
        mask: address(7)?,
    })
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::super::super::test_machine::TestMachine;
    use super::*;

    const ARP: &str = "IP address       HW type     Flags       HW address            Mask     Device\n\
        10.9.0.2         0x1         0x6         02:00:00:00:00:02     *        vrx\n\
        10.9.0.3         0x1         0x0         00:00:00:00:00:00     *        vrx\n\
        192.0.2.1        0x1         0x2         02:00:00:00:00:09     *        eth0\n";
    const ROUTES: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
        vrx\t0000090A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
        eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";

    #[test]
    fn the_way_to_an_address_is_found() {
        let tree = TestMachine::new(&[("proc/net/arp", ARP), ("proc/net/route", ROUTES)]);
        let neighbours = Neighbours::read(tree.root_path());
        let next_hop = |ip: [u8; 4]| neighbours.next_hop(ip.into());
        assert_eq!(next_hop([10, 9, 0, 2]), NextHop::Known { interface: "vrx".into() });
        let silent = NextHop::Silent { by: [10, 9, 0, 3].into(), interface: "vrx".into() };
        assert_eq!(next_hop([10, 9, 0, 3]), silent);
        let unasked = NextHop::Unasked { by: [10, 9, 0, 4].into(), interface: "vrx".into() };
        assert_eq!(next_hop([10, 9, 0, 4]), unasked);
        assert_eq!(next_hop([203, 0, 113, 5]), NextHop::Known { interface: "eth0".into() }, "by the gateway");
        let nothing = Neighbours::read(TestMachine::new(&[]).root_path());
        assert_eq!(nothing.next_hop([10, 9, 0, 2].into()), NextHop::None);
    }

    #[test]
    fn other_lines_are_left_out() {
        let tree =
            TestMachine::new(&[("proc/net/arp", "head\nnonsense\n"), ("proc/net/route", "head\nvrx zz\n")]);
        assert_eq!(Neighbours::read(tree.root_path()), Neighbours::default());
    }
}
