//! Identifies the caller from the peer of a connection.

use dta_rpc::transport::{CertificateName, Peer};
use tonic::Request;

use crate::session::SessionCaller;

#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// Certificate names that may end any session.
    pub(super) operators: Vec<CertificateName>,
    /// Most sessions of one certificate's identity.
    pub(super) sessions: usize,
}

impl Rules {
    pub(super) fn identify_caller<T>(&self, request: &Request<T>) -> SessionCaller {
        let peer = request.extensions().get::<Peer>();
        let (identity, address) = (peer.map(Peer::identity), peer.map(Peer::network_origin));
        match identity.and_then(|identity| Some((identity, identity.name_list()?))) {
            Some((identity, names)) => SessionCaller {
                identity: Some(names),
                address,
                operator: identity.has_one_of(&self.operators),
                sessions: self.sessions,
            },
            None => SessionCaller { address, ..SessionCaller::ANYBODY },
        }
    }
}
