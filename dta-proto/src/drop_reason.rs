//! Names of drop reasons. A report has a number whose meaning depends on the sender.
//!
//! Sources: `p4src/shared/define.p4` of fabric-tna 1.0.0 and 1.1.0 (`IntDropReason_t`), and, for switches that follow the
//! Telemetry Report specifications, the list that these refer to: `p4src/includes/drop_reason_codes.h` of p4lang/switch.
//! Those of sFlow are of `sflow_drops.txt` of sflow.org.

use core::str::FromStr;

crate::named! {
    /// Numberings of drop reasons.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum DropReasonTable {
        /// SD-Fabric with fabric-tna 1.1 or later.
        #[default]
        FabricTna11: "fabric-tna-1.1",
        /// SD-Fabric with fabric-tna 1.0.
        FabricTna10: "fabric-tna-1.0",
        /// The list of p4lang/switch, to which the specifications refer.
        SwitchP4: "switch.p4",
        /// sFlow, by [`from_sflow_reason`].
        Sflow: "sflow",
        /// Unknown: no number has a name.
        None: "none",
    }
}

/// In both versions of fabric-tna.
const FABRIC_TNA: &[(u8, &str)] = &[
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

const FABRIC_TNA_10: &[(u8, &str)] =
    &[(132, "upf-downlink-pdr-miss"), (133, "upf-uplink-pdr-miss"), (134, "upf-far-miss")];

const FABRIC_TNA_11: &[(u8, &str)] = &[
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

const SWITCH_P4: &[(u8, &str)] = &[
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
const SFLOW: &[(u8, &str)] = &[
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
    (16, "unknown"),
    (17, "ttl-exceeded"),
    (18, "acl"),
    (19, "no-buffer-space"),
    (20, "red"),
    (21, "traffic-shaping"),
    (22, "packet-too-big"),
    (23, "source-mac-multicast"),
    (24, "vlan-tag-mismatch"),
    (25, "ingress-vlan-filter"),
    (26, "ingress-spanning-tree-filter"),
    (27, "port-list-is-empty"),
    (28, "port-loopback-filter"),
    (29, "blackhole-route"),
    (30, "non-ip"),
    (31, "unicast-destination-ip-over-multicast-mac"),
    (32, "destination-ip-loopback"),
    (33, "source-ip-multicast"),
    (34, "source-ip-loopback"),
    (35, "ip-header-corrupted"),
    (36, "source-ip-limited-broadcast"),
    (37, "ipv6-multicast-reserved-scope"),
    (38, "ipv6-multicast-interface-local-scope"),
    (39, "unresolved-neighbour"),
    (40, "multicast-reverse-path-forwarding"),
    (41, "non-routable-packet"),
    (42, "decapsulation-error"),
    (43, "overlay-source-mac-multicast"),
    (44, "unknown-layer-2"),
    (45, "unknown-layer-3"),
    (46, "unknown-layer-3-exception"),
    (47, "unknown-buffer"),
    (48, "unknown-tunnel"),
    (49, "unknown-layer-4"),
];

/// The number here of a reason of sFlow: those from 256 on follow the 16 of ICMP. What has no place is 255.
pub const fn from_sflow_reason(reason: u32) -> u8 {
    match reason {
        0..16 => reason as u8,
        256..495 => (reason - 240) as u8,
        _ => 255,
    }
}

impl DropReasonTable {
    /// Number and name of each reason; numbers are unique.
    pub fn named_reasons(self) -> impl Iterator<Item = (u8, &'static str)> {
        let (common, own): (&[_], &[_]) = match self {
            DropReasonTable::FabricTna10 => (FABRIC_TNA, FABRIC_TNA_10),
            DropReasonTable::FabricTna11 => (FABRIC_TNA, FABRIC_TNA_11),
            DropReasonTable::SwitchP4 => (SWITCH_P4, &[]),
            DropReasonTable::Sflow => (SFLOW, &[]),
            DropReasonTable::None => (&[], &[]),
        };
        common.iter().chain(own).copied()
    }

    /// The name of a reason; `None` if unknown: it is then shown as a number.
    pub fn reason_name(self, reason: u8) -> Option<&'static str> {
        self.named_reasons().find(|(number, _)| *number == reason).map(|(_, name)| name)
    }
}

/// The text is not a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no table of drop reasons: write fabric-tna-1.1, fabric-tna-1.0, switch.p4, sflow or none")]
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
        let names = |reason| DropReasonTable::ALL.map(|table| table.reason_name(reason));
        assert_eq!(names(71), [Some("traffic-manager"), Some("traffic-manager"), None, None, None]);
        assert_eq!(
            names(133),
            [Some("upf-downlink-session-drop"), Some("upf-uplink-pdr-miss"), None, None, None]
        );
        assert_eq!(names(140), [Some("upf-uplink-termination-drop"), None, None, None, None]);
        assert_eq!(names(160), [Some("ingress-qos-meter"), Some("ingress-qos-meter"), None, None, None]);
        let filter = "ingress-spanning-tree-filter";
        let of_26 = ["ip-ttl-zero", "ip-ttl-zero", "outer-ip-ttl-zero", filter];
        assert_eq!(names(26), [&of_26.map(Some)[..], &[None]].concat()[..]);
        assert_eq!(names(200), [None; 5]);
        assert_eq!(
            [3, 15, 16, 255, 256, 258, 494, 495].map(from_sflow_reason),
            [3, 15, 255, 255, 16, 18, 254, 255]
        );
        assert_eq!(DropReasonTable::Sflow.reason_name(from_sflow_reason(258)), Some("acl"));
        // Reasons of only one fabric-tna version, or named differently in the other.
        let both = [DropReasonTable::FabricTna11, DropReasonTable::FabricTna10];
        let differ = |reason: &u8| both[0].reason_name(*reason) != both[1].reason_name(*reason);
        let differing: Vec<u8> = (0..=u8::MAX).filter(differ).collect();
        assert_eq!(differing, [132, 133, 134, 135, 136, 137, 138, 139, 140, 170, 171]);
    }

    #[test]
    fn no_number_and_no_name_stands_twice_in_a_table() {
        for table in DropReasonTable::ALL {
            let all: Vec<_> = table.named_reasons().collect();
            let numbers: BTreeSet<_> = all.iter().map(|(number, _)| number).collect();
            let names: BTreeSet<_> = all.iter().map(|(_, name)| name).collect();
            assert_eq!((numbers.len(), names.len()), (all.len(), all.len()), "{table}");
            assert_eq!(table.name().parse(), Ok(table));
        }
        assert!("fabric-tna".parse::<DropReasonTable>().unwrap_err().to_string().contains("fabric-tna-1.1"));
    }
}
