//! Readers: what stores answer, one module for each primitive.
//!
//! A reader never writes, takes no lock and calls nobody: it copies an element out of memory that a NIC may be
//! writing at that moment, and trusts the copy only if its checksum matches. [`follow`] keeps reading a list.

pub mod append;
pub mod follow;
pub mod key_increment;
pub mod key_write;
pub mod postcarding;
pub mod sketch_merge;
#[cfg(test)]
mod tests;

use dta_proto::key::Key;
use dta_rpc::{AtLeastError, KeyAnswer, QuestionKind};

use crate::store::{MemoryError, Store};
use key_increment::Roles;

/// Why a store does not answer a question about keys.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// More copies are to agree than there are, or none.
    #[error(transparent)]
    AtLeast(#[from] AtLeastError),
    /// A copy that keys of the store do not have.
    #[error("copy {copy} was asked for, but this store has copies 0 to {}", copies - 1)]
    NoCopy {
        copy: u32,
        /// Copies per key of this store.
        copies: u8,
    },
    /// A store does not match its description.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A store's bytes are not laid out as its primitive's.
    #[error("a store of this primitive has another layout")]
    Layout,
}

/// What a store has of keys.
pub(crate) struct KeyAnswers {
    /// One for each key, in their order.
    pub(crate) answers: Vec<KeyAnswer>,
    /// How many keys it has something of.
    pub(crate) found: usize,
}

/// Answers a question about keys of a store; `roles` tells how this collector counts each key.
pub(crate) fn query_store(
    store: &Store,
    keys: &[Key],
    kind: QuestionKind,
    roles: Option<&Roles>,
) -> Result<KeyAnswers, QueryError> {
    match kind {
        QuestionKind::KeyWrite { policy, at_least } => key_write::answer_keys(store, keys, policy, at_least),
        QuestionKind::Postcarding => postcarding::answer_keys(store, keys),
        QuestionKind::KeyIncrement => key_increment::answer_keys(store, keys, roles),
        QuestionKind::SketchMerge { epoch } => sketch_merge::answer_keys(store, keys, epoch),
    }
}
