//! A translator in a cluster: its collectors come and go, and what each has moves.
//!
//! - [`roster`]: which collectors there are, and their indices.
//! - [`placing`]: which placement each store goes by, and what of a collector's grant is used because of it.
//! - [`following`]: the views that the cluster sends, and the sessions of a data plane with the collectors in them.

pub(crate) mod following;
pub(crate) mod placing;
pub(crate) mod roster;
