//! Chooses the entry of a device's GID table for this collector.
//!
//! A RoCE device has several GIDs per address, one per type, at indices that change as addresses come and go. So the
//! entry is found by type and address, not by index.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use serde::{Serialize, Serializer};

/// Type of a GID: what the device sends for queue pairs that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidType {
    InfiniBand,
    /// RoCE version 1: its own EtherType, no IP.
    RoceV1,
    /// RoCE version 2: UDP port 4791. The only one that DTA uses.
    RoceV2,
    /// A type unknown to this version.
    Other(u32),
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GidType::InfiniBand => f.write_str("IB"),
            GidType::RoceV1 => f.write_str("RoCE v1"),
            GidType::RoceV2 => f.write_str("RoCE v2"),
            GidType::Other(n) => write!(f, "type {n}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Port of the device, from 1.
    pub port: u8,
    /// Index in the port's table.
    pub index: u32,
    /// The GID, in network byte order.
    pub gid: [u8; 16],
    pub kind: GidType,
    /// The network interface with the address, if any.
    pub interface: Option<String>,
}

impl GidEntry {
    /// The IP address that the GID stands for.
    pub fn ip_address(&self) -> IpAddr {
        Ipv6Addr::from(self.gid).to_canonical()
    }

    fn is_link_local(&self) -> bool {
        matches!(self.ip_address(), IpAddr::V6(ip) if ip.is_unicast_link_local())
    }
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {} index {}: {} ({})", self.port, self.index, self.ip_address(), self.kind)
    }
}

impl Serialize for GidEntry {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Which GID the operator asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GidWish {
    /// This address, else another of its family; a loopback address stands for any address, of its family if possible.
    pub address: Option<IpAddr>,
    /// This index and no other.
    pub index: Option<u32>,
}

impl GidWish {
    /// Whether the wish is for IPv4; `None` if any family will do.
    fn is_for_ipv4(&self) -> Option<bool> {
        self.address.filter(|ip| !ip.is_loopback()).map(|ip| ip.is_ipv4())
    }

    /// Whether an entry may be chosen when no index is given.
    fn admits(&self, entry: &GidEntry) -> bool {
        let ip = entry.ip_address();
        let is_of_family = self.is_for_ipv4().is_none_or(|is_ipv4| is_ipv4 == ip.is_ipv4());
        self.address == Some(ip) || !entry.is_link_local() && is_of_family
    }

    /// What admitted entries have in common, in words.
    fn wanted_address(&self) -> &'static str {
        match self.is_for_ipv4() {
            Some(true) => "an IPv4 address",
            Some(false) => "a global IPv6 address",
            None => "an IPv4 or a global IPv6 address",
        }
    }
}

/// Why no entry is usable, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GidError(String);

/// The entry of `table` (one port's) to use: the one at the requested index; else, among RoCE version 2 entries, the
/// one with the requested address, then one of its family, then an IPv4 one, then global IPv6; the lowest index among
/// equals. An entry of the other family is used only in place of a loopback address, and a link-local one only if it was
/// asked for: it exists before the operator assigns addresses.
pub fn choose_gid(table: &[GidEntry], wish: GidWish) -> Result<&GidEntry, GidError> {
    let present = || {
        let list: Vec<String> = table.iter().map(GidEntry::to_string).collect();
        if list.is_empty() { "none".to_owned() } else { list.join(", ") }
    };
    match wish.index {
        Some(index) => {
            let entry = table
                .iter()
                .find(|e| e.index == index)
                .ok_or_else(|| GidError(format!("there is no GID at index {index}; there are: {}", present())))?;
            if entry.kind != GidType::RoceV2 {
                return Err(GidError(format!(
                    "the GID at index {index} is of type {}, but it must be RoCE v2; there are: {}",
                    entry.kind,
                    present()
                )));
            }
            Ok(entry)
        }
        None => table
            .iter()
            .filter(|e| e.kind == GidType::RoceV2 && wish.admits(e))
            .min_by_key(|e| {
                let is_ipv6 = e.ip_address().is_ipv6();
                let is_other_family = wish.address.is_some_and(|ip| ip.is_ipv6() != is_ipv6);
                (wish.address != Some(e.ip_address()), is_other_family, is_ipv6, e.index)
            })
            .ok_or_else(|| {
                GidError(format!(
                    "it has no RoCE v2 GID of {} (there are: {}); give its network interface such an address, and make sure \
                     that RoCE v2 is on",
                    wish.wanted_address(),
                    present()
                ))
            }),
    }
}

/// The best RoCE version 2 entry of `table`, but none that is link-local, for peers of the other family than `entry`.
pub fn choose_gid_of_other_family<'a>(table: &'a [GidEntry], entry: &GidEntry) -> Option<&'a GidEntry> {
    let is_other_family = |e: &GidEntry| e.ip_address().is_ipv4() != entry.ip_address().is_ipv4();
    let fits = |e: &&GidEntry| e.kind == GidType::RoceV2 && !e.is_link_local() && is_other_family(e);
    table.iter().filter(fits).min_by_key(|e| e.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32, kind: GidType, address: &str) -> GidEntry {
        let gid = match address.parse().expect("an address") {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        GidEntry { port: 1, index, gid, kind, interface: None }
    }

    /// As a ConnectX port shows it: each address twice.
    fn table() -> Vec<GidEntry> {
        use GidType::{RoceV1, RoceV2};
        vec![
            entry(0, RoceV1, "fe80::1"),
            entry(1, RoceV2, "fe80::1"),
            entry(2, RoceV1, "2001:db8::7"),
            entry(3, RoceV2, "2001:db8::7"),
            entry(4, RoceV1, "10.9.0.1"),
            entry(5, RoceV2, "10.9.0.1"),
            entry(6, RoceV1, "10.8.0.1"),
            entry(7, RoceV2, "10.8.0.1"),
        ]
    }

    fn chosen(table: &[GidEntry], wish: GidWish) -> Result<u32, GidError> {
        choose_gid(table, wish).map(|e| e.index)
    }

    fn refused(table: &[GidEntry], wish: GidWish) -> String {
        choose_gid(table, wish).expect_err("none is usable").to_string()
    }

    #[test]
    fn ipv4_comes_before_ipv6() {
        assert_eq!(chosen(&table(), GidWish::default()), Ok(5));
    }

    #[test]
    fn the_configured_address_comes_first() {
        let wish = GidWish { address: Some("10.8.0.1".parse().expect("an address")), index: None };
        assert_eq!(chosen(&table(), wish), Ok(7));
    }

    #[test]
    fn an_address_that_is_not_there_falls_back() {
        let wish = GidWish { address: Some("10.7.0.1".parse().expect("an address")), index: None };
        assert_eq!(chosen(&table(), wish), Ok(5));
    }

    #[test]
    fn an_index_overrides_the_address() {
        let wish = GidWish { address: Some("10.8.0.1".parse().expect("an address")), index: Some(5) };
        assert_eq!(chosen(&table(), wish), Ok(5));
    }

    #[test]
    fn an_index_of_another_type_is_refused() {
        let wish = GidWish { address: None, index: Some(4) };
        let error = choose_gid(&table(), wish).expect_err("RoCE v1");
        assert!(error.to_string().starts_with("the GID at index 4 is of type RoCE v1"), "{error}");
        assert!(error.to_string().contains("index 7: 10.8.0.1 (RoCE v2)"), "{error}");
    }

    #[test]
    fn an_index_that_is_not_there_is_refused() {
        let wish = GidWish { address: None, index: Some(8) };
        assert!(refused(&table(), wish).starts_with("there is no GID at index 8"));
    }

    #[test]
    fn a_link_local_gid_is_taken_for_its_own_address_alone() {
        let wish = |ip: &str| GidWish { address: Some(ip.parse().expect("an address")), index: None };
        assert_eq!(chosen(&table()[..4], GidWish::default()), Ok(3));
        assert_eq!(chosen(&table()[..2], wish("fe80::1")), Ok(1));
        let start =
            "it has no RoCE v2 GID of an IPv4 or a global IPv6 address (there are: port 1 index 0: fe80::1";
        for of_any_family in [GidWish::default(), wish("::1"), wish("127.0.0.1")] {
            assert!(refused(&table()[..2], of_any_family).starts_with(start));
        }
        assert!(refused(&table()[..2], wish("2001:db8::8")).contains("GID of a global IPv6 address"));
    }

    #[test]
    fn an_address_is_not_replaced_by_one_of_the_other_family() {
        let wish = |ip: &str| GidWish { address: Some(ip.parse().expect("an address")), index: None };
        assert!(refused(&table()[..4], wish("10.9.0.1")).contains("GID of an IPv4 address"));
        assert!(refused(&table()[4..], wish("2001:db8::7")).contains("GID of a global IPv6 address"));
        assert_eq!(chosen(&table()[..4], wish("127.0.0.1")), Ok(3));
    }

    #[test]
    fn the_family_of_an_address_that_is_not_there_comes_first() {
        let wish = GidWish { address: Some("::1".parse().expect("an address")), index: None };
        assert_eq!(chosen(&table(), wish), Ok(3));
        assert_eq!(chosen(&table()[4..], wish), Ok(5));
    }

    #[test]
    fn peers_of_the_other_family_have_a_gid_of_theirs() {
        let table = table();
        let other = |index: usize| choose_gid_of_other_family(&table, &table[index]).map(|e| e.index);
        assert_eq!((other(5), other(7), other(3), other(1)), (Some(3), Some(3), Some(5), Some(5)));
        assert_eq!(choose_gid_of_other_family(&table[4..], &table[5]), None);
        assert_eq!(choose_gid_of_other_family(&table[..2], &table[5]), None);
    }

    #[test]
    fn without_roce_v2_there_is_none() {
        let table = [entry(0, GidType::RoceV1, "10.9.0.1"), entry(1, GidType::InfiniBand, "fe80::1")];
        assert!(refused(&table, GidWish::default()).contains("(there are: port 1"));
        assert!(refused(&[], GidWish::default()).contains("(there are: none)"));
    }
}
