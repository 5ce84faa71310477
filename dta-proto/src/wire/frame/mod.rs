//! Whole RoCEv2 frames, by a fixed profile, so that two translators emit the same bytes.
//!
//! - IPv4: id 0, "don't fragment", TTL 64 and TOS 0 unless a [`FrameRoute`] says otherwise;
//! - IPv6: flow label 0, the same TTL as hop limit and the same TOS as traffic class;
//! - UDP: source port [`source_port`], checksum 0;
//! - BTH: SE 0, MigReq 1, P_Key 0xffff, byte 4 zero, as [`super::roce::Bth::new`] has it;
//! - the iCRC always computed.
//!
//! [`FrameRoute::write_frame`] writes any packet; [`WriteTemplate`] and its kin write the same bytes faster, for many
//! frames of one kind. [`Received`] checks and parses received frames.

mod received;
mod route;
mod template;

pub use received::Received;
pub use route::{FrameRoute, source_port};
pub use template::{FetchAddTemplate, WriteImmTemplate, WriteTemplate};
