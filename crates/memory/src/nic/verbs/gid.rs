//! Chooses the entry of a device's GID table that stands for this collector.
//!
//! A RoCE device has several GIDs per address, one per type, at indices that change when addresses come and go: so
//! the entry is found by type and address, not by index.

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

    /// Lower is better: IPv4, then global IPv6, then link-local.
    fn preference_rank(&self) -> u8 {
        match self.ip_address() {
            IpAddr::V4(_) => 0,
            IpAddr::V6(ip) if !ip.is_unicast_link_local() => 1,
            IpAddr::V6(_) => 2,
        }
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
    pub address: Option<IpAddr>,
    /// This index and no other.
    pub index: Option<u32>,
}

/// Why no entry is usable, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GidError(String);

/// The entry of `table` (one port's) to use: the one at the requested index; else among RoCE version 2 entries the
/// one of the requested address, then an IPv4 one, then global IPv6, then link-local; the lowest index among equals.
/// An IPv6 entry is then refused, with that reason.
pub fn choose_gid(table: &[GidEntry], wish: GidWish) -> Result<&GidEntry, GidError> {
    let present = || {
        let list: Vec<String> = table.iter().map(GidEntry::to_string).collect();
        if list.is_empty() { "none".to_owned() } else { list.join(", ") }
    };
    let entry = match wish.index {
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
            entry
        }
        None => table
            .iter()
            .filter(|e| e.kind == GidType::RoceV2)
            .min_by_key(|e| (wish.address != Some(e.ip_address()), e.preference_rank(), e.index))
            .ok_or_else(|| {
                GidError(format!(
                    "it has no RoCE v2 GID (there are: {}); give its network interface an IPv4 address, and make sure that \
                     RoCE v2 is on",
                    present()
                ))
            })?,
    };
    match entry.ip_address() {
        IpAddr::V4(_) => Ok(entry),
        IpAddr::V6(_) => Err(GidError(format!(
            "its best GID, {entry}, is IPv6, and this version supports only RoCEv2 over IPv4; give its network interface an \
             IPv4 address"
        ))),
    }
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
    fn global_ipv6_comes_before_link_local_and_is_refused_by_name() {
        let error = refused(&table()[..4], GidWish::default());
        assert!(error.contains("2001:db8::7") && error.contains("is IPv6"), "{error}");
        let error = refused(&table()[..2], GidWish::default());
        assert!(error.contains("fe80::1") && error.contains("is IPv6"), "{error}");
    }

    #[test]
    fn without_roce_v2_there_is_none() {
        let table = [entry(0, GidType::RoceV1, "10.9.0.1"), entry(1, GidType::InfiniBand, "fe80::1")];
        assert!(refused(&table, GidWish::default()).starts_with("it has no RoCE v2 GID (there are: port 1"));
        assert!(refused(&[], GidWish::default()).starts_with("it has no RoCE v2 GID (there are: none)"));
    }
}
