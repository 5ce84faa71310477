//! OTLP over gRPC, against a server that records what it is sent; a real collector is in `rotel.rs`.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use dta_export::config::{Config, Otlp, OtlpProtocol, Signal};
use dta_proto::telemetry::list;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{LogsService, LogsServiceServer};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use crate::recorder::{Bed, counted, end, until};
use crate::source::drop_at;
use crate::tls::{Certificate, issue};

/// What to answer to the request of this number with so many records.
type Answer = fn(usize, usize) -> Result<i64, Status>;

#[derive(Clone)]
struct Logs {
    answer: Answer,
    /// The token and the records of each request.
    asked: Arc<Mutex<Vec<(String, usize)>>>,
}

#[tonic::async_trait]
impl LogsService for Logs {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        let token = request.metadata().get("authorization").unwrap().to_str().unwrap().to_owned();
        let records = request.get_ref().resource_logs[0].scope_logs[0].log_records.len();
        let mut asked = self.asked.lock().unwrap();
        asked.push((token, records));
        let rejected_log_records = (self.answer)(asked.len() - 1, records)?;
        let partial_success =
            Some(ExportLogsPartialSuccess { rejected_log_records, error_message: "too old".into() });
        Ok(Response::new(ExportLogsServiceResponse { partial_success }))
    }
}

impl Logs {
    /// Starts it, with TLS if there is a certificate; returns its URL, too.
    fn start(answer: Answer, tls: Option<&Certificate>) -> (Self, String) {
        let logs = Logs { answer, asked: Arc::default() };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let mut server = Server::builder();
        if let Some(Certificate { cert, key, .. }) = tls {
            let identity = Identity::from_pem(cert, key.serialize_pem());
            server = server.tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
        }
        let router = server.add_service(LogsServiceServer::new(logs.clone()));
        tokio::spawn(router.serve_with_incoming(TcpIncoming::from(listener)));
        let scheme = if tls.is_some() { "https" } else { "http" };
        (logs, format!("{scheme}://{address}"))
    }

    fn records(&self) -> Vec<usize> {
        self.asked.lock().unwrap().iter().map(|(_, records)| *records).collect()
    }
}

fn bed(url: &str) -> Bed {
    Bed::new(|folder| {
        let otlp = Otlp {
            url: url.to_owned(),
            protocol: OtlpProtocol::Grpc,
            signals: vec![Signal::Logs],
            secret_file: Some(folder.join("token")),
            spool: Some(folder.join("spool")),
            ..Otlp::default()
        };
        Config { otlp: Some(otlp), ..Config::default() }
    })
}

#[tokio::test]
async fn what_is_unavailable_is_sent_again_and_what_is_too_large_arrives_in_parts() {
    let (server, url) = Logs::start(
        |n, records| match (n, records) {
            (0, _) => Err(Status::unavailable("not now")),
            (1, _) => Err(Status::unauthenticated("no")),
            (_, 11..) => Err(Status::resource_exhausted("message is larger than max")),
            _ => Ok(0),
        },
        None,
    );
    let bed = bed(&url);
    bed.lists.put(list::DROPS, (1..=40).map(drop_at).collect());
    let mut exporters = bed.start(true);
    end(&mut exporters).await;
    let counts = ["made", "delivered", "dropped.rejected", "retried"];
    assert_eq!(counts.map(|name| counted(&exporters, name)), [40, 40, 0, 2]);
    exporters.stop_exporters().await;
    assert_eq!(server.records(), [40, 40, 40, 20, 10, 10, 20, 10, 10]);
    assert!(server.asked.lock().unwrap().iter().all(|(token, _)| token == "Bearer very-secret"));
}

#[tokio::test]
async fn partial_success_over_grpc_counts_what_was_rejected_and_sends_nothing_again() {
    let (server, url) = Logs::start(|_, _| Ok(2), None);
    let bed = bed(&url);
    bed.lists.put(list::DROPS, (1..=3).map(drop_at).collect());
    let mut exporters = bed.start(true);
    end(&mut exporters).await;
    assert_eq!(["delivered", "dropped.rejected", "retried"].map(|name| counted(&exporters, name)), [1, 2, 0]);
    exporters.stop_exporters().await;
    assert_eq!(server.records(), [3]);
}

#[tokio::test]
async fn log_records_go_over_tls_to_a_server_that_the_authority_vouches_for_and_to_no_other() {
    let mut bed = bed("https://127.0.0.1:1");
    let folder = bed.folder.path().to_owned();
    let (own, other) = (issue(&folder.join("ca.pem")), issue(&folder.join("other.pem")));
    let (trusted, url) = Logs::start(|_, _| Ok(0), Some(&own));
    let (stranger, foreign) = Logs::start(|_, _| Ok(0), Some(&other));
    bed.lists.put(list::DROPS, vec![drop_at(5)]);
    let otlp = bed.config.otlp.as_mut().unwrap();
    (otlp.url, otlp.ca) = (foreign, Some(folder.join("ca.pem")));
    let exporters = bed.start(false);
    until(&exporters, "retried", 1).await;
    exporters.stop_exporters().await;
    assert!(stranger.records().is_empty());
    bed.config.otlp.as_mut().unwrap().url = url;
    let mut exporters = bed.start(true);
    end(&mut exporters).await;
    assert_eq!(counted(&exporters, "retried"), 0);
    exporters.stop_exporters().await;
    assert_eq!(trusted.records(), [1]);
}
