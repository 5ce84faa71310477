//! The messages through ssh: one JSON object per line, in both directions.

use std::net::{Ipv4Addr, SocketAddrV4};

use dta_link::fault::Faults;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::accounting::ReporterSide;
use crate::reporters::Delivery;

/// Hidden first argument of this program on another machine.
pub const ROLE: &str = "__machine";

/// The agent's first message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Version and commit of its program, which must be the manager's.
    pub version: String,
    /// Its folder, removed when it ends.
    pub folder: String,
}

/// Requests of the manager. All but [`Request::Alive`] and [`Request::End`] are answered, in order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    Alive,
    End,
    /// Writes a text to a file in the folder.
    Write {
        name: String,
        text: String,
    },
    /// Reads a file in the folder: an array of bytes.
    Read {
        name: String,
    },
    /// Starts this program in another role, with its log in `NAME.log`; the answer is its ready line.
    Start {
        /// `collector` or `translator`.
        name: String,
        arguments: Vec<String>,
    },
    /// Starts `simple_switch_grpc` without a program, and waits until it listens.
    SimpleSwitch {
        /// `PORT@INTERFACE` each.
        interfaces: Vec<String>,
        /// Where P4Runtime listens: HOST:PORT.
        control: String,
    },
    /// Bytes waiting in the receive queue of a UDP socket.
    Backlog {
        socket: SocketAddrV4,
    },
    /// What its clock shows: milliseconds since 1970.
    Clock,
    Reporters {
        count: u16,
        /// Their source, and the destination.
        source: Ipv4Addr,
        /// See `source`.
        translator: SocketAddrV4,
        faults: Faults,
        /// For what they choose at random.
        seed: u64,
    },
    /// Sends reports, in order, and repeats what is requested; the answer is a [`Reported`].
    Report {
        reports: Vec<Outgoing>,
    },
    /// Opens interfaces that send frames and count incoming packets.
    Traffic {
        interfaces: Vec<String>,
    },
    Frames {
        /// Each with its interface, counted from 1.
        frames: Vec<(u8, Vec<u8>)>,
    },
    /// Packets and bytes received on each interface since it was opened: a list of pairs.
    Received,
    /// Carries out an operation on the switch of a dta-translator configuration in the folder.
    Switch {
        config: String,
        name: String,
        what: OfSwitch,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OfSwitch {
    /// Programs it; for a translator, opens its session first.
    Setup,
    /// Its counters: a list of [`dta_proto::control::NodeStatistics`].
    Statistics,
    /// The counters of a reporter's program: lists by name.
    Counters,
    /// Makes it send what it holds: returns the number of reports.
    Flush,
}

/// A report of a switch, as sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outgoing {
    pub switch: u16,
    /// Whether it must be sent before the next one of another switch.
    pub at_once: bool,
    /// The report in version 1. The reporter numbers it.
    pub bytes: Vec<u8>,
}

/// The result of sending reports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Reported {
    /// What left since the last answer.
    pub deliveries: Vec<Delivery>,
    /// Reports that the faults held back, by switch and number there: other switches' may have overtaken them.
    pub held: Vec<(u16, u32)>,
    pub side: ReporterSide,
}

/// Messages of the agent after [`Hello`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum AgentMessage {
    /// The answer to the oldest open request, or why there is none.
    Answer(Result<Value, String>),
    Log {
        name: String,
        text: String,
    },
    /// A daemon has ended unexpectedly.
    Ended {
        /// Which one, how, and the end of its log.
        what: String,
    },
}
