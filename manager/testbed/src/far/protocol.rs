//! What is said through ssh: one JSON object in each line, in both directions.

use std::net::{Ipv4Addr, SocketAddrV4};

use dta_link::fault::Faults;
use dta_proto::control::NodeStatistics;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::accounting::ReporterSide;
use crate::reporters::Told;

/// Hidden first argument of this program on another machine.
pub const ROLE: &str = "__machine";

/// What the agent says first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Version and commit of its program: those of the manager, or they may not understand each other.
    pub version: String,
    /// Its folder, which is removed when it ends.
    pub folder: String,
}

/// What the manager asks for. All but [`Request::Alive`] and [`Request::End`] are answered, in order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// The manager is still there.
    Alive,
    /// Everything is to end.
    End,
    /// Writes a text into a file of the folder.
    Write {
        /// Its name there.
        name: String,
        /// What it holds.
        text: String,
    },
    /// Reads a file of the folder: an array of bytes.
    Read {
        /// Its name there.
        name: String,
    },
    /// Starts this program in another role, with its log in `NAME.log`; the answer is its ready line.
    Start {
        /// `collector` or `translator`.
        name: String,
        /// What it is told.
        arguments: Vec<String>,
    },
    /// Starts `simple_switch_grpc` without a program, and waits until it listens.
    SimpleSwitch {
        /// `PORT@INTERFACE` each.
        interfaces: Vec<String>,
        /// Where P4Runtime listens: HOST:PORT.
        control: String,
    },
    /// Bytes that wait in the receive queue of a UDP socket.
    Backlog {
        /// Where it is bound.
        socket: SocketAddrV4,
    },
    /// Opens reporters.
    Reporters {
        /// How many.
        count: u16,
        /// Where they send from, and to.
        source: Ipv4Addr,
        /// See `source`.
        translator: SocketAddrV4,
        /// On what they send.
        faults: Faults,
        /// Of what they choose by chance.
        seed: u64,
    },
    /// Sends reports, in order, and again what is asked for; the answer is a [`Reported`].
    Report {
        /// What is sent.
        reports: Vec<Outgoing>,
    },
    /// Opens interfaces that send frames, and count what comes in.
    Traffic {
        /// Their names.
        interfaces: Vec<String>,
    },
    /// Sends frames.
    Frames {
        /// Each with its interface, counted from 1.
        frames: Vec<(u8, Vec<u8>)>,
    },
    /// Packets and bytes that came in at each interface since it was opened: a list of pairs.
    Received,
    /// Does something with the switch of a configuration of dta-translator in the folder.
    Switch {
        /// The file.
        config: String,
        /// The switch.
        name: String,
        /// What.
        what: OfSwitch,
    },
}

/// What can be done with a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OfSwitch {
    /// Programs it; of a translator, its session is opened before.
    Setup,
    /// Its counters: a list of [`NodeCounters`].
    Statistics,
    /// The counters of a reporter's program: lists by name.
    Counters,
    /// It sends what it holds: how many reports that were.
    Flush,
}

/// A report of a switch, as it leaves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outgoing {
    /// The switch.
    pub switch: u16,
    /// Whether it leaves before the next one of another switch.
    pub at_once: bool,
    /// The report in version 1. The reporter numbers it.
    pub bytes: Vec<u8>,
}

/// What became of reports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Reported {
    /// What left since the last answer.
    pub told: Vec<Told>,
    /// Reports that the faults held back, by switch and number there: others' may have overtaken them.
    pub held: Vec<(u16, u32)>,
    /// Counters of all reporters.
    pub side: ReporterSide,
}

/// Counters of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeCounters {
    /// Its name.
    pub node: String,
    /// Names and values.
    pub counters: Vec<(String, u64)>,
}

impl From<NodeStatistics> for NodeCounters {
    fn from(node: NodeStatistics) -> Self {
        let counters = node.counters.into_iter().map(|counter| (counter.name, counter.value)).collect();
        Self { node: node.node, counters }
    }
}

impl From<NodeCounters> for NodeStatistics {
    fn from(node: NodeCounters) -> Self {
        let counter = |(name, value)| dta_proto::control::Counter { name, value };
        Self {
            node: node.node,
            counters: node.counters.into_iter().map(counter).collect(),
            ..NodeStatistics::default()
        }
    }
}

/// What the agent says after [`Hello`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Message {
    /// The answer to the oldest request that has none, or why there is none.
    Answer(Result<Value, String>),
    /// More of a log.
    Log {
        /// Its name.
        name: String,
        /// What was added.
        text: String,
    },
    /// A daemon has ended that should not have.
    Ended {
        /// Which, how, and the end of its log.
        what: String,
    },
}
