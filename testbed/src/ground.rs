//! The testbed's NIC, and the wire to it: loopback and the software NIC, or a veth pair and the kernel's soft-RoCE.

use std::cell::Cell;
use std::fs::DirEntry;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

dta_proto::named! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
    pub enum NicKind {
        /// The software NIC, on loopback.
        #[default]
        Soft: "soft",
        /// The kernel's soft-RoCE, on one end of a veth pair; the translator sends whole frames on the other. Needs
        /// root.
        Rxe: "rxe",
    }
}

dta_proto::named! {
    /// What sends a translator's frames in a testbed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
    pub enum FrameSender {
        /// The translator makes them itself.
        #[default]
        Soft: "soft",
        /// A soft-RoCE device of its own, to which the translator posts its operations.
        Rxe: "rxe",
    }
}

dta_proto::named! {
    /// The IP version of a testbed's RoCEv2 frames.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
    pub enum FrameIp {
        #[default]
        #[value(name = "4")]
        V4: "4",
        /// Between software at both ends on raw frames of a veth pair; needs root.
        #[value(name = "6")]
        V6: "6",
    }
}

/// An RDMA device on one end of a veth pair. What was made for the testbed is removed on drop.
#[derive(Debug)]
pub struct RxeGround {
    /// What takes the frames: the device, or the software NIC, on raw frames of the same end.
    pub nic: NicKind,
    pub device: &'static str,
    /// The collector's end of the pair, with the device on it.
    pub near: &'static str,
    /// The switch's end of the pair.
    pub link: &'static str,
    /// The collector's address, on the device's end; the software NIC's is on no interface.
    pub collector: IpAddr,
    /// The translator's address, on no interface unless a device sends.
    pub translator: IpAddr,
    /// The device that sends the translator's frames, on the switch's end.
    pub sender: Option<WireEnds>,
    /// The right to the names, if these are our own.
    made: Option<Alone>,
}

/// What the rxe guest has ready.
const READY: RxeGround = RxeGround {
    nic: NicKind::Rxe,
    device: "rxe0",
    near: "vrx",
    link: "vtx",
    collector: IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1)),
    translator: IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2)),
    sender: None,
    made: None,
};

/// What is made if there is none. The addresses are from those for testing devices (RFC 2544): no host has them.
const OWN: RxeGround = RxeGround {
    nic: NicKind::Rxe,
    device: "dta-rxe",
    near: OWN_NEAR,
    link: "dta-vtx",
    collector: IpAddr::V4(Ipv4Addr::new(198, 18, 9, 1)),
    translator: IpAddr::V4(Ipv4Addr::new(198, 18, 9, 2)),
    sender: None,
    made: None,
};
const OWN_NEAR: &str = "dta-vrx";
/// The addresses over IPv6, for either: unique local ones (RFC 4193).
const IPV6_ENDS: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd54, 0x4441, 9, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd54, 0x4441, 9, 0, 0, 0, 0, 2)];
/// Routing tables by which each end of the pair finds the other, although both addresses belong to this host.
const IPV6_TABLES: [&str; 2] = ["109", "110"];

impl RxeGround {
    /// The ready device of the rxe guest if there is one, else one of our own; with a second device for the translator
    /// if it is to send, and a wire that loses this share of frames in both directions.
    pub fn set_up(nic: NicKind, sender: FrameSender, ip: FrameIp, loss: f64) -> anyhow::Result<RxeGround> {
        let mut ground = RxeGround::set_up_device()?;
        ground.nic = nic;
        if let (NicKind::Soft, IpAddr::V4(collector)) = (nic, ground.collector) {
            let [a, b, c, _] = collector.octets();
            ground.collector = Ipv4Addr::new(a, b, c, 3).into();
        }
        if ip == FrameIp::V6 {
            [ground.collector, ground.translator] = IPV6_ENDS.map(IpAddr::V6);
            add_ipv6_address(ground.near, IPV6_ENDS[0])?;
            wait_for_gid(ground.device, IPV6_ENDS[0])?;
        }
        if sender == FrameSender::Rxe {
            ground.sender = Some(WireEnds::set_up(&ground, loss)?);
        }
        Ok(ground)
    }

    fn set_up_device() -> anyhow::Result<RxeGround> {
        if Path::new("/sys/class/infiniband/rxe0").exists() && Path::new("/sys/class/net/vtx").exists() {
            return Ok(RxeGround { made: None, sender: None, ..READY });
        }
        let ground = RxeGround { made: Some(Alone::acquire_for(OWN_NEAR)?), sender: None, ..OWN };
        // Possible leftovers of a killed testbed.
        take_down();
        load_rxe_module()?;
        add_own_pair()?;
        run_command("ip", &format!("address add {}/24 dev {OWN_NEAR}", ground.collector))?;
        ground.restore_device()?;
        Ok(ground)
    }

    /// Starts removing the device. The process ends when it is gone, after programs have closed it.
    pub fn spawn_removal(&self) -> anyhow::Result<Child> {
        remove_device(self.device)
    }

    pub fn restore_device(&self) -> anyhow::Result<()> {
        add_rxe_device(self.device, self.near)
    }
}

impl Drop for RxeGround {
    fn drop(&mut self) {
        if let Some(sender) = &self.sender {
            sender.take_down(self);
        }
        // Even if there is no sender, because it could not be set up.
        if self.translator.is_ipv6() {
            restore_ipv6_rules();
        }
        if self.made.is_some() {
            take_down();
        } else if self.collector.is_ipv6() {
            let _ = run_command("ip", &format!("address delete {}/64 dev {}", self.collector, self.near));
        }
    }
}

/// The veth pair between a translator and a software NIC that both send raw frames over IPv6. It is removed on drop.
#[derive(Debug)]
pub struct SoftWire {
    /// The interfaces of collector and translator.
    pub ends: [&'static str; 2],
    /// Their addresses, which no interface has.
    pub addresses: [IpAddr; 2],
    _made: Alone,
}

impl SoftWire {
    pub fn set_up() -> anyhow::Result<SoftWire> {
        let made = Alone::acquire_for(OWN_NEAR)?;
        take_down();
        add_own_pair()?;
        Ok(SoftWire { ends: [OWN_NEAR, OWN.link], addresses: IPV6_ENDS.map(IpAddr::V6), _made: made })
    }
}

impl Drop for SoftWire {
    fn drop(&mut self) {
        take_down();
    }
}

fn add_own_pair() -> anyhow::Result<()> {
    for (program, arguments) in [
        ("ip", &*format!("link add {OWN_NEAR} type veth peer name {}", OWN.link)),
        ("ethtool", &*format!("-K {OWN_NEAR} tx off")),
        ("ip", &*format!("link set {OWN_NEAR} up")),
        ("ip", &*format!("link set {} up", OWN.link)),
    ] {
        run_command(program, arguments).context("cannot make a veth pair, which needs root")?;
    }
    Ok(())
}

/// Gives an interface an address that is usable at once.
fn add_ipv6_address(interface: &str, address: Ipv6Addr) -> anyhow::Result<()> {
    let path = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    std::fs::write(&path, "0").with_context(|| format!("cannot write {path}, which needs root"))?;
    run_command("ip", &format!("address replace {address}/64 dev {interface} nodad"))
}

/// Waits until a device has the GID of an address, which the kernel adds some time after the address.
fn wait_for_gid(device: &str, address: Ipv6Addr) -> anyhow::Result<()> {
    let folder = format!("/sys/class/infiniband/{device}/ports/1/gids");
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let gids = std::fs::read_dir(&folder).with_context(|| format!("cannot read {folder}"))?;
        let is_there = |gid: DirEntry| {
            let text = std::fs::read_to_string(gid.path()).unwrap_or_default();
            text.trim().parse() == Ok(address)
        };
        if gids.flatten().any(is_there) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "the device {device} has no GID of {address} after a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A second device, which sends the translator's frames, and what passed between the two.
#[derive(Debug)]
pub struct WireEnds {
    pub device: &'static str,
    /// Packets sent and received that the device had counted before, less those of earlier devices of this name.
    before: Cell<[i64; 2]>,
    interface: &'static str,
    /// The interfaces of translator and collector, which drop frames.
    ends: [&'static str; 2],
    /// See [`refused_by_peer`].
    refused_before: [u64; 2],
    loses: bool,
}

/// Packets between the translator's device and the collector's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounts {
    /// Frames that the translator's device sent, repeats included.
    pub sent: u64,
    /// Answers that it received.
    pub received: u64,
    /// Frames, and answers, that the wire dropped: as requested, or because the kernel had no room for them.
    pub dropped: [u64; 2],
}

/// The device of [`WireEnds`].
const SENDER: &str = "dta-rxe-tx";

impl WireEnds {
    fn set_up(ground: &RxeGround, loss: f64) -> anyhow::Result<WireEnds> {
        let _ = run_command("rdma", &format!("link delete {SENDER}"));
        let (near, link) = (ground.near, ground.link);
        let mac = |interface: &str| {
            let path = format!("/sys/class/net/{interface}/address");
            std::fs::read_to_string(&path)
                .map(|mac| mac.trim().to_owned())
                .with_context(|| format!("cannot read {path}"))
        };
        // Both ends belong to this host: without these settings, the kernel would take their packets for forged ones.
        for interface in ["all", near, link] {
            for (setting, value) in [("rp_filter", "0"), ("accept_local", "1")] {
                let path = format!("/proc/sys/net/ipv4/conf/{interface}/{setting}");
                std::fs::write(&path, value)
                    .with_context(|| format!("cannot write {path}, which needs root"))?;
            }
        }
        let neighbour = |ip: IpAddr, mac: String, interface: &str| {
            run_command("ip", &format!("neigh replace {ip} lladdr {mac} nud permanent dev {interface}"))
        };
        match ground.translator {
            IpAddr::V4(ip) => run_command("ip", &format!("address replace {ip}/24 dev {link}"))?,
            IpAddr::V6(ip) => {
                add_ipv6_address(link, ip)?;
                route_between_own_ends([near, link])?;
            }
        }
        neighbour(ground.collector, mac(near)?, link)?;
        neighbour(ground.translator, mac(link)?, near)?;
        let ends = [link, near];
        if loss > 0.0 {
            let _ = run_command("modprobe", "sch_netem");
            for interface in ends {
                lose_frames(interface, ground.translator, loss)
                    .context("cannot make the wire lose frames")?;
            }
        }
        add_rxe_device(SENDER, link)?;
        if let IpAddr::V6(address) = ground.translator {
            wait_for_gid(SENDER, address)?;
        }
        let before = Cell::new(device_counts(SENDER)?.map(|count| count as i64));
        let mut refused_before = [0; 2];
        for (refused, interface) in refused_before.iter_mut().zip(ends) {
            *refused = refused_by_peer(interface)?;
        }
        Ok(WireEnds { device: SENDER, before, interface: link, ends, refused_before, loses: loss > 0.0 })
    }

    /// What has passed so far.
    fn counts(&self) -> anyhow::Result<WireCounts> {
        // The kernel's counters are up to 12 ms old.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let (now, before) = (device_counts(self.device)?, self.before.get());
        let [sent, received] = [0, 1].map(|n| (now[n] as i64 - before[n]) as u64);
        let mut dropped = [0; 2];
        for (end, interface) in self.ends.into_iter().enumerate() {
            let lost = if self.loses { netem_drops(interface)? } else { 0 };
            dropped[end] = lost + refused_by_peer(interface)? - self.refused_before[end];
        }
        Ok(WireCounts { sent, received, dropped })
    }

    /// Starts removing the device, while nothing passes. The process ends when it is gone, after programs have closed it.
    pub(crate) fn spawn_removal(&self) -> anyhow::Result<Child> {
        let WireCounts { sent, received, .. } = self.counts()?;
        self.before.set([sent, received].map(|count| -(count as i64)));
        remove_device(self.device)
    }

    pub(crate) fn restore_device(&self) -> anyhow::Result<()> {
        add_rxe_device(self.device, self.interface)
    }

    fn take_down(&self, ground: &RxeGround) {
        let _ = run_command("rdma", &format!("link delete {}", self.device));
        let prefix = if ground.translator.is_ipv4() { 24 } else { 64 };
        let _ =
            run_command("ip", &format!("address delete {}/{prefix} dev {}", ground.translator, ground.link));
        if self.loses {
            for interface in self.ends {
                let _ = run_command("tc", &format!("qdisc delete dev {interface} root"));
            }
        }
    }
}

/// Sends packets that leave by one of these interfaces, for the other end's address, to the wire: the kernel's first rule
/// would deliver them on this host, which has all these addresses.
fn route_between_own_ends(ends: [&str; 2]) -> anyhow::Result<()> {
    restore_ipv6_rules();
    let network = Ipv6Addr::from_bits(IPV6_ENDS[0].to_bits() & !0 << 64);
    for (interface, table) in ends.iter().zip(IPV6_TABLES) {
        run_command("ip", &format!("-6 route replace {network}/64 dev {interface} table {table}"))?;
        run_command("ip", &format!("-6 rule add pref 1 oif {interface} lookup {table}"))?;
    }
    run_command("ip", "-6 rule add pref 2 lookup local")?;
    delete_first_ipv6_rule();
    Ok(())
}

/// Deletes the rule that looks up this host's addresses, however often it is there.
fn delete_first_ipv6_rule() {
    while run_command("ip", "-6 rule delete pref 0 lookup local").is_ok() {}
}

/// Undoes [`route_between_own_ends`]; it is not an error if that was not done.
fn restore_ipv6_rules() {
    // There is always one: the kernel would add another beside its own.
    let _ = run_command("ip", "-6 rule add pref 2 lookup local");
    delete_first_ipv6_rule();
    let _ = run_command("ip", "-6 rule add pref 0 lookup local");
    let _ = run_command("ip", "-6 rule delete pref 2 lookup local");
    for table in IPV6_TABLES {
        let _ = run_command("ip", &format!("-6 rule delete pref 1 lookup {table}"));
        let _ = run_command("ip", &format!("-6 route flush table {table}"));
    }
}

/// What passed between the devices, if one sends the translator's frames.
pub(crate) fn wire_counts(rxe: Option<&RxeGround>) -> anyhow::Result<Option<WireCounts>> {
    rxe.and_then(|rxe| rxe.sender.as_ref()).map(WireEnds::counts).transpose()
}

/// Packets that a soft-RoCE device sent and received.
fn device_counts(device: &str) -> anyhow::Result<[u64; 2]> {
    let read =
        |counter: &str| read_count(&format!("/sys/class/infiniband/{device}/ports/1/hw_counters/{counter}"));
    Ok([read("sent_pkts")?, read("rcvd_pkts")?])
}

fn read_count(path: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    Ok(text.trim().parse()?)
}

/// Drops this share of the RoCEv2 frames that leave an interface, and no other packets, such as the kernel's own over
/// IPv6: nobody counts those as sent, so they must not count as dropped.
fn lose_frames(interface: &str, ip: IpAddr, share: f64) -> anyhow::Result<()> {
    // Whatever the filter does not take goes to the second band.
    let bands = "bands 2 priomap 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1";
    run_command("tc", &format!("qdisc replace dev {interface} root handle 1: prio {bands}"))?;
    let percent = share * 100.0;
    run_command("tc", &format!("qdisc replace dev {interface} parent 1:1 netem loss {percent}%"))?;
    let (protocol, header) = if ip.is_ipv4() { ("ip", "ip") } else { ("ipv6", "ip6") };
    let frames = format!(
        "match {header} protocol 17 0xff match {header} dport {} 0xffff",
        dta_proto::wire::roce::PORT
    );
    let filter = format!("protocol {protocol} prio 1 u32 {frames} flowid 1:1");
    run_command("tc", &format!("filter replace dev {interface} parent 1: {filter}"))
}

/// Packets lost after an interface of a veth pair: more waited for the CPU than `net.core.netdev_max_backlog` allows.
fn refused_by_peer(interface: &str) -> anyhow::Result<u64> {
    read_count(&format!("/sys/class/net/{interface}/statistics/tx_dropped"))
}

/// Packets that netem dropped on an interface.
fn netem_drops(interface: &str) -> anyhow::Result<u64> {
    let output = Command::new("tc").args(["-s", "-j", "qdisc", "show", "dev", interface]).output()?;
    let all: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("cannot read what tc prints")?;
    let netem = all.as_array().into_iter().flatten().find(|qdisc| qdisc["kind"] == "netem");
    netem
        .and_then(|qdisc| qdisc["drops"].as_u64())
        .with_context(|| format!("there is no netem on {interface}"))
}

fn remove_device(device: &str) -> anyhow::Result<Child> {
    Command::new("rdma").args(["link", "delete", device]).spawn().context("cannot run rdma: is it installed?")
}

/// Makes a soft-RoCE device on an interface.
pub(crate) fn add_rxe_device(device: &str, interface: &str) -> anyhow::Result<()> {
    run_command("rdma", &format!("link add {device} type rxe netdev {interface}"))
        .context("cannot make a soft-RoCE device, which needs root")
}

/// Makes the kernel load soft-RoCE if necessary, or says where there is a kernel that can.
pub fn load_rxe_module() -> anyhow::Result<()> {
    if !Path::new("/sys/module/rdma_rxe").exists() {
        run_command("modprobe", "rdma_rxe").context(
            "this machine's kernel has no usable soft-RoCE; run the command in a guest that has: \
             testbed/rxe-guest/run -- dta-manager …",
        )?;
    }
    Ok(())
}

/// Removes what [`RxeGround::set_up`] makes; it is not an error if that does not exist.
fn take_down() {
    let _ = run_command("rdma", &format!("link delete {}", OWN.device));
    let _ = run_command("ip", &format!("link delete {OWN_NEAR}"));
}

/// Runs a program with blank-separated arguments; its output is the error.
pub fn run_command(program: &str, arguments: &str) -> anyhow::Result<()> {
    let ran = Command::new(program)
        .args(arguments.split(' '))
        .output()
        .with_context(|| format!("cannot run {program}: is it installed?"))?;
    if !ran.status.success() {
        bail!("{program} {arguments}: {}", String::from_utf8_lossy(&ran.stderr).trim());
    }
    Ok(())
}

/// The right to interface names in this network namespace: one process has it at a time, and loses it however it
/// ends. It is a socket with an abstract name, which belongs to the network namespace, like interfaces.
#[derive(Debug)]
pub struct Alone(#[expect(dead_code, reason = "it is held")] UnixListener);

impl Alone {
    /// Takes the right; `interface` is the first of the names.
    pub fn acquire_for(interface: &str) -> anyhow::Result<Alone> {
        let name = SocketAddr::from_abstract_name(format!("dta-manager/{interface}"))?;
        match UnixListener::bind_addr(&name) {
            Ok(socket) => Ok(Alone(socket)),
            Err(error) if error.kind() == ErrorKind::AddrInUse => bail!(
                "another dta-manager is using {interface} in this network namespace: wait until it has ended, or end it"
            ),
            Err(error) => Err(error).context("cannot bind a Unix socket"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_has_a_name() {
        let name = format!("dta-test-{}", std::process::id());
        let first = Alone::acquire_for(&name).unwrap();
        let error = Alone::acquire_for(&name).unwrap_err().to_string();
        assert!(error.contains(&name) && error.contains("another dta-manager"), "{error}");
        Alone::acquire_for(&format!("{name}-other")).unwrap();
        drop(first);
        Alone::acquire_for(&name).unwrap();
    }
}
