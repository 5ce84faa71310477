//! Against a server that records what it is sent, as no InfluxDB 2.x is at hand; 1.x is tested on a real one
//! (`manager/tests/export.rs`).

use std::collections::BTreeSet;
use std::net::TcpListener;

use dta_export::config::{Config, Influx};
use dta_proto::telemetry::list;

use crate::recorder::{Bed, Recorder, answer, counted, end, until};
use crate::source::drop_at;

fn bed(url: &str) -> Bed {
    Bed::new(|folder| {
        let influx = Influx {
            url: url.to_owned(),
            org: Some("my org".into()),
            bucket: Some("b".into()),
            secret_file: Some(folder.join("token")),
            spool: Some(folder.join("spool")),
            ..Influx::default()
        };
        Config { influx: Some(influx), ..Config::default() }
    })
}

#[tokio::test]
async fn a_2x_server_gets_token_organisation_and_bucket() {
    let server = Recorder::start(&["503 Away|{\"message\":\"not now\"}", "204 No Content|"]);
    let bed = bed(&server.url);
    bed.lists.put(list::DROPS, vec![drop_at(5), drop_at(5), drop_at(6)]);
    let mut exporters = bed.start(true);
    end(&mut exporters).await;
    let asked = server.asked();
    // The same again, until it is taken. No time is there twice in a series.
    assert_eq!((asked.len(), &asked[0]), (2, &asked[1]));
    assert_eq!(
        asked[0].text(),
        [5, 6, 7]
            .map(|time| format!("drops,reason=71,reason_name=traffic-manager,switch=1 value=1i {time}\n"))
            .concat()
    );
    let head = &asked[0].head;
    assert!(head.starts_with("POST /api/v2/write?org=my%20org&bucket=b&precision=ns HTTP/1.1\r\n"), "{head}");
    assert_eq!(asked[0].header("authorization"), Some("Token very-secret"));
    assert_eq!(
        ["made", "delivered", "spooled", "retried"].map(|name| counted(&exporters, name)),
        [3, 3, 0, 1]
    );
    assert!(!format!("{exporters:?}").contains("very-secret"));
    exporters.stop_exporters().await;
}

#[tokio::test]
async fn what_a_server_refuses_for_good_is_counted_and_stops_nothing() {
    const REFUSED: &str = "422 Unprocessable|{\"message\":\"points beyond retention policy dropped=2\"}";
    let server = Recorder::start(&[REFUSED, "204 No Content|"]);
    let bed = bed(&server.url);
    bed.lists.put(list::DROPS, vec![drop_at(1), drop_at(2), drop_at(3)]);
    let exporters = bed.start(false);
    until(&exporters, "delivered", 1).await;
    bed.lists.put(list::DROPS, vec![drop_at(4)]);
    until(&exporters, "delivered", 2).await;
    // What is made is counted after it was handed over.
    until(&exporters, "made", 4).await;
    assert_eq!(
        ["made", "dropped.rejected", "spooled", "retried"].map(|name| counted(&exporters, name)),
        [4, 2, 0, 0]
    );
    exporters.stop_exporters().await;
    assert_eq!(server.asked().len(), 2);
}

#[tokio::test]
async fn what_a_server_refuses_whole_arrives_in_parts_but_for_the_lines_at_fault() {
    const POINTS: u64 = 40;
    for (refusal, most_lines, bad, dropped) in [
        ("413 Too Large|", 10, None, 0),
        ("400 Bad Request|{\"error\":\"unable to parse\"}", POINTS as usize, Some(7), 1),
        ("422 Unprocessable|{\"message\":\"no such field\"}", POINTS as usize, Some(33), 1),
    ] {
        let is_bad = move |line: &str| bad.is_some_and(|bad| line.ends_with(&format!(" {bad}")));
        let is_taken = move |body: &str| body.lines().count() <= most_lines && !body.lines().any(is_bad);
        let server = Recorder::answering(move |_, body| {
            let body = std::str::from_utf8(body).unwrap();
            answer(if is_taken(body) { "204 No Content|" } else { refusal })
        });
        let bed = bed(&server.url);
        bed.lists.put(list::DROPS, (1..=POINTS).map(drop_at).collect());
        let mut exporters = bed.start(true);
        end(&mut exporters).await;
        let counts = ["made", "delivered", "dropped.rejected", "spooled", "retried"];
        assert_eq!(
            counts.map(|name| counted(&exporters, name)),
            [POINTS, POINTS - dropped, dropped, 0, 0],
            "{refusal}"
        );
        exporters.stop_exporters().await;
        let asked = server.asked();
        assert_eq!(asked[0].text().lines().count() as u64, POINTS, "{refusal}: not one request");
        let taken: BTreeSet<&str> = asked
            .iter()
            .filter(|asked| is_taken(asked.text()))
            .flat_map(|asked| asked.text().lines())
            .collect();
        let sent: BTreeSet<&str> = asked[0].text().lines().filter(|line| !is_bad(line)).collect();
        assert_eq!(taken, sent, "{refusal}");
    }
}

#[tokio::test]
async fn names_can_be_left_out() {
    let server = Recorder::start(&["204 No Content|"]);
    let mut bed = bed(&server.url);
    bed.config.influx.as_mut().unwrap().names = false;
    bed.lists.put(list::DROPS, vec![drop_at(5)]);
    let mut exporters = bed.start(true);
    exporters.wait_until_done().await;
    exporters.stop_exporters().await;
    assert_eq!(server.asked()[0].text(), "drops,reason=71,switch=1 value=1i 5\n");
}

#[tokio::test]
async fn a_server_that_is_away_stops_nothing_and_another_life_goes_on() {
    // Nothing listens there.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut bed = bed(&format!("http://{nobody}"));
    bed.lists.put(list::DROPS, vec![drop_at(1), drop_at(2)]);
    let exporters = bed.start(false);
    until(&exporters, "spooled", 2).await;
    until(&exporters, "retried", 1).await;
    bed.lists.put(list::DROPS, vec![drop_at(3)]);
    until(&exporters, "spooled", 3).await;
    exporters.stop_exporters().await;
    // Nothing that only its owner may read is open to others.
    use std::os::unix::fs::PermissionsExt;
    let segment = std::fs::metadata(bed.folder.path().join("spool/1.spool")).unwrap();
    assert_eq!(segment.permissions().mode() & 0o077, 0);
    let server = Recorder::start(&["204 No Content|"]);
    bed.config.influx.as_mut().unwrap().url = server.url.clone();
    bed.lists.put(list::DROPS, vec![drop_at(3), drop_at(4)]);
    let mut exporters = bed.start(true);
    assert_eq!(counted(&exporters, "found"), 3);
    exporters.wait_until_done().await;
    exporters.stop_exporters().await;
    let lines: String = server.asked().into_iter().map(|asked| asked.text().to_owned()).collect();
    // The fourth event has the third's time, which another process gave.
    assert_eq!(
        lines,
        [1, 2, 3, 4, 5]
            .map(|time| format!("drops,reason=71,reason_name=traffic-manager,switch=1 value=1i {time}\n"))
            .concat()
    );
}
