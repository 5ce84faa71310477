//! Telemetry in the formats of others: flow exports (NetFlow, IPFIX, sFlow).

pub mod flows;
