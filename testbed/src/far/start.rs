//! Collectors and translator on other machines.

use std::net::{SocketAddr, SocketAddrV4};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use dta_memory::nic::ROCE_PORT;
use dta_proto::control::NodeStatistics;
use dta_proto::store::StoreSpec;
use dta_proto::wire::dta::PORT;
use serde_json::Value;

use super::config::MachineRole;
use super::machine::RemoteMachine;
use super::protocol::{OfSwitch, Request};
use super::tunnel::Tunnel;
use crate::daemons::Plan;
use crate::files::{self, CollectorPlace, TranslatorPlace};
use crate::topology::{Primitive, Topology};
use crate::workload::Workload;

/// The machines of a testbed, each running this program.
pub struct TestbedMachines {
    machines: Vec<Arc<RemoteMachine>>,
}

impl TestbedMachines {
    /// Connects to all machines of a topology. Sockets of ssh go into `folder`, logs into `logs`.
    pub async fn connect_all(
        topology: &Topology,
        folder: &Path,
        logs: &Path,
    ) -> anyhow::Result<TestbedMachines> {
        let mut machines = Vec::new();
        for machine in &topology.machines {
            machines.push(Arc::new(RemoteMachine::connect(machine, &topology.ssh, folder, logs).await?));
        }
        // They end in this order.
        machines.sort_by_key(|machine| machine.settings.roles.iter().map(|role| role.end_order()).max());
        Ok(TestbedMachines { machines })
    }

    pub fn machine_with_role(&self, role: MachineRole) -> anyhow::Result<Arc<RemoteMachine>> {
        let found = self.machines.iter().find(|machine| machine.settings.has_role(role));
        found.cloned().with_context(|| format!("the topology has no machine with the role {}", role.name()))
    }

    /// All machines with a role, in file order.
    pub fn machines_with_role(&self, role: MachineRole) -> Vec<Arc<RemoteMachine>> {
        self.machines.iter().filter(|machine| machine.settings.has_role(role)).cloned().collect()
    }

    /// If a machine is gone, or a daemon there, that explains a failure better.
    pub async fn explain_failure(&self, error: anyhow::Error) -> anyhow::Error {
        for machine in &self.machines {
            if let Some(trouble) = machine.trouble_message().await {
                return anyhow!("{trouble}");
            }
        }
        error
    }
}

/// A P4 switch, through its control plane on another machine.
pub struct FarSwitch {
    machine: Arc<RemoteMachine>,
    /// Whether it can be made to send what it holds.
    flushes: bool,
}

/// The translator's configuration there, and the switch in it.
const CONFIG: &str = "translator.toml";
/// Its name, also of its session: it must differ from that of the translator in the same file.
const SWITCH: &str = "testbed-switch";

impl FarSwitch {
    async fn call<T: serde::de::DeserializeOwned>(&self, what: OfSwitch) -> anyhow::Result<T> {
        let request = Request::Switch { config: CONFIG.into(), name: SWITCH.into(), what };
        self.machine.call(&request).await
    }

    pub async fn statistics(&self) -> anyhow::Result<Vec<NodeStatistics>> {
        self.call(OfSwitch::Statistics).await
    }

    /// Makes it send what it holds; returns the number of reports. A Tofino without `cpu_interface` keeps it.
    pub async fn flush_switch(&self) -> anyhow::Result<u64> {
        match self.flushes {
            true => self.call(OfSwitch::Flush).await,
            false => Ok(0),
        }
    }
}

/// A collector on another machine.
pub struct FarCollector {
    pub machine: Arc<RemoteMachine>,
    /// Where its gRPC is reached from here.
    pub control: Tunnel,
    /// Where RoCEv2 frames go.
    pub roce: SocketAddrV4,
}

/// What runs on other machines.
pub struct Started {
    /// The collectors, in the order of the file.
    pub collectors: Vec<FarCollector>,
    pub reports: SocketAddrV4,
    pub translator: FarTranslator,
    pub translator_machine: Arc<RemoteMachine>,
}

/// A translator on another machine.
pub enum FarTranslator {
    /// The software, by its own service's address as seen from here.
    Software(Tunnel),
    Switch(FarSwitch),
}

/// Starts collectors and translator, and waits until they are ready.
pub async fn start_remote_nodes(plan: &Plan<'_>, far: &TestbedMachines) -> anyhow::Result<Started> {
    let at_translator = far.machine_with_role(MachineRole::Translator)?;
    let (mut collectors, mut lent) = (Vec::new(), Vec::new());
    for (number, machine) in far.machines_with_role(MachineRole::Collector).into_iter().enumerate() {
        let collector = start_collector(plan, number, machine).await?;
        lent.push(forward_remote_port(&at_translator, collector.control.address).await?.to_string());
        collectors.push(collector);
    }
    let reports = SocketAddrV4::new(at_translator.settings.address, PORT);
    let place = TranslatorPlace {
        listen: reports.to_string(),
        control: "127.0.0.1:0".into(),
        collectors: lent,
        source: (*reports.ip()).into(),
        source_port: ROCE_PORT,
        ring: "off".into(),
    };
    let text = files::translator(plan, &place);
    let translator = match &at_translator.settings.switch {
        None => {
            write_remote_file(&at_translator, CONFIG, text).await?;
            let folder = &at_translator.folder;
            let (config, ledger) = (format!("{folder}/{CONFIG}"), format!("{folder}/ledger0"));
            let ready = start_remote_daemon(
                &at_translator,
                "translator",
                files::translator_arguments(plan, config, ledger),
            )
            .await?;
            let control = ready_field(&ready, "control")?.to_owned();
            FarTranslator::Software(Tunnel::open(at_translator.connection().clone(), control).await?)
        }
        Some(switch) => {
            let text = format!("{text}\n{}", sketch_reporters(plan.topology, switch));
            FarTranslator::Switch(program_switch(plan, &at_translator, text, switch.clone()).await?)
        }
    };
    Ok(Started { collectors, reports, translator, translator_machine: at_translator })
}

/// Starts a collector, by its number among all.
async fn start_collector(
    plan: &Plan<'_>,
    number: usize,
    machine: Arc<RemoteMachine>,
) -> anyhow::Result<FarCollector> {
    let device = &plan.topology.collector.device;
    let place = CollectorPlace {
        number,
        // It hands out keys to memory, which must go through ssh only.
        listen: "127.0.0.1:0".into(),
        memory: format!("{}/memory", machine.folder),
        address: machine.settings.address.into(),
        port: ROCE_PORT,
        device,
        verbs: (device != "soft").then_some(machine.settings.address.into()),
        link: machine.settings.link.as_deref(),
    };
    write_remote_file(&machine, "collector.toml", files::collector(plan, &place)?).await?;
    let config = format!("{}/collector.toml", machine.folder);
    let ready = start_remote_daemon(&machine, "collector", files::collector_arguments(plan, config)).await?;
    let roce = ready_field(&ready, "roce")?.parse().context("the collector's RoCEv2 address")?;
    let control =
        Tunnel::open(machine.connection().clone(), ready_field(&ready, "listen")?.to_owned()).await?;
    Ok(FarCollector { machine, control, roce })
}

/// Loads the translator's program into a switch; starts the switch first if it is software. If epochs turn, the switch is
/// kept in step with the collectors.
async fn program_switch(
    plan: &Plan<'_>,
    machine: &Arc<RemoteMachine>,
    text: String,
    switch: toml::Table,
) -> anyhow::Result<FarSwitch> {
    if !machine.settings.simple_switch.is_empty() {
        start_bmv2(machine, &switch).await?;
    }
    let is_tofino = switch.get("type").and_then(toml::Value::as_str) == Some("tofino");
    let flushes = !is_tofino || switch.contains_key("cpu_interface");
    write_remote_file(machine, CONFIG, switch_file(&text, switch, &machine.folder)).await?;
    let switch = FarSwitch { machine: Arc::clone(machine), flushes };
    if plan.epochs.is_some() {
        let config = format!("{}/{CONFIG}", machine.folder);
        let arguments = ["watch", "--ready", "--switch", SWITCH, "--config", &config];
        start_remote_daemon(machine, "translator", arguments.map(String::from).into()).await?;
    } else {
        switch.call::<()>(OfSwitch::Setup).await?;
    }
    Ok(switch)
}

/// Starts bmv2 on a machine, with the interfaces in its settings.
pub async fn start_bmv2(machine: &RemoteMachine, switch: &toml::Table) -> anyhow::Result<()> {
    let control = switch.get("control").and_then(toml::Value::as_str);
    let control = control.context("`control` of the switch says where P4Runtime listens, HOST:PORT")?;
    let interfaces = machine.settings.simple_switch.clone();
    machine.call(&Request::SimpleSwitch { interfaces, control: control.to_owned() }).await
}

/// Bits for the reporters that send columns of sketches, if the switch has the store for them: it assigns none by
/// itself.
fn sketch_reporters(topology: &Topology, switch: &toml::Table) -> String {
    let is_sketch = |store: &&StoreSpec| store.primitive() == Primitive::SketchMerge.canonical_name();
    let Some(StoreSpec { name: store, .. }) = topology.stores.iter().find(is_sketch) else {
        return String::new();
    };
    let stores = switch.get("stores").and_then(toml::Value::as_array);
    if stores.is_some_and(|stores| !stores.is_empty() && !stores.iter().any(|it| it.as_str() == Some(store)))
    {
        return String::new();
    }
    let of = |switch| {
        let reporter = Workload::switch_id(switch);
        format!(
            "[[translator.sketch_reporters]]\nstore = \"{store}\"\nreporter = {reporter}\nbit = {switch}\n"
        )
    };
    (0..topology.network.tiers[0]).map(of).collect()
}

/// A translator's configuration with a switch.
fn switch_file(translator: &str, mut switch: toml::Table, folder: &str) -> String {
    // The next run cannot use what the switch cannot report, so it is not kept.
    switch.insert("state".into(), format!("{folder}/switch.json").into());
    let mut tables = toml::Table::new();
    tables.insert("switch".into(), toml::Table::from_iter([(SWITCH.to_owned(), switch.into())]).into());
    format!("{translator}\n{tables}")
}

/// Writes a file to a machine's folder.
pub async fn write_remote_file(machine: &RemoteMachine, name: &str, text: String) -> anyhow::Result<()> {
    machine.call::<()>(&Request::Write { name: name.into(), text }).await
}

/// Starts a daemon there; returns its ready line.
async fn start_remote_daemon(
    machine: &RemoteMachine,
    name: &str,
    arguments: Vec<String>,
) -> anyhow::Result<Value> {
    machine.call(&Request::Start { name: name.into(), arguments }).await
}

fn ready_field<'a>(ready: &'a Value, field: &str) -> anyhow::Result<&'a str> {
    ready[field].as_str().with_context(|| format!("the ready line {ready} has no {field}"))
}

/// Forwards a port of a machine's loopback to an address here.
async fn forward_remote_port(machine: &RemoteMachine, to: SocketAddr) -> anyhow::Result<SocketAddr> {
    let mut ssh = tokio::process::Command::from(machine.connection().forward_remote_port(&to.to_string()));
    let output = ssh.output().await.context("cannot run ssh")?;
    let port = String::from_utf8_lossy(&output.stdout).trim().parse::<u16>();
    match port {
        Ok(port) if output.status.success() => Ok(SocketAddr::from(([127, 0, 0, 1], port))),
        _ => bail!(
            "{}: its sshd does not forward ports, which the translator needs to reach the collector \
             (AllowTcpForwarding in sshd_config): {}",
            machine.connection().display_name(),
            super::ssh::last_lines(&String::from_utf8_lossy(&output.stderr))
        ),
    }
}

#[cfg(test)]
mod tests {
    use dta_translator::config::{Config, Switch};

    use super::*;

    /// The TOML blocks of the page about machines.
    fn blocks() -> Vec<&'static str> {
        let page = include_str!("../../../docs/testbed-machines.md");
        page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
    }

    #[test]
    fn the_example_of_the_page_is_a_topology_and_its_switch_can_be_programmed() {
        let blocks = blocks();
        let topology = Topology::parse_and_check(blocks[0], "hardware.toml").unwrap();
        let names: Vec<&str> = topology.machines.iter().map(|machine| &*machine.name).collect();
        assert_eq!(names, ["store1", "edge1", "load1"]);
        assert!(topology.machines[1].deploy && topology.machines[2].program == "~/bin/dta-manager");
        // The switch replaces the machine with the software translator.
        let (before, rest) = blocks[0].split_once("[[machine]]\nname = \"edge1\"").unwrap();
        let (_, after) = rest.split_once("[[machine]]").unwrap();
        let text = format!("{before}{}\n[[machine]]{after}", blocks[2]);
        let topology = Topology::parse_and_check(&text, "hardware.toml").unwrap();
        let edge = &topology.machines[1];
        assert_eq!(edge.simple_switch, ["1@eth1", "2@eth2"]);
        let plan = Plan::with_soft_nic(&topology, Path::new("/nowhere"));
        let place = TranslatorPlace {
            listen: format!("{}:{PORT}", edge.address),
            control: "127.0.0.1:0".into(),
            collectors: vec!["127.0.0.1:1".into()],
            source: edge.address.into(),
            source_port: ROCE_PORT,
            ring: "off".into(),
        };
        let file = switch_file(&files::translator(&plan, &place), edge.switch.clone().unwrap(), "/nowhere");
        let (config, _) = Config::parse(&file, Path::new("translator.toml")).unwrap();
        config.check_values().unwrap();
        let Switch::Bmv2(p4) = config.find_switch(SWITCH).unwrap() else { panic!("{file}") };
        assert_eq!((p4.collector_ports.len(), p4.stations.len()), (1, 1));
        let translator = config.translator_of(SWITCH).unwrap();
        assert_eq!(translator.listen.to_string(), "192.0.2.2:40040");
        assert_eq!(translator.flush.append_ms, 0, "nothing is flushed by age");
    }

    #[test]
    fn the_second_collector_of_the_page_has_what_the_page_says() {
        let blocks = blocks();
        let text = blocks[0].replacen("[network]", &format!("{}\n[network]", blocks[1]), 1);
        let topology = Topology::parse_and_check(&text, "hardware.toml").unwrap();
        let share = topology.collector_share();
        assert_eq!(share.collectors(), 2);
        let addresses = ["127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned()];
        let tables = share.collector_tables(&addresses, &topology.stores);
        let (first, second) = tables.rsplit_once("[[translator.collector]]").unwrap();
        assert!(
            first.contains("buckets = \"0-127\"") && second.contains("buckets = \"128-255\""),
            "{tables}"
        );
        assert!(
            first.contains("first = 0, count = 1") && second.contains("first = 1, count = 1"),
            "{tables}"
        );
        assert!(first.contains("\"packets\"") && !second.contains("\"packets\""), "{tables}");
    }

    #[test]
    fn what_is_wrong_about_machines_is_named_with_its_line() {
        let page = blocks()[0];
        for (from, to, expect) in [
            ("roles = [\"host\"]", "roles = [\"translator\"]", "one of the role translator"),
            ("name = \"load1\"", "name = \"edge1\"", "another name"),
            ("name = \"load1\"", "name = \"a/b\"", "letters, digits and hyphens"),
            ("ssh = \"load1\"", "ssh = \"-oProxyCommand=x\"", "[USER@]HOST"),
            ("program = \"/usr/bin/dta-manager\"", "progam = \"x\"", "unknown field `progam`"),
            ("deploy = true ", "deploy = true\nprogram = \"/x\" ", "left out where deploy = true"),
            (
                "address = \"192.0.2.3\"",
                "address = \"192.0.2.3\"\nlink = \"packet:eth0\"",
                "role collector alone",
            ),
            ("config = \"ssh_config\"", "key = \"secret\"", "unknown field `key`"),
        ] {
            assert!(page.contains(from), "{from}");
            let error = Topology::parse_and_check(&page.replacen(from, to, 1), "hardware.toml")
                .expect_err(to)
                .to_string();
            assert!(error.contains(expect) && error.contains(", line "), "{to}: {error}");
        }
    }

    #[test]
    fn the_example_with_a_reporter_is_a_topology_and_what_is_wrong_about_it_is_named() {
        let page = blocks()[3];
        let topology = Topology::parse_and_check(page, "hardware.toml").unwrap();
        assert!(topology.has_reporter_switch() && topology.stores.is_empty());
        assert_eq!(
            (&topology.machines[2].host_ports[..], topology.machines[2].translator.unwrap().port),
            (&[1, 2][..], 3)
        );
        let leaf = "address = \"192.0.2.7\"";
        for (from, to, expect) in [
            ("roles = [\"traffic\"]", "roles = [\"host\"]", "as many of the role traffic"),
            ("roles = [\"traffic\"]", "roles = [\"traffic\", \"host\"]", "1 of role host"),
            ("roles = [\"reporter\"]", "roles = [\"reporter\", \"translator\"]", "2 of role translator"),
            ("interfaces = [\"eth1\", \"eth2\"]", "interfaces = [\"eth1\"]", "two interfaces"),
            ("host_ports = [1, 2]", "host_ports = [1, 1]", "two ports of the switch"),
            ("translator = { port = 3", "translator = { port = 2", "a port of its own"),
            ("simple_switch = [\"1@eth1\", \"2@eth2\", \"3@eth3\"]\n", "", "which the run starts"),
            (leaf, "address = \"192.0.2.7\"\ninterfaces = [\"eth1\", \"eth2\"]", "role traffic alone"),
            (
                "mac = \"02:00:00:00:00:77\"\n",
                "mac = \"02:00:00:00:00:77\"\nflood = [1]\n",
                "the run says the rest",
            ),
            ("name = \"two-switches\"", "name = \"x\"\n[network]\ntiers = [2]", "left out where"),
        ] {
            assert!(page.contains(from), "{from}");
            let error = Topology::parse_and_check(&page.replacen(from, to, 1), "hardware.toml")
                .expect_err(to)
                .to_string();
            assert!(error.contains(expect) && error.contains("hardware.toml"), "{to}: {error}");
        }
        // A second one, whose hosts say which is theirs.
        let two = format!("{page}{}", blocks()[4]);
        let first = "interfaces = [\"eth1\", \"eth2\"]           # of two hosts";
        let whole = two.replacen(first, &format!("{first}\nreporter = \"leaf1\""), 1);
        assert_ne!(whole, two);
        assert_eq!(Topology::parse_and_check(&whole, "hardware.toml").unwrap().machines.len(), 6);
        for (text, expect) in [
            (two.clone(), "the name of the machine with the reporter"),
            (
                whole.replace("reporter = \"leaf1\"", "reporter = \"store1\""),
                "a machine with the role reporter",
            ),
            (whole.replace("reporter = \"leaf1\"", "reporter = \"leaf2\""), "each has its own"),
            (whole.replacen(leaf, &format!("{leaf}\nreporter = \"leaf1\""), 1), "role traffic alone"),
            (
                whole.replace(
                    "roles = [\"traffic\"]\naddress = \"192.0.2.5\"",
                    "roles = [\"collector\"]\naddress = \"192.0.2.5\"",
                ),
                "as many of the role traffic",
            ),
        ] {
            let error = Topology::parse_and_check(&text, "hardware.toml").expect_err(expect).to_string();
            assert!(error.contains(expect) && error.contains(", line "), "{error}");
        }
        // A Tofino is there before the run.
        let (before, after) = page.rsplit_once("type = \"bmv2\"").unwrap();
        let tofino = format!("{before}type = \"tofino\"{after}");
        let error = Topology::parse_and_check(&tofino, "hardware.toml").unwrap_err().to_string();
        assert!(error.contains("whose switch is of type \"bmv2\""), "{error}");
        let tofino = tofino.replace("simple_switch = [\"1@eth1\", \"2@eth2\", \"3@eth3\"]\n", "");
        Topology::parse_and_check(&tofino, "hardware.toml").unwrap();
    }
}
