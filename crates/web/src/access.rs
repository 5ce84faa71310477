//! Who may use the page: not other sites through somebody's browser, and beyond loopback only those with a token or a
//! certificate.

use std::net::IpAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, StatusCode, Uri};

use crate::problem::Problem;

/// Who may use the page. Has no `Debug`, so that no log shows the token.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Host names that browsers may use for the page, besides addresses and `localhost`.
    pub hosts: Vec<String>,
    /// The token to require as a bearer token, or as the password of any user.
    pub token: Option<String>,
}

impl Access {
    /// Refuses a request that comes from another site's page, or that lacks the token.
    pub(crate) fn check_request(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let forbidden = |detail: String| Problem::new(StatusCode::FORBIDDEN, detail);
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        // With DNS rebinding, somebody else's name leads here; it is neither an address nor one of our names.
        if !self.is_own_host(host) {
            let advice = "use an address or localhost, or name it in `hosts` of [web]";
            return Err(forbidden(format!("the host {host:?} is not known here: {advice}")));
        }
        if let Some(origin) = headers.get(ORIGIN) {
            let origin: Option<Uri> = origin.to_str().ok().and_then(|origin| origin.parse().ok());
            if origin.as_ref().and_then(Uri::authority).is_none_or(|authority| authority.as_str() != host) {
                return Err(forbidden("requests from other sites are refused".to_owned()));
            }
        }
        // Something that a browser loads for another site's page; following a link to here does not count.
        let has_value = |name: &str, value: &str| headers.get(name).is_some_and(|given| given == value);
        let is_other_site =
            has_value("sec-fetch-site", "cross-site") || has_value("sec-fetch-site", "same-site");
        if is_other_site && !has_value("sec-fetch-mode", "navigate") {
            return Err(forbidden("requests from other sites are refused".to_owned()));
        }
        match &self.token {
            Some(token) if !has_token(headers, token) => Err(Problem::new(
                StatusCode::UNAUTHORIZED,
                "give the token as a bearer token or as a password",
            )),
            _ => Ok(()),
        }
    }

    fn is_own_host(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        name.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

fn has_token(headers: &HeaderMap, token: &str) -> bool {
    let Some((scheme, given)) = headers
        .get(AUTHORIZATION)
        .and_then(|given| given.to_str().ok())
        .and_then(|text| text.split_once(' '))
    else {
        return false;
    };
    if scheme.eq_ignore_ascii_case("bearer") {
        return is_same_secret(given.trim().as_bytes(), token.as_bytes());
    }
    let Ok(pair) = BASE64_STANDARD.decode(given.trim()) else { return false };
    let colon = pair.iter().position(|byte| *byte == b':');
    scheme.eq_ignore_ascii_case("basic")
        && colon.is_some_and(|colon| is_same_secret(&pair[colon + 1..], token.as_bytes()))
}

/// Takes equally long wherever the two differ.
fn is_same_secret(given: &[u8], secret: &[u8]) -> bool {
    given.len() == secret.len() && given.iter().zip(secret).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(access: &Access, headers: &[(&'static str, &str)]) -> u16 {
        let headers = headers
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        access.check_request(&headers).map_or_else(|problem| problem.status.as_u16(), |()| 200)
    }

    #[test]
    fn other_sites_and_their_names_are_refused() {
        let access = Access { hosts: vec!["dta.example".into()], token: None };
        for host in
            ["127.0.0.1:40055", "localhost:40055", "[::1]:40055", "10.0.0.5", "dta.example", "DTA.example:1"]
        {
            assert_eq!(status(&access, &[("host", host)]), 200, "{host}");
        }
        for host in ["", "attacker.example", "127.0.0.1.attacker.example:40055", "dta.example.attacker:1"] {
            assert_eq!(status(&access, &[("host", host)]), 403, "{host}");
        }
        let own = ("host", "127.0.0.1:40055");
        assert_eq!(status(&access, &[own, ("origin", "http://127.0.0.1:40055")]), 200);
        for origin in ["http://attacker.example", "null", "http://127.0.0.1:40056", "http://127.0.0.1"] {
            assert_eq!(status(&access, &[own, ("origin", origin)]), 403, "{origin}");
        }
        let foreign = ("sec-fetch-site", "cross-site");
        assert_eq!(status(&access, &[own, foreign, ("sec-fetch-mode", "no-cors")]), 403);
        assert_eq!(status(&access, &[own, foreign, ("sec-fetch-mode", "navigate")]), 200);
        assert_eq!(status(&access, &[own, ("sec-fetch-site", "same-origin")]), 200);
    }

    #[test]
    fn a_token_is_a_bearer_token_or_a_password() {
        let access = Access { hosts: Vec::new(), token: Some("secret".into()) };
        let with =
            |authorization: &str| status(&access, &[("host", "[::1]"), ("authorization", authorization)]);
        assert_eq!(status(&access, &[("host", "127.0.0.1")]), 401);
        let basic = |pair: &str| format!("Basic {}", BASE64_STANDARD.encode(pair));
        for (authorization, expected) in [
            ("Bearer secret", 200),
            ("bearer secret", 200),
            ("Bearer secre", 401),
            ("Bearer secret2", 401),
            ("secret", 401),
            (basic("me:secret").as_str(), 200),
            (basic("secret").as_str(), 401),
            (basic("me:other").as_str(), 401),
        ] {
            assert_eq!(with(authorization), expected, "{authorization}");
        }
    }
}
