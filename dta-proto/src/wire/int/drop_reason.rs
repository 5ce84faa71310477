//! Names of drop reasons. A report has a number whose meaning depends on the sender.
//!
//! Sources: `p4src/shared/define.p4` of fabric-tna 1.0.0 and 1.1.0 (`IntDropReason_t`), and, for switches that follow the
//! Telemetry Report specifications, the list that these refer to: `p4src/includes/drop_reason_codes.h` of p4lang/switch.

use core::str::FromStr;

crate::named! {
    /// Numberings of drop reasons.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Table {
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

impl Table {
    /// Number and name of each reason; numbers are unique.
    pub fn reasons(self) -> impl Iterator<Item = (u8, &'static str)> {
        let (common, own): (&[_], &[_]) = match self {
            Table::FabricTna10 => (FABRIC_TNA, FABRIC_TNA_10),
            Table::FabricTna11 => (FABRIC_TNA, FABRIC_TNA_11),
            Table::SwitchP4 => (SWITCH_P4, &[]),
            Table::None => (&[], &[]),
        };
        common.iter().chain(own).copied()
    }

    /// The name of a reason; `None` if unknown: it is then shown as a number.
    pub fn of(self, reason: u8) -> Option<&'static str> {
        self.reasons().find(|(number, _)| *number == reason).map(|(_, name)| name)
    }
}

/// The text is not a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no table of drop reasons: write fabric-tna-1.1, fabric-tna-1.0, switch.p4 or none")]
pub struct TableError(String);

impl FromStr for Table {
    type Err = TableError;

    fn from_str(text: &str) -> Result<Table, TableError> {
        Table::from_name(text).ok_or_else(|| TableError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_number_has_the_name_that_its_sender_gives_it() {
        let names = |reason| Table::ALL.map(|table| table.of(reason));
        assert_eq!(names(71), [Some("traffic-manager"), Some("traffic-manager"), None, None]);
        assert_eq!(names(133), [Some("upf-downlink-session-drop"), Some("upf-uplink-pdr-miss"), None, None]);
        assert_eq!(names(140), [Some("upf-uplink-termination-drop"), None, None, None]);
        assert_eq!(names(160), [Some("ingress-qos-meter"), Some("ingress-qos-meter"), None, None]);
        assert_eq!(names(26), [Some("ip-ttl-zero"), Some("ip-ttl-zero"), Some("outer-ip-ttl-zero"), None]);
        assert_eq!(names(1), [None; 4]);
        // Reasons of only one fabric-tna version, or named differently in the other.
        let both = [Table::FabricTna11, Table::FabricTna10];
        let differ = |reason: &u8| both[0].of(*reason) != both[1].of(*reason);
        let differing: Vec<u8> = (0..=u8::MAX).filter(differ).collect();
        assert_eq!(differing, [132, 133, 134, 135, 136, 137, 138, 139, 140, 170, 171]);
    }

    #[test]
    fn no_number_and_no_name_stands_twice_in_a_table() {
        for table in Table::ALL {
            let all: Vec<_> = table.reasons().collect();
            let numbers: BTreeSet<_> = all.iter().map(|(number, _)| number).collect();
            let names: BTreeSet<_> = all.iter().map(|(_, name)| name).collect();
            assert_eq!((numbers.len(), names.len()), (all.len(), all.len()), "{table}");
            assert_eq!(table.name().parse(), Ok(table));
        }
        assert!("fabric-tna".parse::<Table>().unwrap_err().to_string().contains("fabric-tna-1.1"));
    }
}
