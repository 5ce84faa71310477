//! Why a connection failed, in words that say what to do. The libraries only say "transport error".

use std::error::Error;
use std::io;

use h2::Reason;
use tokio_rustls::rustls::{self, CertificateError};
use tonic::Status;

use crate::transport::tls::for_people;

/// Messages of libraries and the system for a connection that ended before the answer came.
const CLOSED: [&str; 4] = ["connection closed", "broken pipe", "Broken pipe", "Connection reset"];

/// What is known to be wrong with a connection's TLS or lack of it; `None` if the error has another cause.
pub fn known_tls_reason(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(known) = typed_reason(error).or_else(|| reason_from_text(error)) {
            return Some(known);
        }
        next = error.source();
    }
    None
}

/// Why a connection failed: what is known, or the innermost cause.
pub fn failure_reason(error: &(dyn Error + 'static)) -> String {
    known_tls_reason(error).unwrap_or_else(|| {
        let mut innermost = error;
        while let Some(source) = innermost.source() {
            innermost = source;
        }
        let text = innermost.to_string();
        if !CLOSED.iter().any(|closed| text.contains(closed)) {
            return text;
        }
        // Which of these it is depends on timing, and the cause is lost: with TLS 1.3 it is mostly the server's refusal.
        format!(
            "{text} by the other side: either it wants TLS (write its address with https:// and give the TLS files), or it has TLS and \
             refuses this client's certificate: is it from the authority that the server accepts (client_ca), and not expired?"
        )
    })
}

/// What a status says: the server's message or, if no server sent one, the reason.
pub fn status_reason(status: &Status) -> String {
    status.source().map_or_else(|| status.message().to_owned(), failure_reason)
}

/// Whether the connection ended before the server processed the call: it sent HTTP/2's GOAWAY without an error, with an
/// earlier last stream (RFC 9113 section 6.8), or it was gone before the call was sent. Any call can then be repeated
/// over a new connection.
pub(crate) fn is_farewell(status: &Status) -> bool {
    // A server's own status has no source.
    let mut next = status.source();
    while let Some(error) = next {
        // hyper gives back what it has not sent.
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled) {
            return true;
        }
        // Calls up to GOAWAY's last stream go on; if the connection breaks under them, they end with another error.
        if let Some(http) = error.downcast_ref::<h2::Error>() {
            return http.is_remote() && http.is_go_away() && http.reason() == Some(Reason::NO_ERROR);
        }
        next = error.source();
    }
    false
}

fn typed_reason(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(tls) = error.downcast_ref::<rustls::Error>() {
        return tls_reason(tls);
    }
    if let Some(http) = error.downcast_ref::<h2::Error>() {
        return http2_reason(http);
    }
    // The inner error of an I/O error is not among its sources.
    let io = error.downcast_ref::<io::Error>()?;
    if let Some(inner) = io.get_ref() {
        return known_tls_reason(inner);
    }
    None
}

/// The reason in an error of which HTTP/2 has kept only the text.
fn reason_from_text(error: &(dyn Error + 'static)) -> Option<String> {
    error.to_string().split_once("received fatal alert: ").map(|(_, name)| alert_reason(name))
}

fn http2_reason(error: &h2::Error) -> Option<String> {
    match error.reason()? {
        Reason::INADEQUATE_SECURITY => Some(
            "it wants TLS: write its address with https:// and give the TLS files (authority, certificate and key)".into(),
        ),
        Reason::HTTP_1_1_REQUIRED => Some(
            "this is the port of a daemon's metrics (40052 and 40053), not that of gRPC: give the port of gRPC (a collector's is 40050, a translator's 40051)"
                .into(),
        ),
        // The answer of a TLS server, parsed as an HTTP/2 frame.
        Reason::FRAME_SIZE_ERROR => Some(
            "what answers there does not speak HTTP/2; if it wants TLS, write its address with https:// and give the TLS files".into(),
        ),
        _ => None,
    }
}

fn tls_reason(error: &rustls::Error) -> Option<String> {
    match error {
        rustls::Error::InvalidCertificate(why) => Some(of_certificate(why)),
        rustls::Error::InvalidMessage(_) => Some(
            "what answers there does not speak TLS: write its address with http:// and leave the TLS files out, or turn on its TLS"
                .into(),
        ),
        rustls::Error::AlertReceived(alert) => Some(alert_reason(&format!("{alert:?}"))),
        _ => Some(format!("TLS failed: {error}")),
    }
}

/// Why the server refused, from the name of its alert (RFC 8446 section 6).
fn alert_reason(name: &str) -> String {
    match name {
        "UnknownCA" | "BadCertificate" | "CertificateUnknown" | "DecryptError" => {
            "it refuses this client's certificate: is it from the authority that the server accepts (client_ca)?"
                .into()
        }
        "CertificateExpired" => {
            "it refuses this client's certificate, which has expired by the server's clock".into()
        }
        "CertificateRequired" => "it requires a client certificate: give certificate and key".into(),
        _ => format!("it refused TLS: {name}"),
    }
}

fn of_certificate(why: &CertificateError) -> String {
    match why {
        CertificateError::UnknownIssuer => {
            "its certificate is from another authority than the one given: give the file of the authority that issued it".into()
        }
        CertificateError::BadSignature => {
            "its certificate is not signed by the authority given, but by another of the same name: give the file of the authority that issued it"
                .into()
        }
        CertificateError::Expired => {
            "its certificate has expired: give the server a new one (or correct this machine's clock)".into()
        }
        CertificateError::ExpiredContext { time, not_after } => format!(
            "its certificate expired {} ago: give the server a new one (or correct this machine's clock)",
            for_people(std::time::Duration::from_secs(time.as_secs().saturating_sub(not_after.as_secs())))
        ),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet: are the clocks right?".into()
        }
        CertificateError::NotValidForName => "its certificate is not for this name: give a name that it has".into(),
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "its certificate is not for {:?} but for {}: use one of these as the address, or give it as the name to expect (--tls-domain, or \
             `domain` next to the other files)",
            expected.to_str(),
            match &presented[..] {
                [] => "no name".to_owned(),
                names => names.iter().map(|name| plain_name(name)).collect::<Vec<_>>().join(", "),
            }
        ),
        other => format!("its certificate is not accepted: {other}"),
    }
}

/// The name itself, if the library writes it with its kind: `DnsName("collector.example")`.
fn plain_name(presented: &str) -> &str {
    let inner = presented.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.map_or(presented, |inner| inner.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_certificate_is_as_it_is() {
        for (presented, name) in [
            ("DnsName(\"collector.example\")", "collector.example"),
            ("IpAddress(192.0.2.1)", "192.0.2.1"),
            ("IpAddress(2001:db8::1)", "2001:db8::1"),
            ("collector.example", "collector.example"),
        ] {
            assert_eq!(plain_name(presented), name);
        }
    }
}
