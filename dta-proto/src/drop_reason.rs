//! Why packets were dropped: a number, and names for it. An sFlow number means the same whoever sends it; what an INT
//! number means depends on the sender.
//!
//! Sources: `p4src/shared/define.p4` of fabric-tna 1.0.0 and 1.1.0 (`IntDropReason_t`), and, for switches that follow the
//! Telemetry Report specifications, the list that these refer to: `p4src/includes/drop_reason_codes.h` of p4lang/switch.
//! The sFlow names are from `sflow_drops.txt` of sflow.org.

use core::fmt;
use core::str::FromStr;

/// Marks an sFlow number.
const SFLOW_BIT: u32 = 1 << 31;

/// Why a packet was dropped: the number at the source's full width, and whose number it is.
///
/// In keys and entries it takes four bytes, the low byte of the number first: an INT reason is `reason 8, 0 24`, as
/// switches write it. The default is INT's 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DropReason(u32);

impl DropReason {
    /// A reason from an INT report.
    pub const fn from_int(number: u8) -> DropReason {
        DropReason(number as u32)
    }

    /// A reason from an sFlow notice; sFlow numbers are below 2^31.
    pub const fn from_sflow(number: u32) -> DropReason {
        DropReason(number | SFLOW_BIT)
    }

    /// The number that the source gave.
    pub const fn number(self) -> u32 {
        self.0 & !SFLOW_BIT
    }

    /// Whether the number is sFlow's.
    pub const fn is_sflow(self) -> bool {
        self.0 & SFLOW_BIT != 0
    }

    /// Who defines the number: `int` or `sflow`.
    pub const fn source_name(self) -> &'static str {
        if self.is_sflow() { "sflow" } else { "int" }
    }

    /// Number and source in one word, for [`DropReason::from_bits`].
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// The reason that [`DropReason::to_bits`] made this word from.
    pub const fn from_bits(bits: u32) -> DropReason {
        DropReason(bits)
    }

    /// Its bytes in keys and entries.
    pub const fn to_bytes(self) -> [u8; 4] {
        self.0.rotate_right(8).to_be_bytes()
    }

    /// The reason with these bytes.
    pub const fn from_bytes(bytes: [u8; 4]) -> DropReason {
        DropReason(u32::from_be_bytes(bytes).rotate_left(8))
    }
}

impl fmt::Display for DropReason {
    /// As `71`, or `sflow 266`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_sflow() {
            f.write_str("sflow ")?;
        }
        write!(f, "{}", self.number())
    }
}

impl serde::Serialize for DropReason {
    /// The number alone: [`DropReason::source_name`] belongs beside it.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.number())
    }
}

crate::named! {
    /// Numberings of drop reasons in INT reports.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum DropReasonTable {
        /// SD-Fabric with fabric-tna 1.1 or later.
        #[default]
        FabricTna11: "fabric-tna-1.1",
        /// SD-Fabric with fabric-tna 1.0.
        FabricTna10: "fabric-tna-1.0",
        /// The list of p4lang/switch, to which the specifications refer.
        SwitchP4: "switch.p4",
        /// Unknown: no number has a name.
        None: "none",
    }
}

/// In both versions of fabric-tna.
const FABRIC_TNA: &[(u32, &str)] = &[
    (0, "unknown"),
    (26, "ip-ttl-zero"),
    (29, "ip-miss"),
    (55, "ingress-port-vlan-mapping-miss"),
    (71, "traffic-manager"),
    (80, "acl-deny"),
    (89, "bridging-miss"),
    (128, "next-id-miss"),
    (129, "mpls-miss"),
    (130, "egress-next-miss"),
    (131, "mpls-ttl-zero"),
    (150, "upf-uplink-recirculation-deny"),
    (160, "ingress-qos-meter"),
];

const FABRIC_TNA_10: &[(u32, &str)] =
    &[(132, "upf-downlink-pdr-miss"), (133, "upf-uplink-pdr-miss"), (134, "upf-far-miss")];

const FABRIC_TNA_11: &[(u32, &str)] = &[
    (132, "upf-downlink-session-miss"),
    (133, "upf-downlink-session-drop"),
    (134, "upf-uplink-session-miss"),
    (135, "upf-uplink-session-drop"),
    (136, "upf-downlink-session-drop-buffer"),
    (137, "upf-downlink-termination-miss"),
    (138, "upf-downlink-termination-drop"),
    (139, "upf-uplink-termination-miss"),
    (140, "upf-uplink-termination-drop"),
    (170, "routing-ipv4-drop"),
    (171, "routing-ipv6-drop"),
];

const SWITCH_P4: &[(u32, &str)] = &[
    (0, "unknown"),
    (10, "outer-source-mac-zero"),
    (11, "outer-source-mac-multicast"),
    (12, "outer-destination-mac-zero"),
    (13, "outer-ethernet-miss"),
    (14, "source-mac-zero"),
    (15, "source-mac-multicast"),
    (16, "destination-mac-zero"),
    (25, "outer-ip-version-invalid"),
    (26, "outer-ip-ttl-zero"),
    (27, "outer-ip-source-multicast"),
    (28, "outer-ip-source-loopback"),
    (29, "outer-ip-miss"),
    (30, "ip-version-invalid"),
    (31, "ip-ttl-zero"),
    (32, "ip-source-multicast"),
    (33, "ip-source-loopback"),
    (40, "port-vlan-mapping-miss"),
    (41, "stp-state-learning"),
    (42, "stp-state-blocking"),
    (43, "same-interface"),
    (44, "multicast-snooping-enabled"),
    (50, "mtu-check-fail"),
    (51, "traffic-manager"),
    (60, "acl-deny"),
    (61, "racl-deny"),
    (62, "urpf-check-fail"),
    (63, "ipsg-miss"),
    (64, "interface"),
];

/// Codes of ICMP's "destination unreachable", then sFlow's own.
const SFLOW: &[(u32, &str)] = &[
    (0, "net-unreachable"),
    (1, "host-unreachable"),
    (2, "protocol-unreachable"),
    (3, "port-unreachable"),
    (4, "fragmentation-needed"),
    (5, "source-route-failed"),
    (6, "destination-net-unknown"),
    (7, "destination-host-unknown"),
    (8, "source-host-isolated"),
    (9, "destination-net-prohibited"),
    (10, "destination-host-prohibited"),
    (11, "destination-net-tos-unreachable"),
    (12, "destination-host-tos-unreachable"),
    (13, "communication-prohibited"),
    (14, "host-precedence-violation"),
    (15, "precedence-cutoff"),
    (256, "unknown"),
    (257, "ttl-exceeded"),
    (258, "acl"),
    (259, "no-buffer-space"),
    (260, "red"),
    (261, "traffic-shaping"),
    (262, "packet-too-big"),
    (263, "source-mac-multicast"),
    (264, "vlan-tag-mismatch"),
    (265, "ingress-vlan-filter"),
    (266, "ingress-spanning-tree-filter"),
    (267, "port-list-is-empty"),
    (268, "port-loopback-filter"),
    (269, "blackhole-route"),
    (270, "non-ip"),
    (271, "unicast-destination-ip-over-multicast-mac"),
    (272, "destination-ip-loopback"),
    (273, "source-ip-multicast"),
    (274, "source-ip-loopback"),
    (275, "ip-header-corrupted"),
    (276, "source-ip-limited-broadcast"),
    (277, "ipv6-multicast-reserved-scope"),
    (278, "ipv6-multicast-interface-local-scope"),
    (279, "unresolved-neighbour"),
    (280, "multicast-reverse-path-forwarding"),
    (281, "non-routable-packet"),
    (282, "decapsulation-error"),
    (283, "overlay-source-mac-multicast"),
    (284, "unknown-layer-2"),
    (285, "unknown-layer-3"),
    (286, "unknown-layer-3-exception"),
    (287, "unknown-buffer"),
    (288, "unknown-tunnel"),
    (289, "unknown-layer-4"),
    (290, "source-ip-unspecified"),
    (291, "mlag-port-isolation"),
    (292, "blackhole-neighbour"),
    (293, "source-mac-is-destination-mac"),
    (294, "destination-mac-reserved"),
    (295, "source-ip-class-e"),
    (296, "multicast-mac-mismatch"),
    (297, "source-ip-is-destination-ip"),
    (298, "destination-ip-local-network"),
    (299, "destination-ip-link-local"),
    (300, "overlay-source-mac-is-destination-mac"),
    (301, "egress-vlan-filter"),
    (302, "unicast-reverse-path-forwarding"),
    (303, "split-horizon"),
];

fn find_name(table: &[(u32, &'static str)], wanted: u32) -> Option<&'static str> {
    table.iter().find(|(number, _)| *number == wanted).map(|(_, name)| *name)
}

impl DropReasonTable {
    /// What all versions have in common, and what this one adds.
    fn parts(self) -> [&'static [(u32, &'static str)]; 2] {
        match self {
            DropReasonTable::FabricTna10 => [FABRIC_TNA, FABRIC_TNA_10],
            DropReasonTable::FabricTna11 => [FABRIC_TNA, FABRIC_TNA_11],
            DropReasonTable::SwitchP4 => [SWITCH_P4, &[]],
            DropReasonTable::None => [&[], &[]],
        }
    }

    /// The name of a reason, from this table if it is an INT number; `None` if unknown: it is then shown as a number.
    pub fn reason_name(self, reason: DropReason) -> Option<&'static str> {
        if reason.is_sflow() && self != DropReasonTable::None {
            return find_name(SFLOW, reason.number());
        }
        self.parts().into_iter().find_map(|part| find_name(part, reason.number()))
    }
}

/// The text does not name a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a table of drop reasons: write fabric-tna-1.1, fabric-tna-1.0, switch.p4 or none; sFlow's reasons need no table"
)]
pub struct TableError(String);

impl FromStr for DropReasonTable {
    type Err = TableError;

    fn from_str(text: &str) -> Result<DropReasonTable, TableError> {
        DropReasonTable::from_name(text).ok_or_else(|| TableError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_number_has_the_name_that_its_sender_gives_it() {
        let names =
            |reason| DropReasonTable::ALL.map(|table| table.reason_name(DropReason::from_int(reason)));
        assert_eq!(names(71), [Some("traffic-manager"), Some("traffic-manager"), None, None]);
        assert_eq!(names(133), [Some("upf-downlink-session-drop"), Some("upf-uplink-pdr-miss"), None, None]);
        assert_eq!(names(140), [Some("upf-uplink-termination-drop"), None, None, None]);
        assert_eq!(names(160), [Some("ingress-qos-meter"), Some("ingress-qos-meter"), None, None]);
        let of_26 = ["ip-ttl-zero", "ip-ttl-zero", "outer-ip-ttl-zero"];
        assert_eq!(names(26), [&of_26.map(Some)[..], &[None]].concat()[..]);
        assert_eq!(names(200), [None; 4]);
        // Reasons of only one fabric-tna version, or named differently in the other.
        let both = [DropReasonTable::FabricTna11, DropReasonTable::FabricTna10];
        let differ = |reason: &u8| {
            let [one, other] = both.map(|table| table.reason_name(DropReason::from_int(*reason)));
            one != other
        };
        let differing: Vec<u8> = (0..=u8::MAX).filter(differ).collect();
        assert_eq!(differing, [132, 133, 134, 135, 136, 137, 138, 139, 140, 170, 171]);
    }

    #[test]
    fn a_reason_of_sflow_is_named_by_its_own_list_whatever_the_table() {
        for (number, name) in [
            (0, Some("net-unreachable")),
            (15, Some("precedence-cutoff")),
            (16, None),
            (71, None),
            (256, Some("unknown")),
            (258, Some("acl")),
            (266, Some("ingress-spanning-tree-filter")),
            (269, Some("blackhole-route")),
            (295, Some("source-ip-class-e")),
            (303, Some("split-horizon")),
            (304, None),
        ] {
            let reason = DropReason::from_sflow(number);
            let names = DropReasonTable::ALL.map(|table| table.reason_name(reason));
            assert_eq!(names, [name, name, name, None], "{number}");
        }
    }

    #[test]
    fn bytes_of_ints_reasons_are_those_that_switches_write_and_no_others_are_equal_to_them() {
        assert_eq!(DropReason::from_int(71).to_bytes(), [71, 0, 0, 0]);
        assert_eq!(DropReason::from_sflow(266).to_bytes(), [0x0a, 0x80, 0, 1]);
        for (reason, number, text) in [
            (DropReason::from_int(0), 0, "0"),
            (DropReason::from_int(255), 255, "255"),
            (DropReason::from_sflow(0), 0, "sflow 0"),
            (DropReason::from_sflow(71), 71, "sflow 71"),
            (DropReason::from_sflow(u32::MAX >> 1), u32::MAX >> 1, "sflow 2147483647"),
        ] {
            assert_eq!((reason.number(), reason.to_string().as_str()), (number, text));
            assert_eq!(DropReason::from_bytes(reason.to_bytes()), reason);
            assert_eq!(DropReason::from_bits(reason.to_bits()), reason);
        }
    }

    #[test]
    fn no_number_and_no_name_stands_twice_in_a_table() {
        let tables = DropReasonTable::ALL.map(|table| table.parts().concat());
        for all in tables.iter().map(|table| &table[..]).chain([SFLOW]) {
            let numbers: BTreeSet<_> = all.iter().map(|(number, _)| number).collect();
            let names: BTreeSet<_> = all.iter().map(|(_, name)| name).collect();
            assert_eq!((numbers.len(), names.len()), (all.len(), all.len()), "{all:?}");
        }
        for table in DropReasonTable::ALL {
            assert_eq!(table.name().parse(), Ok(table));
        }
        assert!("fabric-tna".parse::<DropReasonTable>().unwrap_err().to_string().contains("fabric-tna-1.1"));
        assert!("sflow".parse::<DropReasonTable>().unwrap_err().to_string().contains("need no table"));
    }
}
