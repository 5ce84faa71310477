//! A made-up file tree for tests, instead of `/`.

use std::fs;
use std::path::Path;

use super::{Finding, examine_machine};

pub(super) struct TestMachine(tempfile::TempDir);

impl TestMachine {
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.add(files);
        tree
    }

    /// A machine with soft-RoCE on `vrx`, as Linux 6.1 shows it.
    pub(super) fn with_rxe() -> Self {
        let tree = Self::new(&[
            ("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n"),
            ("sys/class/infiniband/rxe0/ports/1/link_layer", "Ethernet\n"),
            ("sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts", "100\n"),
            ("sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts", "7\n"),
            ("sys/class/infiniband/rxe0/ports/1/hw_counters/lifespan", "12\n"),
            ("sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0\n"),
            ("dev/infiniband/uverbs0", ""),
            ("proc/sys/kernel/osrelease", "6.1.0-x\n"),
            ("proc/modules", "rdma_rxe 1 0 - Live 0x0\n"),
        ]);
        tree.add_gid(0, "fe80:0000:0000:0000:0000:00ff:fe00:0001", "RoCE v2");
        tree.add_gid(1, "0000:0000:0000:0000:0000:ffff:0a09:0001", "RoCE v2");
        tree
    }

    pub(super) fn add(&self, files: &[(&str, &str)]) {
        for (path, contents) in files {
            let path = self.root_path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }
    }

    /// An entry of the GID table of port 1 of `rxe0`.
    pub(super) fn add_gid(&self, index: u32, gid: &str, kind: &str) {
        let port = "sys/class/infiniband/rxe0/ports/1";
        self.add(&[
            (&format!("{port}/gids/{index}"), gid),
            (&format!("{port}/gid_attrs/types/{index}"), kind),
            (&format!("{port}/gid_attrs/ndevs/{index}"), "vrx"),
        ]);
    }

    pub(super) fn remove(&self, path: &str) {
        let path = self.root_path().join(path);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }

    pub(super) fn root_path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn finding_of_check(&self, check: &str) -> Finding {
        examine_machine(self.root_path()).into_iter().find(|f| f.check == check).unwrap()
    }
}
