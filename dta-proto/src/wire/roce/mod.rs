//! InfiniBand transport headers as RoCEv2 carries them over UDP (InfiniBand Architecture
//! Specification, volume 1, chapter 9, and annex A17), and the invariant CRC.
//!
//! Reliable connection (RC) and unreliable connection (UC) queue pairs; SEND and its kin are recognised and
//! rejected.

mod aeth;
mod bth;
mod build;
mod eth;
mod icrc;
mod opcode;
mod packet;
mod psn;
mod run_ids;

pub use crate::queue_pair::Transport;
pub use aeth::{AETH_LEN, ATOMIC_ACK_ETH_LEN, Aeth, NakCode, Syndrome};
pub use bth::{BTH_LEN, Bth, PKEY_DEFAULT};
pub use build::BthFields;
pub(crate) use build::pad_byte_count;
pub use eth::{ATOMIC_ETH_LEN, AtomicEth, IMM_DT_LEN, ImmDt, RETH_LEN, Reth};
pub use icrc::{ICRC_LEN, compute_icrc, has_valid_icrc};
pub(crate) use icrc::{IPV6_MASK as ICRC_IPV6_MASK, MASK as ICRC_MASK, SEED as ICRC_SEED};
pub use opcode::{HeaderLayout, Opcode};
pub use packet::{RocePacket, RoceRepr};
pub use psn::Psn;
pub use run_ids::{RUN_IDS, icrc_ok_for_any_id, may_be_numbered, number_icrc, settle_icrc};

use crate::wire::{Error, Layer, WireErrorKind};

/// UDP destination port of RoCEv2.
pub const PORT: u16 = 4791;

/// Largest queue pair number (24 bits).
pub const QPN_MASK: u32 = 0xff_ffff;

const fn err(field: &'static str, offset: u16, kind: WireErrorKind) -> Error {
    Error::new(Layer::Roce, field, offset, kind)
}
