//! HTTP to databases and object storage: how all clients are set up, with the certificate authorities that a file names,
//! and where their secrets are.

use std::path::Path;
use std::sync::Arc;

use ureq::Agent;
use ureq::config::ConfigBuilder;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::AgentScope;

/// The configuration of a client but for its time limits. It follows no redirect, uses no proxy, and takes every status
/// for an answer. `ca` is a file of certificate authorities (PEM); without it, those that browsers trust count.
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
///
/// # Errors
/// Why the file cannot be used, with its path.
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
