//! Where the translator's own gRPC service listens.

use std::future::Future;
use std::io;
use std::sync::Arc;

use dta_proto::control::translator_server::TranslatorServer;
use dta_rpc::transport::standard::{self, Health};
use dta_rpc::transport::{ConnectionCounters, Listen, MAX_MESSAGE, Method, ServerLimits, UnixPath};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;

use super::service::TranslatorService;
use crate::control_address::ControlAddress;

/// An open port that is not served yet.
pub(super) struct TranslatorControlPort {
    /// Its address, with the actual TCP port.
    pub(super) address: ControlAddress,
    listener: Listener,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, UnixPath),
}

impl TranslatorControlPort {
    pub(super) async fn open(address: &ControlAddress) -> io::Result<Self> {
        Ok(match address {
            ControlAddress::Tcp(address) => {
                let listener = TcpListener::bind(address).await?;
                let address = ControlAddress::Tcp(listener.local_addr()?);
                Self { address, listener: Listener::Tcp(listener) }
            }
            ControlAddress::Unix(path) => {
                let (listener, file) = dta_rpc::transport::listen_unix(path)?;
                Self { address: address.clone(), listener: Listener::Unix(listener, file) }
            }
        })
    }

    /// Serves until `stopped` is ready.
    pub(super) fn serve_control(
        self,
        service: TranslatorService,
        health: &Health,
        stopped: impl Future<Output = ()> + Send + 'static,
    ) -> Result<JoinHandle<Result<(), tonic::transport::Error>>, String> {
        let counters = Arc::new(ConnectionCounters::default());
        let server = dta_rpc::transport::build_server(ServerLimits::FEW, classify_method, counters.clone())
            .add_service(TranslatorServer::new(service).max_decoding_message_size(MAX_MESSAGE))
            .add_service(health.health_service())
            .add_service(standard::reflection(dta_proto::control::DESCRIPTORS)?);
        Ok(match self.listener {
            Listener::Tcp(listener) => {
                let listen = Listen { limits: ServerLimits::FEW, tls: None };
                let incoming = dta_rpc::transport::accept_tcp(listener, listen, counters);
                tokio::spawn(server.serve_with_incoming_shutdown(incoming, stopped))
            }
            Listener::Unix(listener, file) => tokio::spawn(async move {
                let _file = file;
                let incoming = dta_rpc::transport::accept_unix(listener, ServerLimits::FEW, counters);
                server.serve_with_incoming_shutdown(incoming, stopped).await
            }),
        })
    }
}

/// What a method of the service accepts.
fn classify_method(path: &str) -> Method {
    match path {
        // Counters of all reporters may be many.
        "/dta.v1.Translator/Statistics" => Method::Large,
        _ => Method::Ordinary,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use dta_dataplane::{ReporterCounters, ReporterStatus};
    use dta_proto::control::TranslatorStatisticsResponse;
    use prost::Message;

    use super::*;
    use crate::packets::Snapshot;

    #[test]
    fn counters_of_a_full_table_of_reporters_fit_one_answer() {
        let most = u64::MAX;
        let counters = ReporterCounters {
            received: most,
            gaps: most,
            gaps_filled: most,
            duplicates: most,
            out_of_window: most,
            restarts: most,
            nacks: most,
        };
        // Up to `reporters` in [translator.limits].
        let reporters =
            (0..u16::MAX).map(|id| ReporterStatus { id, counters, newest: u32::MAX, since: most });
        let snapshot = Snapshot {
            at: SystemTime::now(),
            counters: Default::default(),
            reporters: reporters.collect(),
            evicted: counters,
            evictions: (most, most),
            queue_pairs: Vec::new(),
            answers_ignored: 0,
            former_regions: 0,
            int: Vec::new(),
            int_link: None,
            flows_link: None,
            reports_link: Default::default(),
            roce_link: Default::default(),
            ring: Default::default(),
            device: None,
            roce_faults: Default::default(),
            nack_faults: Default::default(),
            answer_faults: Default::default(),
        };
        let nodes = crate::packets::node_statistics("translator", u64::MAX, &snapshot);
        let bytes = TranslatorStatisticsResponse { nodes }.encoded_len();
        let longest = classify_method("/dta.v1.Translator/Statistics").longest_answer(&ServerLimits::FEW);
        assert!((dta_rpc::transport::LONGEST_ANSWER..longest).contains(&bytes), "{bytes} of {longest} bytes");
    }
}
