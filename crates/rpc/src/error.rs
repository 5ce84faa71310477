//! Why a server did not answer.

use crate::transport::tls::TlsError;
use dta_proto::control::MessageError;
use tonic::{Code, Status};

dta_proto::named! {
    /// The servers of DTA.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ServerKind {
        /// A collector.
        Collector: "collector",
        /// A running translator's own service.
        Translator: "translator",
        /// A host's agent.
        Agent: "agent",
    }
}

impl ServerKind {
    /// With its article.
    fn name_with_article(self) -> &'static str {
        match self {
            Self::Collector => "a collector",
            Self::Translator => "a translator",
            Self::Agent => "an agent",
        }
    }

    /// An example of an address.
    fn example_address(self) -> &'static str {
        match self {
            Self::Collector => crate::DEFAULT_COLLECTOR,
            Self::Translator => "127.0.0.1:40051 or unix:PATH",
            Self::Agent => "192.0.2.10:40054",
        }
    }

    fn start_command(self) -> &'static str {
        match self {
            Self::Collector => "dta-collector serve",
            Self::Translator => "dta-translator run",
            Self::Agent => "dta-reporter agent",
        }
    }

    /// What is missing for an https address without TLS files.
    pub(crate) fn tls_files(self) -> &'static str {
        match self {
            Self::Collector => {
                "https needs TLS files: --ca, --client-cert and --client-key, or the table [translator.tls]"
            }
            Self::Translator => "https, but a translator's own service has no TLS",
            Self::Agent => "https needs TLS files: the table [tls] of the agents' file",
        }
    }
}

/// Why a server did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is not valid.
    #[error("{address:?} is not an address of {} ({reason}); write it as {}", server.name_with_article(), server.example_address())]
    Address {
        /// Which server it is for.
        server: ServerKind,
        /// The address.
        address: String,
        /// What is wrong.
        reason: String,
    },
    /// A TLS file of this client cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The server answers, but TLS is wrong or missing.
    #[error("cannot talk to the {server} at {address}: {reason}")]
    Security {
        /// The expected server.
        server: ServerKind,
        /// The address.
        address: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A translator's answer cannot be read.
    #[error("the answer of the translator at {address} cannot be read ({reason}): is it of another version?")]
    Answer {
        /// Its address.
        address: String,
        /// What is wrong.
        reason: MessageError,
    },
    /// No answer.
    #[error("no {server} answers at {address}: {reason}; is it running (`{}`)?", server.start_command())]
    Unreachable {
        /// The expected server.
        server: ServerKind,
        /// The address.
        address: String,
        /// The reason from the transport.
        reason: String,
    },
    /// The collector refused, or the connection to it broke.
    // Not a source: its text would only repeat this with a code in front.
    #[error("{}", of_collector(.0))]
    Status(Status),
    /// A running translator refused, or does not answer.
    #[error("{}", of_translator(address, status))]
    Translator {
        /// The address.
        address: String,
        /// Its message, or the transport's.
        status: Status,
    },
    /// A host's agent refused, or the connection to it broke.
    #[error("{}", agent_message(address, status))]
    Agent {
        /// The address.
        address: String,
        /// Its message, or the transport's.
        status: Status,
    },
}

impl ClientError {
    /// The status of a call, if one was made.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Status(status) | Self::Translator { status, .. } | Self::Agent { status, .. } => {
                Some(status)
            }
            _ => None,
        }
    }

    /// Whether the server cannot answer this at all: for another moment, that a store has no history.
    pub fn is_unimplemented(&self) -> bool {
        self.status().is_some_and(|status| status.code() == Code::Unimplemented)
    }
}

/// The status with which a collector's call ended.
impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// The message of a status. If the transport failed during a call, its reason: with TLS 1.3, only then does a client
/// learn that it is refused.
fn of_collector(status: &Status) -> String {
    if is_foreign(status) {
        return "the port given as the collector's is not a collector's, or the collector has another version: is it a translator's (40051)?"
            .into();
    }
    match std::error::Error::source(status).and_then(crate::transport::known_tls_reason) {
        Some(known) => format!("cannot talk to the collector: {known}"),
        None => crate::transport::status_reason(status),
    }
}

/// Whether a gRPC server answered that does not know the service or the call: such an answer has no message.
fn is_foreign(status: &Status) -> bool {
    status.code() == Code::Unimplemented && status.message().is_empty()
}

fn of_translator(address: &str, status: &Status) -> String {
    match status.code() {
        _ if is_foreign(status) => {
            format!("what answers at {address} is not a translator: is it a collector (40050)?")
        }
        // What tonic reports without a connection, or if it broke.
        Code::Unavailable | Code::Unknown => format!(
            "no translator answers at {address}: start one (`dta-translator run`) or give its address ({})",
            crate::transport::status_reason(status)
        ),
        _ => format!("the translator at {address} says: {}", status.message()),
    }
}

fn agent_message(address: &str, status: &Status) -> String {
    if is_foreign(status) {
        return format!("what answers at {address} is not an agent (`dta-reporter agent`, port 40054)");
    }
    match std::error::Error::source(status).and_then(crate::transport::known_tls_reason) {
        Some(known) => format!("cannot talk to the agent at {address}: {known}"),
        None => format!("the agent at {address} says: {}", crate::transport::status_reason(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_another_kind_is_named_in_the_error() {
        let foreign = Status::unimplemented("");
        assert!(of_collector(&foreign).contains("not a collector's"));
        assert!(of_translator("127.0.0.1:40050", &foreign).contains("127.0.0.1:40050 is not a translator"));
    }
}
