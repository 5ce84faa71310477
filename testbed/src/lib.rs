//! The testbed of Direct Telemetry Access (DTA): real processes, simulated switches, and the truth about every report.
//!
//! [`topology`] is the file that describes one; [`capture`] and [`traffic`] have the packets that cross it.
//! [`workload`] says what switches report, [`maker`] how much of it, [`switches`] sends it,
//! [`journal`] knows what became of it on the way; [`check`] asks the collector and
//! compares, [`accounting`] adds up. [`run`] does it all in order. [`far`] has what runs on
//! other machines. [`programmed`] is a testbed of one process: stores, and the program that writes them.
//! [`scenario`] is a network whose switches send INT, NetFlow and sFlow, and in which things go wrong.

pub mod accounting;
pub mod bench;
pub mod bmv2;
pub mod capture;
pub mod chaos;
pub mod check;
pub mod daemons;
pub mod far;
pub mod feed;
pub mod files;
pub mod folder;
pub mod fuzz;
pub mod ground;
pub mod journal;
pub mod maker;
pub mod outcome;
pub mod processes;
pub mod programmed;
pub mod reporters;
pub mod run;
pub mod scenario;
pub mod share;
pub mod show;
pub mod statistics;
pub mod switches;
pub mod topology;
pub mod traffic;
pub mod turns;
pub mod workload;
