//! The agent's port, and frames of HTTP/2 without end.

use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::process::Command;
use std::time::Duration;

use dta_proto::control::agent_client::AgentClient;
use dta_proto::control::{AgentStatusRequest, SetTraceRequest, TraceSettings};

use crate::attacker::{Attack, How};
use crate::common::daemon::Daemon;
use crate::flood::Frames;
use crate::{call, endures, other};

/// A namespace, taken away at the end.
struct Namespace(String);

impl Namespace {
    fn make() -> Self {
        let name = format!("dtaatk{}", std::process::id());
        let line = format!(
            "ip netns add {name} && ip -n {name} link set lo up \
             && for n in 1 2 3 4 5 6; do ip -n {name} link add d$n type veth peer name e$n || exit 1; done"
        );
        assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success(), "{line}");
        Self(name)
    }

    /// A socket inside that sends to itself.
    fn socket(&self) -> UdpSocket {
        let file = std::fs::File::open(format!("/run/netns/{}", self.0)).unwrap();
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let network = rustix::thread::LinkNameSpaceType::Network;
                rustix::thread::move_into_link_name_space(file.as_fd(), Some(network)).unwrap();
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.connect(socket.local_addr().unwrap()).unwrap();
                socket
            });
            inside.join().unwrap()
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

async fn agent_under(namespace: &Namespace, attack: Attack) {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("agent.toml");
    let text = format!(
        "[agent]\nlisten = \"127.0.0.1:0\"\ntranslator = \"127.0.0.1:9\"\nnamespaces = true\n[trace]\nat = [\"netns:{}/iface:lo\"]\n",
        namespace.0
    );
    std::fs::write(&config, text).unwrap();
    let daemon = Daemon::start(&["__reporter", "agent", "--config", config.to_str().unwrap()]);
    let mut other = AgentClient::new(other(daemon.said("listen").parse().unwrap()).await);
    let socket = namespace.socket();
    let mut before = None;
    let ask = async |_| {
        socket.send(b"traced").unwrap();
        let counters = other.status(AgentStatusRequest {}).await?.into_inner().counters;
        let packets = counters.iter().find(|counter| counter.name == "trace.packets").unwrap().value;
        tokio::time::sleep(Duration::from_millis(100)).await;
        // It still reports packets.
        Ok(packets >= *before.get_or_insert(packets) + 20)
    };
    endures(daemon, "agent", 0, attack, ask).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "attaches programs to the kernel in a network namespace: needs root"]
async fn an_agent_answers_others_and_goes_on_to_trace() {
    let namespace = Namespace::make();
    let at = format!("netns:{}/iface:lo", namespace.0);
    let set = |at: &[String], filter: String| {
        let at = at.to_vec();
        call(
            "/dta.v1.Agent/SetTrace",
            &SetTraceRequest { trace: Some(TraceSettings { at, filter, ..Default::default() }) },
        )
    };
    let terms = || (0..800).fold("udp".to_owned(), |all, _| all + " or udp");
    let few = set(std::slice::from_ref(&at), terms());
    // All of these are attached and detached again, while long messages are read.
    let pairs = (1..7).map(|n| format!("netns:{}/iface:d{n}", namespace.0));
    let many: Vec<String> = std::iter::once(at).chain(pairs).collect();
    let sets = vec![few.clone(), set(&many, terms()), set(&[], " ".repeat(4_000_000))];
    let attack =
        |how, addresses, connections, calls, what| Attack { how, addresses, connections, calls, what };
    agent_under(&namespace, attack(How::Cancelled, 1, 4, 16, sets.clone())).await;
    agent_under(&namespace, attack(How::Whole, 1, 4, 16, vec![few.clone()])).await;
    let status = call("/dta.v1.Agent/Status", &AgentStatusRequest {});
    agent_under(&namespace, attack(How::Unread, 1, 20, 32, vec![few, status])).await;
    agent_under(&namespace, attack(How::Empty, 4, 2, 16, sets)).await;
    for frames in [Frames::Pings, Frames::Settings, Frames::Continuation, Frames::Bomb] {
        agent_under(&namespace, attack(How::Flood(frames), 1, 20, 1, Vec::new())).await;
    }
    agent_under(&namespace, attack(How::Flood(Frames::None), 10, 60, 1, Vec::new())).await;
}
