//! The thread that carries packets between the links and the software data plane, and what it
//! counts.
//!
//! It knows neither sessions nor targets: it is told by [`Command`]s what to do.

mod bell;
mod int_side;
pub mod ledger;
mod packet_thread;
mod roce_link;
mod stats;
pub mod steering;

pub use bell::Bell;
pub use int_side::{IntSide, MOST_LISTENERS};
pub use packet_thread::{Command, Dropped, Member, PacketThread, PacketThreadError, Snapshot};
pub use roce_link::RoceLink;
pub(crate) use stats::for_collector;
pub use stats::nodes;
