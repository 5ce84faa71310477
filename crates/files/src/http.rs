//! HTTP to databases and object storage: the set-up that all clients share, certificate authorities from a file, and
//! secrets.

use std::path::Path;
use std::sync::Arc;

use ureq::Agent;
use ureq::config::ConfigBuilder;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::AgentScope;

/// A client's configuration, except for its time limits. It follows no redirects, uses no proxy, and accepts every
/// status as an answer. `ca` is a file of certificate authorities (PEM); without it, those that browsers trust are used.
///
/// # Errors
/// Why the file cannot be used, without its path.
pub fn client_config(ca: Option<&Path>, user_agent: &str) -> Result<ConfigBuilder<AgentScope>, String> {
    let roots = match ca {
        Some(path) => RootCerts::Specific(Arc::new(authorities(path)?)),
        None => RootCerts::WebPki,
    };
    Ok(Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        // A proxy in the environment is for browsing.
        .proxy(None)
        .tls_config(TlsConfig::builder().root_certs(roots).build())
        .user_agent(user_agent))
}

/// The first line of the file or the variable, if any: a token or password.
pub fn read_secret(file: Option<&Path>, variable: &str) -> Result<Option<String>, String> {
    let Some(path) = file else {
        return Ok(std::env::var(variable).ok().filter(|secret| !secret.is_empty()));
    };
    let cannot = |reason: &str| format!("cannot read {}: {reason}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| cannot(&error.to_string()))?;
    let secret = text.lines().next().unwrap_or_default().trim();
    if secret.is_empty() || secret.contains(|c: char| c.is_control()) {
        return Err(cannot("its first line must be the token or password"));
    }
    Ok(Some(secret.to_owned()))
}

/// Secrets that a client sends, in each form in which an answer may repeat them. Its `Debug` shows none.
#[derive(Clone, Default)]
pub struct SentSecrets(Vec<String>);

impl SentSecrets {
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let forms = |secret: &str| {
            let json = secret.replace('\\', "\\\\").replace('"', "\\\"");
            let url = secret.bytes().map(|byte| match byte {
                b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' | b'~' => {
                    char::from(byte).to_string()
                }
                _ => format!("%{byte:02X}"),
            });
            [json.replace('/', "\\/"), json, url.collect(), secret.to_owned()]
        };
        let mut all: Vec<String> =
            secrets.into_iter().flat_map(forms).filter(|form| !form.is_empty()).collect();
        // A secret may be part of another.
        all.sort_unstable_by_key(|form| std::cmp::Reverse(form.len()));
        all.dedup();
        Self(all)
    }

    /// Writes `*` over all secrets in an answer. Its length stays the same, so that it can still be decoded.
    pub fn strike_out(&self, answer: &mut [u8]) {
        for secret in self.0.iter().map(String::as_bytes) {
            let mut at = 0;
            while let Some(found) = answer[at..].windows(secret.len()).position(|bytes| bytes == secret) {
                at += found;
                answer[at..at + secret.len()].fill(b'*');
                at += secret.len();
            }
        }
    }

    /// The same for text.
    pub fn strike_out_text(&self, text: String) -> String {
        let mut bytes = text.into_bytes();
        self.strike_out(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl std::fmt::Debug for SentSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SentSecrets").finish_non_exhaustive()
    }
}

/// The certificates in a file of certificate authorities (PEM), at least one.
///
/// # Errors
/// Why the file cannot be used, without its path.
pub fn authorities(path: &Path) -> Result<Vec<Certificate<'static>>, String> {
    let pem = std::fs::read(path).map_err(|error| error.to_string())?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| error.to_string())? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err("there is no PEM certificate in it".into());
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_struck_out_in_each_form_and_the_rest_stays() {
        let secrets = SentSecrets::new(["a/b \"c", "a/b \"c.longer", ""]);
        for (said, expected) in [
            (r#"you sent a/b "c, twice: a/b "c"#, "you sent ******, twice: ******"),
            (r#"{"token":"a/b \"c"}"#, r#"{"token":"*******"}"#),
            (r#"{"token":"a\/b \"c.longer"}"#, r#"{"token":"***************"}"#),
            ("?token=a%2Fb%20%22c&x=1", "?token=************&x=1"),
            ("nothing of it: a/b", "nothing of it: a/b"),
        ] {
            assert_eq!(secrets.strike_out_text(said.to_owned()), expected);
        }
        assert!(!format!("{secrets:?}").contains("a/b"));
        assert_eq!(SentSecrets::default().strike_out_text("all".into()), "all");
    }
}
