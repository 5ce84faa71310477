//! A bmv2 switch as the translator, in a network namespace of this test.
//!
//! ```text
//! reporter vr0 -- vr1 (port 1) bmv2 (port 2) vc1 -- vc0 NICs of all collectors
//! ```

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dta_testbed::bmv2::SimpleSwitch;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::runtime::Runtime;

use super::common::free_port;
use super::ground::{Wiring, daemon};
use super::nodes::Nodes;

const NAMESPACE: &str = "dta-cluster-bmv2";
/// Where the switch takes reports.
const SERVICE: Ipv4Addr = Ipv4Addr::new(198, 18, 13, 2);
const SERVICE_MAC: &str = "02:00:00:00:00:88";
const REPORTER: Ipv4Addr = Ipv4Addr::new(198, 18, 13, 7);
const REPORTER_MAC: &str = "02:00:00:00:00:07";

/// One at a time.
static TURN: Mutex<()> = Mutex::new(());

/// The switch, its control plane and the namespace. The thread that made it is in the namespace.
pub(crate) struct Switched {
    switch: Option<SimpleSwitch>,
    /// gRPC address of the switch.
    control: String,
    _namespace: Namespace,
    _turn: MutexGuard<'static, ()>,
}

impl Switched {
    /// Moves this thread into a new namespace and starts the switch, without a program.
    pub(crate) fn start(folder: &Path, runtime: &Runtime) -> Switched {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let namespace = Namespace::enter();
        for arguments in [
            "link set lo up".to_owned(),
            format!("link add vr0 address {REPORTER_MAC} type veth peer name vr1"),
            "link add vc0 type veth peer name vc1".to_owned(),
            "link set vr0 mtu 1500 up".to_owned(),
            "link set vr1 up".to_owned(),
            "link set vc0 up".to_owned(),
            "link set vc1 up".to_owned(),
            format!("address add {REPORTER}/24 dev vr0"),
            // A program for a switch answers no ARP.
            format!("neighbour replace {SERVICE} lladdr {SERVICE_MAC} nud permanent dev vr0"),
        ] {
            must("ip", &arguments);
        }
        for end in ["vr0", "vr1", "vc0", "vc1"] {
            // bmv2 reads whole frames, so their checksums must be complete.
            must("ethtool", &format!("-K {end} tx off"));
        }
        let control = format!("127.0.0.1:{}", free_port());
        let mut switched = Switched { switch: None, control, _namespace: namespace, _turn: turn };
        switched.restart(folder, runtime);
        switched
    }

    /// Kills the switch, and starts it again without a program.
    pub(crate) fn restart(&mut self, folder: &Path, runtime: &Runtime) {
        self.switch = None;
        let interfaces = ["1@vr1".to_owned(), "2@vc1".to_owned()];
        let switch =
            SimpleSwitch::spawn_until_listening(folder, "edge", free_port(), &interfaces, &self.control);
        self.switch = Some(runtime.block_on(switch).unwrap());
    }

    /// Starts `dta-translator watch`, and says where the switch takes reports.
    pub(crate) fn watch(&self, nodes: &Nodes, folder: &Path) -> (Child, std::net::SocketAddrV4) {
        let config = folder.join("translator.toml");
        let endpoints = nodes.config().endpoints;
        let text = format!(
            "[translator]\nlisten = '{SERVICE}:40040'\nsource = '{SERVICE}'\nmac = '{SERVICE_MAC}'\n\
             stores = ['flows', 'timed', 'bytes', 'rounds']\nlease_seconds = 10\n\
             [translator.cluster]\nendpoints = {endpoints:?}\n\
             [switch.edge]\ntype = 'bmv2'\ncontrol = '{}'\nstate = {:?}\ncollector_ports = [2]\npostcard_rows = 256\n\
             stations = [{{ mac = '{REPORTER_MAC}', port = 1 }}]\n",
            self.control,
            folder.join("switch.json"),
        );
        std::fs::write(&config, text).unwrap();
        let config = config.display().to_string();
        let arguments = ["watch", "--switch", "edge", "--ready", "--config", &config];
        let (child, _) = daemon("__translator", &arguments, folder.join("translator.log"));
        (child, std::net::SocketAddrV4::new(SERVICE, 40040))
    }

    /// What a collector's NIC is wired to.
    pub(crate) fn wiring(&self, id: &str) -> Wiring {
        let host = 11 + id.bytes().next().map_or(0, |letter| letter - b'a');
        Wiring::Link { address: Ipv4Addr::new(198, 18, 13, host), link: "packet:vc0" }
    }
}

/// A network namespace, which is gone with this.
struct Namespace(File);

impl Namespace {
    fn enter() -> Namespace {
        let before = File::open("/proc/thread-self/ns/net").unwrap();
        // Possible leftovers of a killed run.
        let _ = Command::new("ip").args(["netns", "delete", NAMESPACE]).output();
        must("ip", &format!("netns add {NAMESPACE}"));
        let file = File::open(format!("/run/netns/{NAMESPACE}")).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        Namespace(before)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network));
        let _ = Command::new("ip").args(["netns", "delete", NAMESPACE]).output();
    }
}

fn must(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
