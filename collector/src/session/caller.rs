//! Who calls, and whose sessions they may touch.

use super::lease::{Lease, LeaseError};

/// Who makes a call, as far as TLS tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The names of its certificate; `None` without TLS, where nobody is told from anybody.
    pub identity: Option<String>,
    /// Whether it may end sessions of others.
    pub operator: bool,
}

/// What a caller wants to do with a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// Open its name again, or renew it: to be its translator.
    Write,
    /// End it.
    End,
}

impl Caller {
    /// Whoever calls where there is no TLS.
    pub const ANYBODY: Caller = Caller { identity: None, operator: false };

    /// Refuses what is another's: a session belongs to the identity that opened it.
    pub(super) fn check(&self, deed: Deed, lease: &Lease) -> Result<(), LeaseError> {
        match (&self.identity, &lease.owner) {
            (Some(caller), Some(owner)) if caller != owner && !(deed == Deed::End && self.operator) => {
                Err(LeaseError::Foreign { name: lease.name.clone(), owner: owner.clone() })
            }
            _ => Ok(()),
        }
    }
}
