//! The testbed's NIC, and the wire to it: loopback and the software NIC, or a veth pair and the kernel's soft-RoCE.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::{Child, Command};

use anyhow::{Context, bail};

dta_proto::named! {
    /// Which NIC a testbed uses.
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

/// An RDMA device on one end of a veth pair. What was made for the testbed is removed on drop.
#[derive(Debug)]
pub struct RxeGround {
    pub device: &'static str,
    /// The collector's end of the pair, with the device on it.
    near: &'static str,
    /// The switch's end of the pair.
    pub link: &'static str,
    /// The collector's address, on the device's end.
    pub collector: Ipv4Addr,
    /// The translator's address, which no interface has.
    pub translator: Ipv4Addr,
    /// The right to the names, if these are our own.
    made: Option<Alone>,
}

/// What the rxe guest has ready.
const READY: RxeGround = RxeGround {
    device: "rxe0",
    near: "vrx",
    link: "vtx",
    collector: Ipv4Addr::new(10, 9, 0, 1),
    translator: Ipv4Addr::new(10, 9, 0, 2),
    made: None,
};

/// What is made if there is none. The addresses are from those for testing devices (RFC 2544): no host has them.
const OWN: RxeGround = RxeGround {
    device: "dta-rxe",
    near: OWN_NEAR,
    link: "dta-vtx",
    collector: Ipv4Addr::new(198, 18, 9, 1),
    translator: Ipv4Addr::new(198, 18, 9, 2),
    made: None,
};
const OWN_NEAR: &str = "dta-vrx";

impl RxeGround {
    /// The ready device of the rxe guest if there is one, else one of our own.
    pub fn set_up() -> anyhow::Result<RxeGround> {
        if Path::new("/sys/class/infiniband/rxe0").exists() && Path::new("/sys/class/net/vtx").exists() {
            return Ok(RxeGround { made: None, ..READY });
        }
        let ground = RxeGround { made: Some(Alone::acquire_for(OWN_NEAR)?), ..OWN };
        // Possible leftovers of a killed testbed.
        take_down();
        load_rxe_module()?;
        let address = format!("address add {}/24 dev {OWN_NEAR}", ground.collector);
        for (program, arguments) in [
            ("ip", &*format!("link add {OWN_NEAR} type veth peer name {}", ground.link)),
            ("ethtool", &*format!("-K {OWN_NEAR} tx off")),
            ("ip", &*address),
            ("ip", &*format!("link set {OWN_NEAR} up")),
            ("ip", &*format!("link set {} up", ground.link)),
        ] {
            run_command(program, arguments).context("cannot make a veth pair, which needs root")?;
        }
        ground.restore_device()?;
        Ok(ground)
    }

    /// Starts to remove the device. The process ends when it is gone, after programs have closed it.
    pub fn spawn_removal(&self) -> anyhow::Result<Child> {
        Command::new("rdma")
            .args(["link", "delete", self.device])
            .spawn()
            .context("cannot run rdma: is it installed?")
    }

    pub fn restore_device(&self) -> anyhow::Result<()> {
        add_rxe_device(self.device, self.near)
    }
}

impl Drop for RxeGround {
    fn drop(&mut self) {
        if self.made.is_some() {
            take_down();
        }
    }
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
    ///
    /// # Errors
    /// Another process has it.
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
