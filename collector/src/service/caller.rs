//! Identifies the caller from the other end of a connection.

use dta_rpc::transport::{Name, Peer};
use tonic::Request;

use crate::session::Caller;

/// Who callers are, and what they may do.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// Names of certificates that may end any session.
    pub(super) operators: Vec<Name>,
    /// Most sessions of one certificate's identity.
    pub(super) sessions: usize,
}

impl Rules {
    /// The caller of a request.
    pub(super) fn caller<T>(&self, request: &Request<T>) -> Caller {
        let peer = request.extensions().get::<Peer>();
        let (identity, address) = (peer.map(Peer::identity), peer.map(Peer::origin));
        match identity.and_then(|identity| Some((identity, identity.name_list()?))) {
            Some((identity, names)) => Caller {
                identity: Some(names),
                address,
                operator: identity.has_one_of(&self.operators),
                sessions: self.sessions,
            },
            None => Caller { address, ..Caller::ANYBODY },
        }
    }
}
