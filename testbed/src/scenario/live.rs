//! A scenario in real time: its devices send to a translator, which writes into the memory of a collector with a page.

use std::collections::btree_map::{BTreeMap, Entry};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use dta_link::netstat;
use dta_proto::control::{Alert, AlertsRequest};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, ClientOptions};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::network::{render_names, render_networks};
use super::{Listener, Scenario, TICK};
use crate::daemons::{own_loopback_address, ready_text};
use crate::processes::Daemon;

/// Bytes that may wait in a socket of the translator: on a busy machine, the scenario waits instead of losing datagrams.
const MOST_WAITING: u64 = 1 << 16;

/// The daemons end when this is dropped.
pub struct LiveNetwork {
    pub scenario: Scenario,
    translator: Daemon,
    collector: Daemon,
    client: RemoteCollector,
    last_transition: u64,
    sockets: BTreeMap<Ipv4Addr, UdpSocket>,
    flows: SocketAddrV4,
    int: SocketAddrV4,
    ticks: Interval,
}

impl LiveNetwork {
    /// Starts a collector, whose gRPC is at `listen`, and a translator, with all their files in `folder`.
    ///
    /// # Errors
    /// A file cannot be written; a daemon does not start.
    pub async fn start(scenario: Scenario, listen: SocketAddr, folder: &Path) -> anyhow::Result<LiveNetwork> {
        let path = |name: &str| folder.join(name).display().to_string();
        let write = |name: &str, text: String| {
            std::fs::write(folder.join(name), text)
                .with_context(|| format!("cannot write {}", path(name)))?;
            anyhow::Ok(path(name))
        };
        let quoted = |text: String| toml::Value::from(text);
        write("networks.csv", render_networks())?;
        let names = quoted(write("names.toml", format!("networks = \"networks.csv\"\n{}", render_names()))?);
        let memory = quoted(path("memory"));
        let config = format!(
            "[collector]\nname = \"demo\"\nlisten = \"{listen}\"\nmemory = {memory}\nnames = {names}\n[soft]\nport = 0\n\
             [metrics]\nlisten = \"off\"\n[web]\nlisten = \"127.0.0.1:0\"\n"
        );
        let arguments = ["serve".into(), "--config".into(), write("collector.toml", config)?];
        let log = folder.join("collector.log");
        let collector = Daemon::spawn_until_ready("collector", "__collector", &arguments, &log).await?;
        let config = format!(
            "[translator]\nname = \"demo\"\nlisten = \"127.0.0.1:0\"\ncontrol = \"127.0.0.1:0\"\nmetrics = \"off\"\n\
             collector = \"http://{}\"\nsource = \"{}\"\nsource_port = 0\n\
             [translator.int]\nlisten = [\"udp://127.0.0.1:0\"]\n[translator.flows]\nlisten = [\"udp://127.0.0.1:0\"]\n",
            ready_text(&collector, "/listen")?,
            own_loopback_address(),
        );
        let config = write("translator.toml", config)?;
        let arguments = ["run".into(), "--ready".into(), "--config".into(), config];
        let log = folder.join("translator.log");
        let translator = Daemon::spawn_until_ready("translator", "__translator", &arguments, &log).await?;
        let listener = |pointer| ready_text(&translator, pointer)?.parse().context("a translator's listener");
        let (flows, int) = (listener("/flows/0")?, listener("/int/0")?);
        let client =
            RemoteCollector::connect_lazy(&ClientOptions::without_tls(ready_text(&collector, "/listen")?))?;
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let sockets = BTreeMap::new();
        Ok(LiveNetwork {
            scenario,
            translator,
            collector,
            client,
            last_transition: 0,
            sockets,
            flows,
            int,
            ticks,
        })
    }

    /// The address of the collector's page, with a slash at its end.
    ///
    /// # Errors
    /// The collector has no page.
    pub fn page_url(&self) -> anyhow::Result<&str> {
        ready_text(&self.collector, "/web")
    }

    /// Where the collector's gRPC is.
    ///
    /// # Errors
    /// The collector did not say it.
    pub fn collector_address(&self) -> anyhow::Result<&str> {
        ready_text(&self.collector, "/listen")
    }

    /// Alerts of the collector that have begun to fire since the last call.
    ///
    /// # Errors
    /// The collector does not answer.
    pub async fn fetch_fired_alerts(&mut self) -> anyhow::Result<Vec<Alert>> {
        let request = AlertsRequest { after: self.last_transition, most: u32::MAX };
        let transitions = self.client.fetch_alerts(request).await?.transitions;
        self.last_transition = transitions.last().map_or(self.last_transition, |last| last.number);
        let alerts = transitions.into_iter().filter_map(|transition| transition.alert);
        Ok(alerts.filter(Alert::is_firing).collect())
    }

    /// Waits for the next tick, and sends what devices send in it.
    ///
    /// # Errors
    /// A daemon has ended; a datagram cannot be sent.
    pub async fn play_tick(&mut self) -> anyhow::Result<()> {
        self.ticks.tick().await;
        self.collector.check_running()?;
        self.translator.check_running()?;
        for to in [self.flows, self.int] {
            while netstat::socket_backlog(to)?.is_some_and(|waiting| waiting > MOST_WAITING) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        for datagram in self.scenario.advance_tick() {
            let to = match datagram.to {
                Listener::Flows => self.flows,
                Listener::Int => self.int,
            };
            let source = datagram.source;
            let failed = || format!("cannot send from {source} to {to}");
            let socket = match self.sockets.entry(source) {
                Entry::Occupied(socket) => socket.into_mut(),
                Entry::Vacant(place) => place.insert(UdpSocket::bind((source, 0)).with_context(failed)?),
            };
            socket.send_to(&datagram.payload, to).with_context(failed)?;
        }
        Ok(())
    }
}
