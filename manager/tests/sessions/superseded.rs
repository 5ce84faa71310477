//! Two translators of one name.

use std::time::Duration;

use dta_proto::key::Key;
use dta_proto::wire::dta::DtaBody;
use rustix::process::Signal;

use crate::ground::{Ground, wait_until};

const KEY: Key = Key([5; 16]);

#[test]
fn the_first_of_two_translators_of_one_name_leaves_and_says_who_has_the_session() {
    let ground = Ground::start();
    let mut first = ground.run_translator("[translator]\nname = 'leaf'\nsource = '127.71.1.1'\n", &[]);
    first.report(1, DtaBody::KeyWrite { redundancy: 0, key: KEY, value: &[8; 12] });
    first.wait_for("emitted", 1);
    let mut second = ground.run_translator("[translator]\nname = 'leaf'\nsource = '127.71.1.2'\n", &[]);

    // The first hears of it with its next renewal, and does not go on sending into nothing.
    assert_eq!(first.daemon.ended(), Some(1), "{}", first.daemon.log());
    let log = first.daemon.log();
    assert!(log.contains("another translator has opened session \"leaf\""), "{log}");
    assert!(log.contains("127.71.1.2"), "{log}");
    assert!(!log.contains("is unavailable") && !log.contains("panicked"), "{log}");

    // The second is not disturbed.
    second.report(1, DtaBody::KeyWrite { redundancy: 0, key: KEY, value: &[9; 12] });
    second.wait_for("emitted", 1);
    assert!(second.daemon.runs());
    wait_until("the value is there", || {
        let answer = ground.collector(&["query", "key-write", &KEY.to_string()]);
        answer.to_string().contains("090909090909090909090909")
    });
}

#[test]
fn a_translator_whose_lists_another_has_taken_drops_by_name_until_they_are_free() {
    let ground = Ground::start();
    let first_config = "[translator]\nname = 'first'\nsource = '127.71.2.1'\nlease_seconds = 10\n";
    let mut first = ground.run_translator(first_config, &[]);
    first.report(1, DtaBody::KeyWrite { redundancy: 0, key: KEY, value: &[8; 12] });
    first.wait_for("emitted", 1);
    first.daemon.signal(Signal::STOP);
    wait_until("the lease has run out", || ground.session("first").is_none());
    let second = ground.run_translator("[translator]\nname = 'second'\nsource = '127.71.2.2'\n", &[]);

    first.daemon.signal(Signal::CONT);
    wait_until("it has been refused", || first.daemon.log().contains("is owned by session"));
    let before = first.counter("accepted").unwrap();
    for _ in 0..5 {
        first.report(1, DtaBody::KeyWrite { redundancy: 0, key: KEY, value: &[9; 12] });
    }
    first.wait_for("dropped.no_queue_pair", 5);
    assert_eq!(first.counter("accepted"), Some(before));

    // The second leaves, its session is ended, and the first has its lists again.
    second.daemon.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(100));
    drop(second);
    ground.end_session("second");
    wait_until("the session is back", || ground.session("first").is_some());
    wait_until("reports are taken again", || {
        first.report(1, DtaBody::KeyWrite { redundancy: 0, key: KEY, value: &[9; 12] });
        first.counter("accepted").is_some_and(|now| now > before)
    });
}
