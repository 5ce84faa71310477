//! The veth pair between sender and NIC.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use crate::ground::Alone;
use crate::ground::run_command;
use anyhow::Context;
use dta_proto::wire::ethernet::Mac;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The NIC's end of the pair.
pub(super) const NEAR: &str = "dta-bench-near";
pub(super) const FAR: &str = "dta-bench-far";
/// The far end's network namespace, while it has one.
const SPACE: &str = "dta-bench-far";
/// The RDMA device on the NIC's end, while there is one.
pub(super) const DEVICE: &str = "dta-bench";

/// MAC of the interface on the NIC's end, which soft-RoCE shares.
pub(super) const NEAR_MAC: Mac = Mac([2, 0, 0, 0, 0xb, 1]);
/// The software NIC's own MAC.
pub(super) const SOFT_MAC: Mac = Mac([2, 0, 0, 0, 0xb, 2]);
/// MAC of the interface on the sender's end.
const FAR_MAC: Mac = Mac([2, 0, 0, 0, 0xb, 3]);
/// Source of frames and destination of answers: not that interface's, so that its kernel drops answers at once, as if
/// gone on a real wire.
pub(super) const SENDER_MAC: Mac = Mac([2, 0, 0, 0, 0xb, 4]);
/// Nobody's MAC: the receiving end drops such frames at once.
pub(super) const NOBODY: Mac = Mac([2, 0, 0, 0, 0xb, 9]);

/// From the addresses for testing devices (RFC 2544): no host has them.
pub(super) const NEAR_IP: Ipv4Addr = Ipv4Addr::new(198, 18, 10, 1);
pub(super) const FAR_IP: Ipv4Addr = Ipv4Addr::new(198, 18, 10, 2);

/// A veth pair without addresses, removed on drop.
pub(super) struct VethPair(#[expect(dead_code, reason = "it is held")] Alone);

impl VethPair {
    pub(super) fn set_up() -> anyhow::Result<VethPair> {
        let pair = VethPair(Alone::acquire_for(NEAR)?);
        // Possible leftovers of a killed run.
        take_down();
        let make = format!("link add {NEAR} address {NEAR_MAC} type veth peer name {FAR} address {FAR_MAC}");
        for arguments in [&*make, &format!("link set {NEAR} up"), &format!("link set {FAR} up")] {
            run_command("ip", arguments).context("cannot make a veth pair, which needs root")?;
        }
        Ok(pair)
    }

    /// Puts soft-RoCE on the NIC's end, under the address that frames go to; removed on drop.
    pub(super) fn add_rxe_device(&self) -> anyhow::Result<Rxe> {
        let rxe = Rxe(());
        for (program, arguments) in [
            ("ip", format!("address add {NEAR_IP}/24 dev {NEAR}")),
            ("ip", format!("neighbour replace {FAR_IP} lladdr {SENDER_MAC} nud permanent dev {NEAR}")),
            ("rdma", format!("link add {DEVICE} type rxe netdev {NEAR}")),
        ] {
            run_command(program, &arguments).context("cannot make a soft-RoCE device, which needs root")?;
        }
        Ok(rxe)
    }

    /// Moves the far end into its own network namespace and gives it the address that frames come from; undone on drop.
    /// Runs that leave it are cut first, as before a wire. Answers go to an Ethernet address that nobody has, as usual.
    pub(super) fn far_with_address(&self) -> anyhow::Result<FarNamespace> {
        let far = FarNamespace(());
        for arguments in [
            format!("netns add {SPACE}"),
            format!("link set {FAR} netns {SPACE}"),
            format!("-n {SPACE} link set lo up"),
            format!("-n {SPACE} address add {FAR_IP}/24 dev {FAR}"),
            format!("-n {SPACE} link set {FAR} up"),
            format!("-n {SPACE} neighbour replace {NEAR_IP} lladdr {NEAR_MAC} nud permanent dev {FAR}"),
            format!("netns exec {SPACE} ethtool -K {FAR} tx-udp-segmentation off"),
        ] {
            run_command("ip", &arguments).context("cannot give the far end an address, which needs root")?;
        }
        Ok(far)
    }
}

/// The far end in a network namespace of its own.
pub(super) struct FarNamespace(());

impl FarNamespace {
    pub(super) fn run_inside<T>(&self, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let enter = |file: &File| {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .context("cannot enter a network namespace")
        };
        let before = File::open("/proc/thread-self/ns/net")?;
        enter(&File::open(format!("/run/netns/{SPACE}"))?)?;
        let done = work();
        enter(&before)?;
        done
    }
}

impl Drop for FarNamespace {
    fn drop(&mut self) {
        for arguments in [
            format!("-n {SPACE} address flush dev {FAR}"),
            format!("-n {SPACE} link set {FAR} netns {}", std::process::id()),
            format!("netns delete {SPACE}"),
            format!("link set {FAR} up"),
        ] {
            let _ = run_command("ip", &arguments);
        }
    }
}

impl Drop for VethPair {
    fn drop(&mut self) {
        take_down();
    }
}

/// Removes the pair; it is no error if it does not exist.
fn take_down() {
    let _ = run_command("rdma", &format!("link delete {DEVICE}"));
    let _ = run_command("ip", &format!("link delete {NEAR}"));
    let _ = run_command("ip", &format!("netns delete {SPACE}"));
}

/// Soft-RoCE on the NIC's end.
pub(super) struct Rxe(());

impl Drop for Rxe {
    fn drop(&mut self) {
        // Leftovers would be noticed at once: the next device of that name cannot be made.
        let _ = run_command("rdma", &format!("link delete {DEVICE}"));
        let _ = run_command("ip", &format!("address flush dev {NEAR}"));
    }
}
