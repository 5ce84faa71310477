//! The GID that a collector on this device would give to translators.

use dta_memory::nic::verbs::GidWish;
use dta_memory::nic::verbs::gid::choose_gid;

use super::tree::Device;
use crate::doctor::Finding;

const CHECK: &str = "GIDs";

pub(super) fn check_gids(device: &Device) -> Vec<Finding> {
    device
        .ports
        .iter()
        .map(|port| {
            let name = &device.name;
            let shown: Vec<String> = port.gids.iter().map(ToString::to_string).collect();
            match choose_gid(&port.gids, GidWish::default()) {
                Ok(chosen) => Finding::new_ok(
                    CHECK,
                    format!("{name}: {}; a collector takes index {}", shown.join(", "), chosen.index),
                ),
                Err(error) => {
                    let interface = port.gids.iter().find_map(|gid| gid.interface.as_deref());
                    Finding::new_note(
                        CHECK,
                        format!("{name}: {error}"),
                        format!(
                            "give its network interface an IPv4 address: ip address add ADDRESS/LENGTH dev {}",
                            interface.unwrap_or("NETDEV")
                        ),
                    )
                }
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::Level;
    use super::super::super::tree::Tree;

    #[test]
    fn the_gid_that_a_collector_takes_is_named_or_what_to_do_for_one() {
        let tree = Tree::with_rxe();
        let good = tree.finding_of_check("GIDs");
        assert_eq!(good.level, Level::Ok);
        assert!(good.found.ends_with("index 1: 10.9.0.1 (RoCE v2); a collector takes index 1"), "{good:?}");
        for file in ["gids/1", "gid_attrs/types/1", "gid_attrs/ndevs/1"] {
            tree.remove(&format!("sys/class/infiniband/rxe0/ports/1/{file}"));
        }
        let ipv6 = tree.finding_of_check("GIDs");
        assert_eq!(ipv6.level, Level::Note);
        assert!(ipv6.advice.unwrap().ends_with("dev vrx"));
        tree.remove("sys/class/infiniband/rxe0/ports/1/gids");
        assert!(tree.finding_of_check("GIDs").found.contains("none"));
    }
}
