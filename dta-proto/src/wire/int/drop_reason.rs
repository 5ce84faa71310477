//! Names of drop reasons, as SD-Fabric (fabric-tna) numbers them.

/// Number and name. Numbers below 128 are those of the switch.p4 of older telemetry.
const NAMES: [(u8, &str); 15] = [
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
    (132, "upf-downlink-pdr-miss"),
    (133, "upf-uplink-pdr-miss"),
    (134, "upf-far-miss"),
    (150, "upf-uplink-recirculation-deny"),
];

/// The name of a reason; `None` for one that has none here, which is shown as its number.
pub fn name(reason: u8) -> Option<&'static str> {
    NAMES.iter().find(|(number, _)| *number == reason).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_reasons_have_names_and_others_none() {
        assert_eq!(name(71), Some("traffic-manager"));
        assert_eq!(name(150), Some("upf-uplink-recirculation-deny"));
        assert_eq!(name(1), None);
    }
}
