//! The other end of a connection.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::transport::gate;
use crate::transport::pool::{Permit, Pool};
use crate::transport::stream::ConnectionCloser;

/// The other end of a connection; an extension of each request on it.
#[derive(Clone, Debug)]
pub struct Peer {
    pub(crate) address: IpAddr,
    pub(crate) identity: Arc<Identity>,
    /// The caller whose share of the server its calls use.
    pub(crate) caller: Arc<str>,
    pub(crate) streams: Arc<Pool>,
    pub(crate) line: Arc<ConnectionCloser>,
}

impl Peer {
    /// Its address; for a Unix socket, 127.0.0.1.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The address range that one party may own: an IPv4 address, or an IPv6 network of 64 bits, the rest zero.
    pub fn network_origin(&self) -> IpAddr {
        gate::network_origin(self.address)
    }

    /// The caller whose share of the server its calls use.
    pub fn caller_name(&self) -> &Arc<str> {
        &self.caller
    }

    /// Its identity, as far as TLS provides one.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// One of this caller's places for long answers, held until it is dropped; `None` if all are taken.
    pub fn reserve_stream(&self) -> Option<Permit> {
        self.streams.try_acquire(&self.caller)
    }
}

/// The caller that a share of the server belongs to: a certificate's identity or, without TLS, an origin.
pub(crate) fn caller_name(identity: &Identity, address: IpAddr) -> Arc<str> {
    identity.name_list().unwrap_or_else(|| gate::network_origin(address).to_string()).into()
}

/// An identity, as far as TLS provides one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// No TLS: callers cannot be told apart.
    Anybody,
    /// The names of a certificate, sorted, without duplicates; at least one.
    Named(Vec<CertificateName>),
    /// A certificate without a usable name, and why. It is refused: all such certificates would be one caller.
    Nameless(&'static str),
}

/// A subject alternative name of a certificate (RFC 5280 section 4.2.1.6), with its kind. Written `DNS:tor1.example`
/// or `URI:spiffe://example/tor1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CertificateName {
    /// A DNS name, in lower case.
    Dns(String),
    /// A URI.
    Uri(String),
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => write!(f, "DNS:{name}"),
            Self::Uri(name) => write!(f, "URI:{name}"),
        }
    }
}

impl FromStr for CertificateName {
    type Err = &'static str;

    /// Parses a name with its kind in front, or a bare name: one with a colon is a URI, as DNS names have none.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = match text.split_once(':') {
            Some(("DNS", name)) => Self::from_dns_name(name),
            Some(("URI", name)) => Self::Uri(name.to_owned()),
            Some(_) => Self::Uri(text.to_owned()),
            None => Self::from_dns_name(text),
        };
        match &name {
            Self::Dns(of) | Self::Uri(of) if is_plain_name(of) => Ok(name),
            _ => Err(
                "a name as in a certificate, such as DNS:operator.example or URI:spiffe://example/operator",
            ),
        }
    }
}

impl CertificateName {
    fn from_dns_name(name: &str) -> Self {
        Self::Dns(name.to_ascii_lowercase())
    }
}

/// Names are written in a row, separated by commas and blanks, so none may contain one.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic() && b != b',')
}

impl Identity {
    /// The identity of a certificate is its DNS and URI names, so a renewed certificate with the same names is the
    /// same caller.
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Self {
        let Ok(certificate) = EndEntityCert::try_from(certificate) else {
            return Self::Nameless("it cannot be read");
        };
        let dns = certificate.valid_dns_names().map(CertificateName::from_dns_name);
        let uri = certificate.valid_uri_names().map(|name| CertificateName::Uri(name.to_owned()));
        let mut names: Vec<CertificateName> = dns.chain(uri).collect();
        if !names.iter().all(|(CertificateName::Dns(name) | CertificateName::Uri(name))| is_plain_name(name))
        {
            return Self::Nameless(
                "one of its names has a comma, a blank or a character that does not print",
            );
        }
        names.sort_unstable();
        names.dedup();
        if names.is_empty() { Self::Nameless("it has none") } else { Self::Named(names) }
    }

    /// The names in one line; `None` for [`Identity::Anybody`] and [`Identity::Nameless`].
    pub fn name_list(&self) -> Option<String> {
        match self {
            Self::Named(names) => {
                Some(names.iter().map(CertificateName::to_string).collect::<Vec<_>>().join(", "))
            }
            Self::Anybody | Self::Nameless(_) => None,
        }
    }

    /// Whether this identity has one of these names.
    pub fn has_one_of(&self, wanted: &[CertificateName]) -> bool {
        matches!(self, Self::Named(names) if names.iter().any(|name| wanted.contains(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    fn certificate(dns: &[&str], uri: &[&str], common_name: Option<&str>) -> CertificateDer<'static> {
        let dns: Vec<String> = dns.iter().map(|n| (*n).to_owned()).collect();
        let mut params = CertificateParams::new(dns).unwrap();
        params.distinguished_name = DistinguishedName::new();
        if let Some(name) = common_name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.subject_alt_names.extend(uri.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn name_list(dns: &[&str], uri: &[&str]) -> Option<String> {
        Identity::from_certificate(&certificate(dns, uri, Some("x"))).name_list()
    }

    #[test]
    fn names_are_the_identity_whatever_the_key_or_the_subject() {
        assert_eq!(
            name_list(&["tor1.example", "A.example"], &[]).unwrap(),
            "DNS:a.example, DNS:tor1.example"
        );
        let one = Identity::from_certificate(&certificate(&["a.example"], &[], Some("x")));
        assert_eq!(
            one,
            Identity::from_certificate(&certificate(&["a.example"], &[], Some("y"))),
            "issued anew"
        );
    }

    #[test]
    fn kinds_of_names_are_kept_apart() {
        assert_eq!(name_list(&[], &["tor1.example"]).unwrap(), "URI:tor1.example");
        assert_ne!(name_list(&[], &["tor1.example"]), name_list(&["tor1.example"], &[]));
        let operators = ["ops.example".parse().unwrap()];
        let of = |dns: &[&str], uri: &[&str]| {
            Identity::from_certificate(&certificate(dns, uri, None)).has_one_of(&operators)
        };
        assert!(of(&["me.example", "ops.example"], &[]));
        assert!(!of(&[], &["ops.example"]));
    }

    #[test]
    fn a_certificate_without_names_is_nobody() {
        for subject in [None, Some("x")] {
            let identity = Identity::from_certificate(&certificate(&[], &[], subject));
            assert!(matches!(identity, Identity::Nameless(_)) && identity.name_list().is_none());
        }
        // A name that reads as two would be another's identity.
        assert!(name_list(&[], &["a:b, URI:c:d"]).is_none());
    }

    #[test]
    fn an_ipv6_network_is_one_caller() {
        let of = |text: &str| caller_name(&Identity::Anybody, text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }

    #[test]
    fn configured_names_have_a_kind() {
        let parse = |text: &str| text.parse::<CertificateName>();
        assert_eq!(parse("ops.example"), Ok(CertificateName::Dns("ops.example".into())));
        assert_eq!(parse("DNS:Ops.example"), Ok(CertificateName::Dns("ops.example".into())));
        assert_eq!(parse("spiffe://x/y"), Ok(CertificateName::Uri("spiffe://x/y".into())));
        assert_eq!(parse("URI:ops.example"), Ok(CertificateName::Uri("ops.example".into())));
        assert!(parse("").is_err() && parse("a b").is_err() && parse("DNS:").is_err());
    }
}
