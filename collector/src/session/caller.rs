//! The caller, and whose sessions it may touch.

use std::net::IpAddr;

use super::lease::{Lease, LeaseError};

/// The caller, as far as TLS identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionCaller {
    /// The names of its certificate; `None` without TLS, where callers cannot be told apart.
    pub identity: Option<String>,
    /// Its address, or the lowest address of its 64-bit IPv6 network; used if there is no identity.
    pub address: Option<IpAddr>,
    /// Whether it may end other owners' sessions.
    pub operator: bool,
    /// Most sessions that it may have; used if there is an identity.
    pub sessions: usize,
}

/// What a caller wants to do with a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionAction {
    /// Reopen its name or renew it, as its translator.
    Write,
    End,
}

impl Default for SessionCaller {
    fn default() -> Self {
        Self::ANYBODY
    }
}

impl SessionCaller {
    /// Any caller, if there is no TLS.
    pub const ANYBODY: SessionCaller =
        SessionCaller { identity: None, address: None, operator: false, sessions: usize::MAX };

    /// Refuses access to other owners' sessions: a session belongs to the identity that opened it.
    pub(super) fn check_access(&self, action: SessionAction, lease: &Lease) -> Result<(), LeaseError> {
        match (&self.identity, &lease.owner) {
            (Some(caller), Some(owner))
                if caller != owner && !(action == SessionAction::End && self.operator) =>
            {
                Err(LeaseError::Foreign(format!(
                    "session {:?} belongs to {owner:?}, whose certificate opened it; use another name, or have it ended by its \
                     owner or by an operator (`operators` of the collector's [tls])",
                    lease.name
                )))
            }
            _ => Ok(()),
        }
    }
}
