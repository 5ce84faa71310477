//! A whole collector in this process, and a client of it.

use dta_collector::config::{Config, MemoryBacking};
use dta_collector::server::RunningCollector;
use dta_proto::control;
use dta_proto::key::Key;
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{ClientError, ClientOptions};
use tonic::Status;

/// A configuration on free ports of loopback, with anonymous memory.
pub(crate) fn config() -> Config {
    let mut config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        memory: MemoryBacking::Anonymous,
        ..Config::default()
    };
    config.soft.port = 0;
    config
}

pub(crate) async fn start(config: &Config) -> (RunningCollector, RemoteCollector) {
    let server = RunningCollector::start(config).await.unwrap();
    let client = RemoteCollector::connect(&ClientOptions::without_tls(server.listen)).await.unwrap();
    (server, client)
}

/// What the collector said to a call that it refused.
pub(crate) fn status_of<T>(result: Result<T, ClientError>) -> Status {
    match result.err().expect("must be refused") {
        ClientError::Status(status) => status,
        other => panic!("not a status: {other}"),
    }
}

pub(crate) fn key(i: u32) -> Key {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&i.to_be_bytes());
    Key(bytes)
}

/// A translator at 127.0.0.2 that wants everything.
pub(crate) fn open_request(name: &str, qpn: u32) -> control::OpenSessionRequest {
    let pair = |purpose: control::Purpose, qpn| control::RequesterQueuePair {
        purpose: purpose.into(),
        qpn,
        start_psn: 0xff_fff0,
    };
    control::OpenSessionRequest {
        name: name.into(),
        translator: Some(control::Endpoint { ip: "127.0.0.2".into(), ..Default::default() }),
        queue_pairs: vec![pair(control::Purpose::Write, qpn), pair(control::Purpose::Atomic, qpn + 1)],
        lease_seconds: 30,
        ..Default::default()
    }
}
