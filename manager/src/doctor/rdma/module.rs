//! Whether this kernel has soft-RoCE.

use std::path::Path;

use crate::doctor::{Finding, read_trimmed};

const CHECK: &str = "soft-RoCE";

pub(super) fn check_module(root: &Path) -> Finding {
    let release = read_trimmed(root.join("proc/sys/kernel/osrelease")).unwrap_or_default();
    let modules = root.join("lib/modules").join(&release);
    let listed = |file| read_trimmed(modules.join(file)).is_some_and(|s| s.contains("/rdma_rxe.ko"));
    let loaded = read_trimmed(root.join("proc/modules"))
        .is_some_and(|s| s.lines().any(|l| l.starts_with("rdma_rxe ")));
    if loaded || listed("modules.builtin") {
        Finding::new_ok(CHECK, "rdma_rxe is in the kernel")
    } else if listed("modules.dep") {
        Finding::new_note(CHECK, "rdma_rxe is there, but not loaded", "modprobe rdma_rxe")
    } else {
        Finding::new_note(
            CHECK,
            format!("kernel {release} has no rdma_rxe"),
            "the software NIC needs none; to test with real verbs, testbed/rxe-guest boots a kernel with it",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Level;
    use super::super::super::tree::Tree;

    #[test]
    fn the_module_is_loaded_loadable_or_not_there() {
        assert_eq!(Tree::with_rxe().finding_of_check("soft-RoCE").level, Level::Ok);
        let release = ("proc/sys/kernel/osrelease", "6.1.0-x\n");
        let listed =
            ("lib/modules/6.1.0-x/modules.dep", "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko: a.ko\n");
        assert_eq!(
            Tree::new(&[release, listed]).finding_of_check("soft-RoCE").advice.as_deref(),
            Some("modprobe rdma_rxe")
        );
        let other = ("lib/modules/6.1.0-y/modules.dep", listed.1);
        assert_eq!(
            Tree::new(&[release, other]).finding_of_check("soft-RoCE").found,
            "kernel 6.1.0-x has no rdma_rxe"
        );
    }
}
