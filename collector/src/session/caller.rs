//! Who calls, and whose sessions they may touch.

use std::net::IpAddr;

use super::lease::{Lease, LeaseError};

/// Who makes a call, as far as TLS tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The names of its certificate; `None` without TLS, where nobody is told from anybody.
    pub identity: Option<String>,
    /// Where it calls from, an IPv6 network of 64 bits as its lowest address; looked at where there is no identity.
    pub address: Option<IpAddr>,
    /// Whether it may end sessions of others.
    pub operator: bool,
    /// The most sessions that it may have at a time; looked at where there is an identity.
    pub sessions: usize,
}

/// What a caller wants to do with a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Open its name again, or renew it: to be its translator.
    Write,
    /// End it.
    End,
}

impl Default for Caller {
    fn default() -> Self {
        Self::ANYBODY
    }
}

impl Caller {
    /// Whoever calls where there is no TLS.
    pub const ANYBODY: Caller =
        Caller { identity: None, address: None, operator: false, sessions: usize::MAX };

    /// Refuses what is another's: a session belongs to the identity that opened it.
    pub(super) fn check(&self, action: Action, lease: &Lease) -> Result<(), LeaseError> {
        match (&self.identity, &lease.owner) {
            (Some(caller), Some(owner)) if caller != owner && !(action == Action::End && self.operator) => {
                Err(LeaseError::Foreign { name: lease.name.clone(), owner: owner.clone() })
            }
            _ => Ok(()),
        }
    }
}
