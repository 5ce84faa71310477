//! What one client asks of `dta-history serve` harms no other: each of these statements once ended the server, or kept everybody waiting.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use arrow_flight::sql::client::FlightSqlServiceClient;
use datafusion::arrow::array::AsArray;
use datafusion::arrow::datatypes::Int64Type;
use futures_util::TryStreamExt;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

use super::flight::{Server, asked};
use super::{failure, history, sql, text};

type Client = FlightSqlServiceClient<Channel>;

/// For an answer that does not depend on anybody else.
const SOON: Duration = Duration::from_secs(120);

/// Each pair of a million and a million numbers: centuries.
const ENDLESS: &str = "select count(*) from generate_series(1,1000000) a cross join generate_series(1,1000000) b where a.value < b.value";
/// An answer that is longer than anybody reads.
const LONG: &str = "select * from generate_series(1, 1000000000)";

/// A client with an address of its own.
async fn client_at(server: &Server, last: u8) -> Client {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
    let endpoint = endpoint.local_address(Some(IpAddr::from([127, 0, 0, last])));
    FlightSqlServiceClient::new(endpoint.connect().await.unwrap())
}

/// Begins a statement; the answer is read when the task is let.
async fn begin(mut client: Client, statement: &str) -> JoinHandle<Result<usize, String>> {
    let info = client.execute(statement.to_owned(), None).await.unwrap();
    let mut answer = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    tokio::spawn(async move {
        let _client = client;
        let mut rows = 0;
        while let Some(batch) = answer.try_next().await.map_err(|error| error.to_string())? {
            rows += batch.num_rows();
        }
        Ok(rows)
    })
}

/// How many epochs there are, in the answer to another client.
async fn count_epochs(client: &mut Client) -> i64 {
    let begun = Instant::now();
    let answer = tokio::time::timeout(SOON, asked(client, "select count(*) from epochs")).await;
    // For people who run this with `--nocapture`: another client is to wait for less than a second.
    println!("another client was answered after {:?}", begun.elapsed());
    let answer = answer.expect("an answer").unwrap();
    answer[0].column(0).as_primitive::<Int64Type>().value(0)
}

/// Each table has the rows of the one before twice: the plan has as many parts.
fn doubled(times: usize) -> String {
    let tables =
        (1..=times).map(|n| format!("t{n} as (select * from t{0} union all select * from t{0})", n - 1));
    let tables: Vec<String> = std::iter::once("t0 as (select 1 as a)".to_owned()).chain(tables).collect();
    format!("with {} select * from t{times}", tables.join(", "))
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_that_do_not_end_keep_nobody_waiting() {
    let folder = history();
    let server = Server::start(folder.path(), &["--query-seconds", "600"]);
    let mut running = Vec::new();
    // More than one client may run.
    for _ in 0..6 {
        running.push(begin(client_at(&server, 1).await, ENDLESS).await);
    }
    let mut other = client_at(&server, 2).await;
    for _ in 0..3 {
        assert_eq!(count_epochs(&mut other).await, 20);
    }
    assert!(running.iter().all(|task| !task.is_finished()), "they still run");
    running.iter().for_each(JoinHandle::abort);
    // Their clients are gone, and so are they: their own address is answered again.
    let mut same = client_at(&server, 1).await;
    assert_eq!(count_epochs(&mut same).await, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn planning_has_a_deadline_and_bounded_memory() {
    let folder = history();
    let server = Server::start(folder.path(), &["--query-seconds", "60", "--memory-mib", "64"]);
    let nested = doubled(24);
    let joins = format!(
        "select * from epochs a0 {}",
        (1..60).map(|n| format!("cross join epochs a{n} ")).collect::<String>()
    );
    let mut waiting = Vec::new();
    for statement in [&nested, &nested, &joins, &joins] {
        let (mut client, statement) = (client_at(&server, 1).await, statement.clone());
        waiting.push(tokio::spawn(async move { client.prepare(statement, None).await.map(drop) }));
    }
    let mut other = client_at(&server, 2).await;
    assert_eq!(count_epochs(&mut other).await, 20);
    for task in waiting {
        // Columns of joins may be found in time; what takes too much is refused with the flag that says how much.
        if let Err(error) = task.await.unwrap() {
            let error = error.to_string();
            assert!(error.contains("--query-seconds") || error.contains("--memory-mib"), "{error}");
        }
    }
    assert_eq!(count_epochs(&mut other).await, 20);
}

#[tokio::test]
async fn nothing_but_questions_can_be_prepared() {
    let folder = history();
    let server = Server::start(folder.path(), &[]);
    let mut client = server.client().await;
    for statement in [
        "copy (select 1) to '/tmp/x.csv'",
        "drop table flows",
        "insert into epochs select * from epochs",
        "set datafusion.execution.batch_size = 1",
        "create table t as select 1",
    ] {
        for refused in [
            client.prepare(statement.to_owned(), None).await.map(drop),
            client.execute(statement.to_owned(), None).await.map(drop),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("only reads") || error.contains("nsupported"), "{statement}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_no_operator_counts_is_bounded_too() {
    let folder = history();
    let server = Server::start(folder.path(), &["--memory-mib", "64", "--query-seconds", "600"]);
    let mut client = client_at(&server, 1).await;
    let mut other = client_at(&server, 2).await;
    for statement in [
        "select length(repeat('a', 2000000000) || repeat('b', 2000000000))",
        "select max(n) from (select count(x) over () as n from (select repeat(cast(value as text), 2000) as x from generate_series(1, 1000000)))",
    ] {
        let (mut client, statement) = (client.clone(), statement.to_owned());
        let task = tokio::spawn(async move { asked(&mut client, &statement).await.map(drop) });
        assert_eq!(count_epochs(&mut other).await, 20);
        let answer = tokio::time::timeout(SOON, task).await.expect("an end").unwrap();
        let error = answer.unwrap_err().to_string();
        assert!(error.contains("--memory-mib"), "{error}");
    }
    assert_eq!(count_epochs(&mut client).await, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_not_read_keep_nobody_waiting() {
    let folder = history();
    let server = Server::start(folder.path(), &["--query-seconds", "600", "--query-rows", "10000000000"]);
    let mut unread = Vec::new();
    for _ in 0..14 {
        let mut client = client_at(&server, 1).await;
        let info = client.execute(LONG.to_owned(), None).await.unwrap();
        let ticket = info.endpoint[0].ticket.clone().unwrap();
        unread.push((
            tokio::time::timeout(SOON, client.do_get(ticket)).await.expect("a stream").unwrap(),
            client,
        ));
    }
    // From another address, and from the same.
    for last in [2, 1] {
        let mut other = client_at(&server, last).await;
        assert_eq!(count_epochs(&mut other).await, 20);
    }
    // The newest ones are still there; the places of some that nobody read went to others.
    let (newest, _client) = unread.last_mut().unwrap();
    assert!(newest.try_next().await.unwrap().is_some());
    let (oldest, _client) = unread.first_mut().unwrap();
    let ended = tokio::time::timeout(SOON, oldest.try_for_each(|_| async { Ok(()) })).await.expect("an end");
    assert!(ended.unwrap_err().to_string().contains("too slowly"));
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_calls_shut_nobody_out() {
    let folder = history();
    let server = Server::start(folder.path(), &[]);
    let mut idle = Vec::new();
    for _ in 0..70 {
        let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
        // Those beyond the limit are closed.
        idle.extend(endpoint.connect().await.ok());
    }
    let mut other = client_at(&server, 2).await;
    assert_eq!(count_epochs(&mut other).await, 20);
    // From the same address, once one of them has been unused for a while.
    let begun = Instant::now();
    loop {
        let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
        if let Ok(channel) = endpoint.connect().await
            && asked(&mut FlightSqlServiceClient::new(channel), "select 7").await.is_ok()
        {
            break;
        }
        assert!(begun.elapsed() < SOON, "no place for another connection");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(idle.len() >= 48);
}

#[test]
fn deep_statements_are_answered_or_refused_without_a_server() {
    let folder = history();
    let output = sql(
        folder.path(),
        &["-o", "csv", &format!("select epoch{} as n from flows limit 1", " + 1".repeat(490))],
        "",
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).lines().nth(1).unwrap().parse::<u64>().unwrap() > 490);
    for deep in [
        format!("select 1{}", " + 1".repeat(501)),
        format!("select {}1{}", "(".repeat(501), ")".repeat(501)),
        format!("select 1{}", " union all select 1".repeat(501)),
        format!("select {} 1", "not ".repeat(501)),
    ] {
        let refused = failure(folder.path(), &[&deep]);
        assert!(refused.contains("more than 500 operators and brackets"), "{refused}");
    }
}
