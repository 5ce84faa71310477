//! From the certificate of a connection to who calls.

use rustls_pki_types::CertificateDer;
use tonic::Request;
use webpki::EndEntityCert;

use crate::session::Caller;

/// Who made a request. `operators` are names of certificates that may end anybody's session.
pub(super) fn of<T>(request: &Request<T>, operators: &[String]) -> Caller {
    match request.peer_certs().as_deref().and_then(|chain| chain.first()) {
        Some(certificate) => caller(certificate, operators),
        None => Caller::ANYBODY,
    }
}

/// The identity of a certificate is its alternative names (DNS and URI, RFC 5280 section 4.2.1.6), so that one issued anew under the
/// same names is the same caller; without any, its subject.
fn caller(certificate: &CertificateDer<'_>, operators: &[String]) -> Caller {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else {
        // TLS took it, so this is not seen; an identity that is nobody's can do nothing to others.
        return Caller { identity: Some("an unreadable certificate".into()), operator: false };
    };
    let mut names: Vec<&str> = certificate.valid_dns_names().chain(certificate.valid_uri_names()).collect();
    names.sort_unstable();
    names.dedup();
    let operator = names.iter().any(|name| operators.iter().any(|operator| operator == name));
    let identity = if names.is_empty() {
        let subject: String = certificate.subject().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("subject {subject}")
    } else {
        names.join(", ")
    };
    Caller { identity: Some(identity), operator }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    fn certificate(names: &[&str], uri: Option<&str>, common_name: &str) -> CertificateDer<'static> {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.subject_alt_names.extend(uri.map(|uri| SanType::URI(uri.try_into().unwrap())));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn names_are_the_identity_whatever_the_key() {
        let operators = ["ops.example".to_owned()];
        let of = |names: &[&str], uri, subject| caller(&certificate(names, uri, subject), &operators);
        let one = of(&["tor1.example", "a.example"], None, "x");
        assert_eq!(one.identity.as_deref(), Some("a.example, tor1.example"));
        assert_eq!(of(&["a.example", "tor1.example"], None, "y"), one, "issued anew");
        assert!(!one.operator);
        let uri = of(&[], Some("spiffe://example/tor2"), "x");
        assert_eq!(uri.identity.as_deref(), Some("spiffe://example/tor2"));
        assert!(of(&["me.example", "ops.example"], None, "x").operator);
        // Without names the subject has to do: in DER, its sets of names.
        let (x, y) = (of(&[], None, "x"), of(&[], None, "y"));
        assert!(x.identity.as_deref().is_some_and(|id| id.starts_with("subject 31")), "{x:?}");
        assert_ne!(x, y);
        assert_eq!(of(&[], None, "x"), x);
    }
}
