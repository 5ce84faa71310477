//! A translator in a cluster: its collectors come and go, and what each holds moves.
//!
//! - [`roster`]: which collectors there are, and their indices.
//! - [`placing`]: the placement in effect for each store, and the part of a collector's grant that is used under it.
//! - [`following`]: the views that the cluster sends, and a data plane's sessions with the collectors in them.

pub(crate) mod following;
pub(crate) mod placing;
pub(crate) mod roster;
