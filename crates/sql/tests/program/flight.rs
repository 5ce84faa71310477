//! `dta-history serve`, with a client of Flight SQL.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use arrow_flight::error::FlightError;
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::sql::{CommandGetDbSchemas, CommandGetTables, SqlInfo};
use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;
use futures_util::TryStreamExt;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::made::{EPOCHS, key_writes, used};
use super::{history, program, text};

/// A server that ends with this.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(folder: &Path, flags: &[&str]) -> Server {
        let mut command = program(folder);
        command.args(["serve", "--listen", "127.0.0.1:0", "--log", "warn"]).args(flags);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: serde_json::Value = serde_json::from_str(&line).expect("a ready line");
        Server { process, address: ready["listen"].as_str().unwrap().to_owned() }
    }

    pub(crate) async fn client(&self) -> FlightSqlServiceClient<Channel> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        FlightSqlServiceClient::new(endpoint.connect().await.unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) type Answer = Result<Vec<RecordBatch>, FlightError>;

pub(crate) async fn asked(client: &mut FlightSqlServiceClient<Channel>, statement: &str) -> Answer {
    let info = client.execute(statement.to_owned(), None).await?;
    let ticket = info.endpoint[0].ticket.clone().expect("a ticket");
    client.do_get(ticket).await?.try_collect().await
}

fn number(answer: Answer) -> i64 {
    answer.unwrap()[0].column(0).as_primitive::<Int64Type>().value(0)
}

fn refusal(answer: Answer) -> String {
    answer.unwrap_err().to_string()
}

#[tokio::test]
async fn statements_and_what_clients_ask_about_tables_are_answered() {
    let folder = history();
    let server = Server::start(folder.path(), &[]);
    let mut client = server.client().await;
    let all: usize = EPOCHS.map(|epoch| used(&key_writes(), epoch)).sum();
    assert_eq!(number(asked(&mut client, "select count(value) from flows").await), all as i64);
    let answer = asked(&mut client, "select * from flows").await.unwrap();
    assert_eq!(answer.iter().map(RecordBatch::num_rows).sum::<usize>(), all);
    let names: Vec<_> = answer[0].schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["epoch", "opened", "closed", "slot", "checksum", "value"]);

    let mut prepared = client.prepare("select count(*) from epochs".to_owned(), None).await.unwrap();
    assert_eq!(prepared.dataset_schema().unwrap().fields().len(), 1);
    let info = prepared.execute().await.unwrap();
    let stream = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    let counted: Vec<RecordBatch> = stream.try_collect().await.unwrap();
    assert_eq!(counted[0].column(0).as_primitive::<Int64Type>().value(0), 20);
    prepared.close().await.unwrap();

    let get = async |client: &mut FlightSqlServiceClient<Channel>,
                     info: arrow_flight::FlightInfo|
           -> Vec<RecordBatch> {
        let stream = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
        stream.try_collect().await.unwrap()
    };
    let query = CommandGetTables {
        catalog: None,
        db_schema_filter_pattern: Some("history".to_owned()),
        table_name_filter_pattern: None,
        table_types: vec![],
        include_schema: true,
    };
    let info = client.get_tables(query).await.unwrap();
    let tables = get(&mut client, info).await;
    let names: Vec<_> =
        tables[0].column_by_name("table_name").unwrap().as_string::<i32>().iter().flatten().collect();
    assert_eq!(names, ["epochs", "flows", "gaps", "losses", "paths"]);
    let info = client.get_catalogs().await.unwrap();
    assert_eq!(get(&mut client, info).await[0].num_rows(), 1);
    let info = client
        .get_db_schemas(CommandGetDbSchemas { catalog: None, db_schema_filter_pattern: None })
        .await
        .unwrap();
    assert_eq!(get(&mut client, info).await[0].num_rows(), 1);
    let info = client.get_table_types().await.unwrap();
    assert_eq!(get(&mut client, info).await[0].num_rows(), 1);
    let info = client
        .get_sql_info(vec![SqlInfo::FlightSqlServerName, SqlInfo::FlightSqlServerReadOnly])
        .await
        .unwrap();
    assert_eq!(get(&mut client, info).await[0].num_rows(), 2);

    for (statement, what) in [
        ("select nothing from flows", "nothing"),
        ("selct", "not understood"),
        ("", "there is no statement"),
        ("select 1; select 2", "one at a time"),
        ("create table t as select 1", "only reads"),
        ("copy (select 1) to '/tmp/x.csv'", "only reads"),
        ("select dta_slot('flows', dta_key('ab'), 9)", "copy is 0 to 1"),
    ] {
        let error = refusal(asked(&mut client, statement).await);
        assert!(error.contains(what), "{statement:?}: {error}");
    }
    // What a store's collector writes meanwhile is there with the next statement.
    let table = dta_history::EpochTable::open(folder.path(), &key_writes()).unwrap();
    let kept = table.kept_epochs().unwrap();
    let last = &kept.last().unwrap().epoch;
    let next =
        dta_history::HistoryEpoch { number: last.number + 1, opened: last.opened + 60_000, ..last.clone() };
    table.begin_epoch(next.number).unwrap().finish(&next).unwrap();
    assert_eq!(number(asked(&mut client, "select count(*) from epochs where store = 'flows'").await), 11);
}

#[tokio::test]
async fn bounds_hold_and_are_named() {
    let folder = history();
    let quick = Server::start(folder.path(), &["--query-seconds", "2", "--queries", "1"]);
    let mut client = quick.client().await;
    let endless = "select count(*) from generate_series(1, 1000000000000) where value % 2 = 0";
    let late = refusal(asked(&mut client, endless).await);
    assert!(late.contains("--query-seconds"), "{late}");
    // Its place was given back. If not, each of these is late, and not only where the machine is busy.
    let begun = std::time::Instant::now();
    let seven = loop {
        match asked(&mut client, "select 7").await {
            Err(late) if begun.elapsed().as_secs() < 60 => {
                assert!(late.to_string().contains("--query-seconds"), "{late}");
            }
            answer => break answer,
        }
    };
    assert_eq!(number(seven), 7);
    // The time of a statement is no bound here.
    let bounds = ["--query-rows", "1000", "--memory-mib", "64", "--query-seconds", "600"];
    let small = Server::start(folder.path(), &bounds);
    let mut client = small.client().await;
    let rows = refusal(asked(&mut client, "select * from generate_series(1, 100000)").await);
    assert!(rows.contains("--query-rows"), "{rows}");
    let memory =
        refusal(asked(&mut client, "select array_agg(value) from generate_series(1, 20000000)").await);
    assert!(memory.contains("--memory-mib"), "{memory}");
    assert_eq!(number(asked(&mut client, "select 7").await), 7);
}

#[tokio::test]
async fn long_and_deep_statements_do_no_harm() {
    let folder = history();
    let server = Server::start(folder.path(), &[]);
    let mut client = server.client().await;
    for deep in [
        format!("select 1{}", "+1".repeat(4000)),
        format!("select 1{}", " union all select 1".repeat(400)),
        format!("select {}1", "(".repeat(4000)),
    ] {
        // Answered or refused; the program lives.
        let _ = asked(&mut client, &deep).await;
        assert_eq!(number(asked(&mut client, "select 7").await), 7);
    }
    let long = refusal(asked(&mut client, &format!("select 1{}", "+1".repeat(10_000))).await);
    assert!(long.contains("may have at most 16384"), "{long}");
}

/// A CA, and what a server and a client show of it: PEM files.
fn certificates(folder: &Path) -> [String; 5] {
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    let mut files = vec![("ca.crt", ca.pem())];
    for (name, certificate, key) in
        [("server", "server.crt", "server.key"), ("client", "client.crt", "client.key")]
    {
        let mut params = CertificateParams::new(vec![format!("{name}.example")]).unwrap();
        params.subject_alt_names.push(SanType::IpAddress("127.0.0.1".parse().unwrap()));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let own = KeyPair::generate().unwrap();
        files.push((certificate, params.signed_by(&own, &ca).unwrap().pem()));
        files.push((key, own.serialize_pem()));
    }
    let files: Vec<String> = files
        .into_iter()
        .map(|(name, pem)| {
            let path = folder.join(name);
            std::fs::write(&path, pem).unwrap();
            path.to_str().unwrap().to_owned()
        })
        .collect();
    files.try_into().unwrap()
}

#[tokio::test]
async fn tls_wants_a_certificate_of_the_client() {
    let folder = history();
    let [ca, cert, key, client_cert, client_key] = certificates(folder.path());
    let server =
        Server::start(folder.path(), &["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca]);
    let read = |path: &str| std::fs::read(path).unwrap();
    let endpoint = |tls: ClientTlsConfig| {
        let to = Endpoint::from_shared(format!("https://{}", server.address)).unwrap();
        to.tls_config(tls.ca_certificate(Certificate::from_pem(read(&ca)))).unwrap()
    };
    let known = ClientTlsConfig::new().identity(Identity::from_pem(read(&client_cert), read(&client_key)));
    let mut client = FlightSqlServiceClient::new(endpoint(known).connect().await.unwrap());
    assert_eq!(number(asked(&mut client, "select count(*) from epochs").await), 20);
    // In TLS 1.3 a client learns only with its first call that it was refused.
    if let Ok(channel) = endpoint(ClientTlsConfig::new()).connect().await {
        let mut stranger = FlightSqlServiceClient::new(channel);
        assert!(asked(&mut stranger, "select 1").await.is_err());
    }
    let plain = Endpoint::from_shared(format!("http://{}", server.address)).unwrap().connect().await;
    if let Ok(channel) = plain {
        assert!(asked(&mut FlightSqlServiceClient::new(channel), "select 1").await.is_err());
    }
}

#[test]
fn beyond_loopback_it_wants_tls() {
    let folder = history();
    let output = program(folder.path()).args(["serve", "--listen", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--insecure"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn it_ends_by_sigterm_and_leaves_nothing() {
    let folder = history();
    let entries = || std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let before: std::collections::BTreeSet<_> = entries().collect();
    let mut server = Server::start(folder.path(), &[]);
    let mut client = server.client().await;
    assert_eq!(number(asked(&mut client, "select 7").await), 7);
    let info = client.execute("select * from generate_series(1, 1000000000)".to_owned(), None).await.unwrap();
    let _unread = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    let pid = server.process.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    assert!(server.process.wait().unwrap().success());
    assert_eq!(entries().collect::<std::collections::BTreeSet<_>>(), before);
}
