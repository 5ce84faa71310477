//! Events as lines of JSON.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use dta_proto::drop_reason::DropReason;
use dta_proto::telemetry::{Location, TelemetryEntry};
use dta_proto::to_hex_digits;
use serde::Serialize;

use crate::events::{Positions, TelemetryEvent};
use crate::fields::EventFields;
use crate::names::Names;
use crate::networks::FlowNetworks;

/// An event as a line of JSON. Unknown values are left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EventLine {
    /// Nanoseconds since 1970, or what the translator is set to send.
    pub time: u64,
    /// `change`, `drop` or `congestion`.
    pub event: &'static str,
    /// What changed: `hop-latency` and the like.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<&'static str>,
    /// Why it was reported: `new`, `moved`, `keep-alive`, `loop` or `learning`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'static str>,
    /// The key in hex; left out if the packet could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The flow, such as `10.0.0.1:5000->10.0.0.2:5000/udp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    #[serde(flatten)]
    pub ends: FlowNetworks,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress_port: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress_port_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
    /// The value; for a path, its number of hops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<u64>,
    /// The previous value; left out for a new key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<u64>,
    /// Switches in the order in which packets pass them; null for an unknown one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Vec<Option<u32>>>,
    /// Whether the path passes a switch twice.
    #[serde(rename = "loop", skip_serializing_if = "Option::is_none")]
    pub looped: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<DropReason>,
    /// Whose number the reason is: `int` or `sflow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason_source: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason_name: Option<String>,
    /// Occupancy of a congested queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occupancy: Option<u32>,
    /// Nanoseconds in the switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<u32>,
}

impl EventLine {
    /// What is known about an event; `None` for an entry of the key directory.
    pub fn from_event(event: &TelemetryEvent, names: &Names) -> Option<EventLine> {
        let (kind, time, change) = match event.entry {
            TelemetryEntry::Change { time, metric, why, .. } => ("change", time, Some((metric, why))),
            TelemetryEntry::Drop { time, .. } => ("drop", time, None),
            TelemetryEntry::Congestion { time, .. } => ("congestion", time, None),
            TelemetryEntry::Key { .. } => return None,
        };
        let fields = EventFields::from_entry(&event.entry, |_| event.meaning);
        let Location { switch, port, queue } = fields.place;
        let port_name = |port| names.port_name_if_known(switch, port).map(str::to_owned);
        let reason_name = fields.reason.and_then(|reason| names.drop_reason(switch, reason));
        let known = |number: u32| Some(number).filter(|number| *number != u32::MAX);
        Some(EventLine {
            time,
            event: kind,
            metric: change.map(|(metric, _)| metric.name()),
            why: change.map(|(_, why)| why.name()),
            key: fields.key.map(|key| to_hex_digits(&key.0)),
            flow: fields.flow.map(|flow| flow.to_string()),
            ends: names.flow_networks(fields.flow),
            switch,
            switch_name: switch.and_then(|switch| names.switch_name(switch)).map(str::to_owned),
            ingress_port: fields.ingress_port,
            ingress_port_name: port_name(fields.ingress_port),
            port,
            port_name: port_name(port),
            queue,
            value: fields.new,
            old: fields.old,
            path: event.path.map(|path| path.stored_switches().iter().map(|switch| known(*switch)).collect()),
            looped: fields.looped,
            reason: fields.reason,
            reason_source: fields.reason.map(DropReason::source_name),
            reason_name: reason_name.map(str::to_owned),
            occupancy: fields.occupancy,
            latency: fields.latency,
        })
    }
}

#[derive(Debug)]
pub(crate) enum LineOutput {
    Stdout,
    /// A file to append to; the file next to it has the positions in the lists.
    File {
        path: PathBuf,
        file: File,
    },
}

impl LineOutput {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        Ok(Self::File { path: path.to_owned(), file: append_to(path)? })
    }

    /// The positions in the lists when the file was last written; `None` if unknown.
    pub(crate) fn read(&self) -> Option<Positions> {
        let Self::File { path, .. } = self else { return None };
        serde_json::from_slice(&std::fs::read(position_path(path)).ok()?).ok()
    }

    /// Writes whole lines, and the positions once they are on disk. A file that was moved away meanwhile is created
    /// again.
    pub(crate) fn write_lines(&mut self, lines: &str, read: Positions) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(lines.as_bytes())?;
                out.flush()
            }
            Self::File { path, file } => {
                let inode = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
                let there = std::fs::metadata(&*path).ok().map(inode);
                if there != Some(inode(file.metadata()?)) {
                    *file = append_to(path)?;
                }
                file.write_all(lines.as_bytes())?;
                file.sync_data()?;
                dta_files::own_file::replace_file(&position_path(path), &serde_json::to_vec(&read)?)
            }
        }
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o640).open(path)
}

fn position_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".position");
    name.into()
}
