//! The namespace of the testbed, the links in it, and the programs of the switches.
//!
//! ```text
//! hosts ha, hb -- reporter (bmv2: ports 1, 2) port 3 -- port 1 translator (bmv2) port 2 -- collector's NIC
//!                                                                                port 3 -- that of a second one
//! ```
//!
//! The namespace has no name: it disappears with the testbed and its processes. Soft-RoCE works only in the machine's
//! own network: with it, the links are there, and are removed afterwards.

use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use super::reporter::Wiring;
use super::simple_switch::SimpleSwitch;
use crate::ground::Alone;
use crate::ground::{NicKind, add_rxe_device, load_rxe_module, run_command};

const INSIDE: &str = "DTA_TESTBED_NAMESPACE";
/// As long as an IPv4 packet can be: captures contain packets that a network card had merged.
const MTU: u32 = 65_535;

/// Addresses of reporter and translator.
pub(super) const REPORTER_MAC: &str = "02:00:00:00:00:77";
const REPORTER: Ipv4Addr = Ipv4Addr::new(198, 18, 9, 7);
pub(super) const TRANSLATOR_MAC: &str = "02:00:00:00:00:88";
pub(super) const SERVICE: Ipv4Addr = Ipv4Addr::new(198, 18, 9, 2);

/// Ends of links: the reporter's, the translator's, and the others.
pub(super) const HOSTS: [&str; 2] = ["dta-ha", "dta-hb"];
pub(super) const TRANSLATOR_IN: &str = "dta-tr1";
pub(super) const REPORTER_OUT: &str = "dta-re3";
const LINKS: [(&str, &str); 3] =
    [("dta-re1", HOSTS[0]), ("dta-re2", HOSTS[1]), (REPORTER_OUT, TRANSLATOR_IN)];

/// The soft-RoCE device at the collector's end.
pub(super) const RXE: &str = "dta-rxe-bmv2";

pub(super) struct CollectorLink {
    /// The translator's port, and its end of the link.
    pub(super) port: u16,
    pub(super) translator: &'static str,
    pub(super) collector: &'static str,
    pub(super) mac: &'static str,
    pub(super) address: &'static str,
}

impl CollectorLink {
    /// Makes the collector's end an RDMA device that can reach the translator.
    fn add_rxe_device(&self) -> anyhow::Result<()> {
        let CollectorLink { translator, collector, address, .. } = self;
        for end in [translator, collector] {
            // bmv2 reads whole frames, so their checksums must be complete.
            run_command("ethtool", &format!("-K {end} tx off"))?;
        }
        run_command("ip", &format!("address add {address}/24 dev {collector}"))?;
        // A program for a switch answers no ARP.
        run_command(
            "ip",
            &format!("neighbour replace {SERVICE} lladdr {TRANSLATOR_MAC} nud permanent dev {collector}"),
        )?;
        add_rxe_device(RXE, collector)
    }
}

pub(super) const COLLECTORS: [CollectorLink; 2] = [
    CollectorLink {
        port: 2,
        translator: "dta-tr2",
        collector: "dta-co1",
        mac: "02:00:00:00:0c:01",
        address: "198.18.9.1",
    },
    CollectorLink {
        port: 3,
        translator: "dta-tr3",
        collector: "dta-co2",
        mac: "02:00:00:00:0c:02",
        address: "198.18.9.3",
    },
];

/// Restarts this program in its own network namespace, unless it is in one. Returns there. With soft-RoCE it stays
/// where it is.
pub fn enter_own_namespace(nic: NicKind) -> anyhow::Result<()> {
    super::simple_switch::ensure_installed()?;
    if std::env::var_os(INSIDE).is_some() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        bail!("--switch bmv2 needs root, for network interfaces of its own");
    }
    if nic == NicKind::Rxe {
        return load_rxe_module();
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let error = Command::new("unshare")
        .arg("--net")
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    Err(error).context("cannot run unshare (Debian package util-linux), which makes the network namespace")
}

/// Interfaces in the machine's own network, removed on drop.
struct Links(Vec<&'static str>, #[expect(dead_code, reason = "it is held")] Alone);

impl Links {
    /// It is no error if they do not exist.
    fn remove_links(&self) {
        let _ = run_command("rdma", &format!("link delete {RXE}"));
        for end in &self.0 {
            let _ = run_command("ip", &format!("link delete {end}"));
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.remove_links();
    }
}

/// Where the reporter is, with its P4Runtime at `control`.
pub(super) fn reporter_at(control: &str) -> Wiring {
    let switch = [("type", "bmv2"), ("control", control), ("mac", REPORTER_MAC)];
    Wiring {
        number: 0,
        switch: switch.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect(),
        source: REPORTER,
        hosts: [1, 2],
        port: 3,
        translator: SERVICE,
        translator_mac: TRANSLATOR_MAC.into(),
    }
}

/// The links, and both switches, not running a program yet.
pub(super) struct Ground {
    _switches: [SimpleSwitch; 2],
    _links: Option<Links>,
    /// P4Runtime of the reporter and of the translator.
    pub(super) control: [&'static str; 2],
}

impl Ground {
    /// Makes everything. Logs go to a folder.
    pub(super) async fn set_up(
        folder: &Path,
        collectors: &[CollectorLink],
        nic: NicKind,
    ) -> anyhow::Result<Ground> {
        let links = collectors.iter().map(|link| (link.translator, link.collector));
        let links: Vec<(&str, &str)> = LINKS.into_iter().chain(links).collect();
        let removed = match nic {
            NicKind::Soft => None,
            NicKind::Rxe => {
                let switches = links.iter().map(|(switch, _)| *switch).collect();
                Some(Links(switches, Alone::acquire_for(LINKS[0].0)?))
            }
        };
        match &removed {
            // Possible leftovers of a killed run.
            Some(links) => links.remove_links(),
            None => run_command("ip", "link set lo up")?,
        }
        for (switch, other) in &links {
            run_command("ip", &format!("link add {switch} mtu {MTU} type veth peer name {other} mtu {MTU}"))?;
            for end in [switch, other] {
                // The kernel's own packets would be frames that nobody sent.
                let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{end}/disable_ipv6"), "1");
            }
        }
        for CollectorLink { collector, mac, .. } in collectors {
            run_command("ip", &format!("link set {collector} mtu 1500 address {mac}"))?;
        }
        for end in links.iter().flat_map(|(switch, other)| [switch, other]) {
            run_command("ip", &format!("link set {end} up"))?;
        }
        if nic == NicKind::Rxe {
            for link in collectors {
                link.add_rxe_device()?;
            }
        }
        let control = ["127.0.0.1:9559", "127.0.0.1:9560"];
        let interfaces = |ports: &[(u16, &str)]| -> Vec<String> {
            ports.iter().map(|(number, interface)| format!("{number}@{interface}")).collect()
        };
        let of_reporter = interfaces(&[(1, LINKS[0].0), (2, LINKS[1].0), (3, REPORTER_OUT)]);
        let mut ports = vec![(1, TRANSLATOR_IN)];
        ports.extend(collectors.iter().map(|link| (link.port, link.translator)));
        let reporter =
            SimpleSwitch::spawn_until_listening(folder, "reporter", 9091, &of_reporter, control[0]).await?;
        let of_translator = interfaces(&ports);
        let translator =
            SimpleSwitch::spawn_until_listening(folder, "translator", 9092, &of_translator, control[1])
                .await?;
        let switches = [reporter, translator];
        Ok(Ground { _switches: switches, _links: removed, control })
    }
}
