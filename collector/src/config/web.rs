//! The page in the browser, and its HTTP interface.

use std::net::SocketAddr;
use std::path::PathBuf;

use dta_export::metrics::Address;

use super::ConfigError;

dta_files::config_table! {
    /// Table `[web]`.
    #[derive(Eq)]
    pub struct CollectorWebConfig {
        /// Where the page is: `auto` is 127.0.0.1:40055 if that port is free.
        pub listen: Address = Address::Auto;
        /// Names that browsers may reach it by, besides addresses and `localhost`.
        pub hosts: Vec<String> = Vec::new();
        /// File whose first line is the token to require; beyond loopback, it replaces client certificates.
        pub token_file: Option<PathBuf> = None;
    }
}

impl CollectorWebConfig {
    /// The address, if others can reach it.
    pub(crate) fn exposed_address(&self) -> Option<SocketAddr> {
        match self.listen {
            Address::At(address) if !address.ip().is_loopback() => Some(address),
            _ => None,
        }
    }

    pub(super) fn validate(&self, has_tls: bool) -> Result<(), ConfigError> {
        if let Some(host) = self.hosts.iter().find(|host| host.is_empty() || host.contains([':', '/', ' '])) {
            return Err(ConfigError::invalid_quoted("web.hosts", host, "names without scheme and port"));
        }
        match self.exposed_address() {
            Some(address) if !has_tls => {
                let exposed = format!(
                    "refusing to serve the page on {address} without TLS: give [tls] cert, key and client_ca; then browsers need a \
                     client certificate or, with token_file in [web], the token"
                );
                Err(ConfigError::new("web.listen", exposed))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_loopback_only_with_tls() {
        let config = |listen: &str| CollectorWebConfig {
            listen: listen.parse().unwrap(),
            ..CollectorWebConfig::default()
        };
        for listen in ["auto", "off", "127.0.0.1:0", "[::1]:40055"] {
            config(listen).validate(false).unwrap();
        }
        for listen in ["0.0.0.0:40055", "[::]:0", "10.0.0.5:40055"] {
            let refused = config(listen).validate(false).unwrap_err().to_string();
            assert!(refused.contains(listen) && refused.contains("token_file"), "{refused}");
            config(listen).validate(true).unwrap();
        }
        let named = CollectorWebConfig { hosts: vec!["http://x".into()], ..config("auto") };
        assert!(named.validate(true).is_err());
    }
}
