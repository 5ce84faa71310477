//! The character device through which programs use an RDMA device.

use std::fs::File;
use std::io;
use std::path::Path;

use super::tree::Device;
use crate::doctor::{Finding, list_sorted_names, read_trimmed};

const CHECK: &str = "verbs";

/// Whether this user may open it.
pub(super) fn check_device_access(root: &Path, device: &Device) -> Finding {
    let class = root.join("sys/class/infiniband_verbs");
    let name = list_sorted_names(&class)
        .into_iter()
        .find(|node| read_trimmed(class.join(node).join("ibdev")).as_deref() == Some(device.name.as_str()));
    let Some(name) = name else {
        return Finding::new_note(
            CHECK,
            format!("{}: the kernel offers no verbs for it", device.name),
            "modprobe ib_uverbs",
        );
    };
    let node = root.join("dev/infiniband").join(&name);
    match File::options().read(true).write(true).open(&node) {
        Ok(_) => Finding::new_ok(CHECK, format!("{}: /dev/infiniband/{name} can be opened", device.name)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Finding::new_note(
            CHECK,
            format!("{}: /dev/infiniband/{name}: {error}", device.name),
            "run the collector as root, or as a user with access (udev's rdma rules; group rdma)",
        ),
        Err(error) => Finding::new_note(
            CHECK,
            format!("{}: /dev/infiniband/{name}: {error}", device.name),
            "modprobe ib_uverbs; in a container, pass /dev/infiniband in",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Level;
    use super::super::super::tree::Tree;

    #[test]
    fn a_device_without_its_file_is_told() {
        let tree = Tree::with_rxe();
        assert_eq!(tree.finding_of_check("verbs").level, Level::Ok);
        tree.remove("dev/infiniband/uverbs0");
        assert!(tree.finding_of_check("verbs").found.contains("/dev/infiniband/uverbs0"));
        tree.remove("sys/class/infiniband_verbs");
        assert_eq!(tree.finding_of_check("verbs").advice.as_deref(), Some("modprobe ib_uverbs"));
    }
}
