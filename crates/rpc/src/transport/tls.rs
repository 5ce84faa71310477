//! TLS files: read, checked before use, and converted for rustls. All are PEM.

use std::fmt::Display;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use serde::{Deserialize, Serialize};
pub use tokio_rustls::rustls::ServerConfig as RustlsServerConfig;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{Error, InconsistentKeys, RootCertStore, ServerConfig};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};
use webpki::{EndEntityCert, KeyUsage};

/// How far ahead a certificate's expiry is announced at most.
const AHEAD: Duration = Duration::from_secs(30 * 24 * 3600);

/// The files of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerFiles<'a> {
    /// Its certificate chain, leaf first.
    pub cert: &'a Path,
    /// Its private key.
    pub key: &'a Path,
    /// The CAs of accepted client certificates.
    pub client_ca: &'a Path,
}

/// TLS files of a client, all PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientTls {
    /// CA of the server's certificate.
    pub ca: PathBuf,
    /// This client's certificate chain, leaf first.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Name in the server's certificate, if it is not the host of the address.
    pub domain: Option<String>,
}

/// Why files cannot be used for TLS, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(String);

/// The error for a file that should hold `what` but cannot be used.
pub(crate) fn unusable_file(what: &str, path: &Path, reason: impl Display) -> TlsError {
    TlsError(format!("the {what} {} cannot be used: {reason}", path.display()))
}

/// The validity of a certificate; both times are since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    not_before: Duration,
    not_after: Duration,
}

impl Validity {
    /// The validity of a certificate; `None` if it cannot be parsed.
    ///
    /// The library reveals the two times only when it rejects a certificate because of them. They are checked before
    /// everything else, so no CA and no signature is needed.
    fn from_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        let refused_at = |at: Duration| {
            let at = UnixTime::since_unix_epoch(at);
            certificate.verify_for_usage(&[], &[], &[], at, KeyUsage::server_auth(), None, None).err()
        };
        // The last second that X.509 can express: 9999-12-31 23:59:59. A certificate with this end never expires.
        let last = Duration::from_secs(253_402_300_799);
        let not_after = match refused_at(last) {
            Some(webpki::Error::CertExpired { not_after, .. }) => Duration::from_secs(not_after.as_secs()),
            _ => last,
        };
        let not_before = match refused_at(Duration::ZERO) {
            Some(webpki::Error::CertNotValidYet { not_before, .. }) => {
                Duration::from_secs(not_before.as_secs())
            }
            _ => Duration::ZERO,
        };
        Some(Self { not_before, not_after })
    }

    /// The validity of the first certificate in a file, as the file is now.
    ///
    /// # Errors
    /// The file cannot be read, or holds no certificate.
    pub fn read(cert: &Path) -> Result<Self, TlsError> {
        let chain = certificates("TLS certificate", cert)?;
        Self::from_certificate(&chain[0])
            .ok_or_else(|| unusable_file("TLS certificate", cert, "it is not a readable certificate"))
    }

    /// Its expiry, since 1970.
    pub fn not_after(&self) -> Duration {
        self.not_after
    }

    /// The remaining time, if it should be announced: in the last third of its validity, and at most 30 days ahead.
    /// Zero = it has expired.
    pub fn ends_soon(&self, now: SystemTime) -> Option<Duration> {
        let left = self.not_after.saturating_sub(since_1970(now));
        let ahead = (self.not_after.saturating_sub(self.not_before) / 3).min(AHEAD);
        (left < ahead).then_some(left)
    }

    fn check_valid_at(&self, path: &Path, now: SystemTime) -> Result<(), TlsError> {
        let now = since_1970(now);
        if now > self.not_after {
            return Err(TlsError(format!(
                "the TLS certificate {} expired {} ago, and nobody would accept it: replace it with a valid one (or correct this machine's clock)",
                path.display(),
                for_people(now - self.not_after)
            )));
        }
        if now < self.not_before {
            return Err(TlsError(format!(
                "the TLS certificate {} becomes valid in {}: is this machine's clock right?",
                path.display(),
                for_people(self.not_before - now)
            )));
        }
        Ok(())
    }
}

fn since_1970(at: SystemTime) -> Duration {
    at.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A duration in its largest unit, for people.
pub fn for_people(time: Duration) -> String {
    let seconds = time.as_secs();
    let (n, unit) = match seconds {
        0..60 => (seconds, "second"),
        60..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{n} {unit}{}", if n == 1 { "" } else { "s" })
}

/// TLS of a server, ready to use.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// The configuration for rustls. The handshake refuses clients without a certificate from the CAs.
    pub config: Arc<ServerConfig>,
    /// The validity of the server's own certificate.
    pub validity: Validity,
}

/// Reads and checks a server's files.
pub fn load_server_tls(files: &ServerFiles<'_>, now: SystemTime) -> Result<ServerTls, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let own = load_own_certificate(files.cert, files.key, &provider, now)?;
    let clients = certificate_verifier(files.client_ca, &provider)?;
    let mut config = server_config(files, own.chain, own.key, &provider, Some(clients))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(ServerTls { config: Arc::new(config), validity: own.validity })
}

/// Reads and checks the files of a server for browsers, over HTTP/1.1; with `needs_certificate`, its clients must have one.
///
/// # Errors
/// A file cannot be used for TLS.
pub fn load_page_tls(
    files: &ServerFiles<'_>,
    needs_certificate: bool,
    now: SystemTime,
) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let own = load_own_certificate(files.cert, files.key, &provider, now)?;
    let clients = needs_certificate.then(|| certificate_verifier(files.client_ca, &provider)).transpose()?;
    let mut config = server_config(files, own.chain, own.key, &provider, clients)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// A verifier that accepts only certificates from a CA.
fn certificate_verifier(
    client_ca: &Path,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let roots = Arc::new(authorities("client CA", client_ca)?);
    WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(|e| unusable_file("client CA", client_ca, e))
}

fn server_config(
    files: &ServerFiles<'_>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: &Arc<CryptoProvider>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<ServerConfig, TlsError> {
    let unusable = |e| unusable_file("TLS certificate", files.cert, e);
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let builder = match clients {
        Some(clients) => builder.with_client_cert_verifier(clients),
        None => builder.with_no_client_auth(),
    };
    builder.with_single_cert(chain, key).map_err(unusable)
}

/// What makes a server less safe than it looks, in sentences: a port that others reach without a certificate, and thereby
/// `consequence`, and a private key that everybody on this machine can read.
pub fn exposure_warnings(
    listen: SocketAddr,
    files: Option<&ServerFiles<'_>>,
    consequence: &str,
) -> Vec<String> {
    let Some(files) = files else {
        let open = format!("gRPC on {listen} WITHOUT TLS: anyone who reaches it can {consequence}");
        return if listen.ip().is_loopback() { Vec::new() } else { vec![open] };
    };
    readable_key_warning(files.key).into_iter().collect()
}

/// What is wrong with usable files of a client, in sentences: a key that everybody on this machine can read, and a
/// certificate that expires soon.
pub fn client_warnings(files: &ClientTls, now: SystemTime) -> Vec<String> {
    let left = Validity::read(&files.cert).ok().and_then(|validity| validity.ends_soon(now));
    let ends = left.map(|left| {
        let cert = files.cert.display();
        format!("the TLS certificate {cert} expires in {}: replace it before then", for_people(left))
    });
    readable_key_warning(&files.key).into_iter().chain(ends).collect()
}

fn readable_key_warning(key: &Path) -> Option<String> {
    // A key that cannot be checked here is refused elsewhere, with the reason.
    let mode = std::fs::metadata(key).map_or(0, |of| of.permissions().mode() & 0o777);
    (mode & 0o004 != 0).then(|| {
        let key = key.display();
        format!("the TLS key {key} can be read by everybody on this machine (mode {mode:04o}): chmod 600 it")
    })
}

/// Reads and checks a client's files.
///
/// # Errors
/// A file cannot be used for TLS.
pub fn load_client_tls(files: &ClientTls, now: SystemTime) -> Result<ClientTlsConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    load_own_certificate(&files.cert, &files.key, &provider, now)?;
    authorities("authority of the server's certificate", &files.ca)?;
    let mut config = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(read("authority of the server's certificate", &files.ca)?))
        .identity(Identity::from_pem(read("TLS certificate", &files.cert)?, read("TLS key", &files.key)?));
    if let Some(domain) = &files.domain {
        config = config.domain_name(domain);
    }
    Ok(config)
}

struct OwnCertificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    validity: Validity,
}

fn load_own_certificate(
    cert: &Path,
    key: &Path,
    provider: &CryptoProvider,
    now: SystemTime,
) -> Result<OwnCertificate, TlsError> {
    let chain = certificates("TLS certificate", cert)?;
    let validity = Validity::from_certificate(&chain[0])
        .ok_or_else(|| unusable_file("TLS certificate", cert, "it is not a readable certificate"))?;
    validity.check_valid_at(cert, now)?;
    let key_der = PrivateKeyDer::from_pem_slice(&read("TLS key", key)?)
        .map_err(|e| unusable_file("TLS key", key, format!("{e}; it must be a private key in a PEM file")))?;
    match CertifiedKey::from_der(chain.clone(), key_der.clone_key(), provider) {
        Ok(_) => Ok(OwnCertificate { chain, key: key_der, validity }),
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => Err(TlsError(format!(
            "the TLS key {} does not belong to the certificate {}",
            key.display(),
            cert.display()
        ))),
        Err(e) => Err(unusable_file("TLS key", key, e)),
    }
}

fn authorities(what: &str, path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(what, path)? {
        roots.add(certificate).map_err(|e| unusable_file(what, path, e))?;
    }
    Ok(roots)
}

/// The certificates in a file; at least one.
fn certificates(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(what, path)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|e| unusable_file(what, path, e))?;
    if found.is_empty() {
        return Err(unusable_file(what, path, "it holds no certificate; it must be a PEM file"));
    }
    Ok(found)
}

fn read(what: &str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|e| TlsError(format!("cannot read the {what} {}: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    fn day(n: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(n * 86_400)
    }

    /// A certificate that is valid from day `from` to day `until` since 1970, and its key.
    fn pair(dir: &Path, from: i64, until: i64) -> (std::path::PathBuf, std::path::PathBuf) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["c.example".to_owned()]).unwrap();
        let day = |n: i64| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(n as u64 * 86_400);
        (params.not_before, params.not_after) = (day(from), day(until));
        // As CAs issue a server's certificate: its key usage must not hide its validity.
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let (cert_path, key_path) =
            (dir.join(format!("{from}-{until}.crt")), dir.join(format!("{from}-{until}.key")));
        std::fs::write(&cert_path, params.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(&key_path, key.serialize_pem()).unwrap();
        (cert_path, key_path)
    }

    fn load(cert: &Path, key: &Path, now: SystemTime) -> Result<ServerTls, TlsError> {
        load_server_tls(&ServerFiles { cert, key, client_ca: cert }, now)
    }

    #[test]
    fn a_certificate_serves_from_its_first_day_to_its_last() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = pair(dir.path(), 20_000, 20_090);
        let error = load(&cert, &key, day(20_093)).unwrap_err().to_string();
        assert!(error.contains("20000-20090.crt expired 3 days ago"), "{error}");
        let error = load(&cert, &key, day(19_999)).unwrap_err().to_string();
        assert!(error.contains("becomes valid in 1 day:"), "{error}");

        let validity = load(&cert, &key, day(20_001)).unwrap().validity;
        assert_eq!(validity.ends_soon(day(20_059)), None);
        assert_eq!(validity.ends_soon(day(20_080)), Some(Duration::from_secs(10 * 86_400)));
        assert_eq!(validity.ends_soon(day(20_091)), Some(Duration::ZERO));
        assert_eq!(validity.not_after(), Duration::from_secs(20_090 * 86_400));
        assert_eq!(Validity::read(&cert).unwrap(), validity);
        // A certificate issued for three days is not announced on its first day.
        let (cert, key) = pair(dir.path(), 20_000, 20_003);
        let validity = load(&cert, &key, day(20_001)).unwrap().validity;
        assert_eq!(validity.ends_soon(day(20_001)), None);
        assert!(validity.ends_soon(day(20_002) + Duration::from_secs(3600)).is_some());
        // A certificate without an end (RFC 5280 section 4.1.2.5) never expires.
        let (cert, key) = pair(dir.path(), 20_000, 2_932_896);
        assert_eq!(load(&cert, &key, day(30_000)).unwrap().validity.ends_soon(day(30_000)), None);
    }

    #[test]
    fn an_open_port_and_a_readable_key_are_announced() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = pair(dir.path(), 20_000, 20_090);
        let files = ServerFiles { cert: &cert, key: &key, client_ca: &cert };
        let warnings = |listen: &str, mode: Option<u32>| {
            std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode.unwrap_or(0o600))).unwrap();
            exposure_warnings(listen.parse().unwrap(), mode.map(|_| &files), "get keys to memory")
        };
        for listen in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1"] {
            let expected =
                format!("gRPC on {listen} WITHOUT TLS: anyone who reaches it can get keys to memory");
            assert_eq!(warnings(listen, None), [expected]);
            assert_eq!(warnings(listen, Some(0o600)), [""; 0]);
        }
        assert_eq!(warnings("127.0.0.1:1", None), [""; 0]);
        for (mode, is_warned) in [(0o600, false), (0o640, false), (0o644, true), (0o604, true)] {
            let warned = warnings("127.0.0.1:1", Some(mode));
            assert_eq!(warned.len(), usize::from(is_warned), "{mode:o}: {warned:?}");
            assert!(warned.iter().all(|warning| {
                warning.contains(&format!(".key can be read by everybody on this machine (mode {mode:04o})"))
            }));
        }
    }

    #[test]
    fn a_client_is_warned_of_a_readable_key_and_of_the_end_of_its_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = pair(dir.path(), 20_000, 20_090);
        let files = ClientTls { ca: cert.clone(), cert, key, domain: None };
        let warnings = |mode: u32, at: SystemTime| {
            std::fs::set_permissions(&files.key, std::fs::Permissions::from_mode(mode)).unwrap();
            client_warnings(&files, at)
        };
        assert_eq!(warnings(0o600, day(20_001)), [""; 0]);
        let warned = warnings(0o644, day(20_088));
        assert!(warned[0].contains("can be read by everybody on this machine (mode 0644)"), "{warned:?}");
        assert!(warned[1].contains("20000-20090.crt expires in 2 days"), "{warned:?}");
    }

    #[test]
    fn files_that_do_not_belong_together_or_hold_something_else_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = pair(dir.path(), 20_000, 20_090);
        let (_, other) = pair(dir.path(), 20_000, 20_091);
        let error = load(&cert, &other, day(20_001)).unwrap_err();
        assert!(error.to_string().contains("does not belong to the certificate"), "{error}");
        let error = load(&key, &key, day(20_001)).unwrap_err().to_string();
        assert!(error.contains("20000-20090.key") && error.contains("no certificate"), "{error}");
        let error = load(&cert, &cert, day(20_001)).unwrap_err().to_string();
        assert!(error.contains("TLS key") && error.contains("PEM"), "{error}");
        let error = load(&dir.path().join("none"), &key, day(20_001)).unwrap_err().to_string();
        assert!(error.contains("none") && error.contains("No such file"), "{error}");
    }
}
