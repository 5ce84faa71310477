//! A cluster of real processes over loopback, with real etcd: collectors come, go and die under load, and every answer
//! is compared with what was reported.

#[allow(dead_code)] // those of placement use more of it
#[path = "../../../crates/cluster/tests/etcd/nodes.rs"]
mod nodes;

#[path = "../schema/mod.rs"]
mod schema;

#[path = "../common/apart.rs"]
mod apart;

#[path = "../common/mod.rs"]
mod common;

mod ground;
mod lists;
mod pages;
mod relay;
mod scrape;
mod secured;
mod switched;
mod truth;

use std::time::Duration;

use ground::{Ground, LEASE};
use relay::Relay;

#[test]
#[ignore = "needs etcd-server"]
fn two_collectors_become_three_and_two_again() {
    let mut ground = Ground::start(&["a", "b"]);
    ground.load(Duration::from_secs(4));
    ground.check_now("two collectors");

    ground.join("c");
    ground.until_at(&["a", "b", "c"]);
    ground.load(Duration::from_secs(8));
    ground.check_now("three collectors");
    ground.check_commands(3);
    ground.check_scraped();
    ground.check_pages();

    // Not in a hurry: it loses what it has when an epoch begins, and then ends.
    ground.placement("drain", &["c"]);
    ground.until_at(&["a", "b"]);
    ground.load(Duration::from_secs(8));
    ground.check_now("the third one is drained");
    let shown = ground.placement("show", &[]);
    assert_eq!(
        (&shown["collectors"]["c"]["drained"], &shown["collectors"]["c"]["buckets"][0]),
        (&true.into(), &"none".into())
    );
    // What it had in earlier epochs it takes along.
    ground.check_epochs();
    ground.terminate("c");
    ground.load(Duration::from_secs(4));
    ground.check_values("two collectors again");
    let [before, after] = [&shown["version"], &ground.placement("rebalance", &[])["version"]];
    assert!(after.as_u64() >= before.as_u64(), "{before} {after}");
}

#[test]
#[ignore = "needs etcd-server"]
fn a_list_that_moves_is_followed_and_its_past_is_found_where_it_was() {
    list_moves(Ground::start(&["a", "b"]));
}

fn list_moves(mut ground: Ground) {
    ground.until_served();
    let followed: Vec<_> = (0..lists::COUNT).map(|list| ground.follow_list(list)).collect();
    ground.load(Duration::from_secs(6));
    ground.placement("drain", &["a"]);
    ground.until_at(&["b"]);
    ground.until_moved(&followed);
    ground.join("c");
    ground.until_at(&["b", "c"]);
    ground.until_moved(&followed);
    for list in followed {
        ground.check_list(list, lists::MOVED);
    }
    ground.check_epochs();
}

#[test]
#[ignore = "needs root, etcd-server and simple_switch_grpc"]
fn a_switch_follows_two_collectors_that_become_three_and_two_again() {
    if !common::has_bmv2("a_switch_follows_two_collectors_that_become_three_and_two_again") {
        return;
    }
    let mut ground = Ground::start_switched(&["a", "b"]);
    ground.until_served();
    ground.load(Duration::from_secs(4));
    ground.check_values("two collectors");
    ground.join("c");
    ground.until_at(&["a", "b", "c"]);
    ground.load(Duration::from_secs(8));
    ground.check_values("three collectors");
    // What the first one had before the third one came dies with it.
    ground.check_epochs();
    ground.kill("a", &["b", "c"]);
    ground.load(Duration::from_secs(4));
    ground.check_values("a is dead");
}

#[test]
#[ignore = "needs root, etcd-server and simple_switch_grpc"]
fn a_list_of_a_switch_that_moves_is_followed_and_its_past_is_found_where_it_was() {
    if !common::has_bmv2("a_list_of_a_switch_that_moves_is_followed_and_its_past_is_found_where_it_was") {
        return;
    }
    list_moves(Ground::start_switched(&["a", "b"]));
}

#[test]
#[ignore = "needs root, etcd-server and simple_switch_grpc"]
fn lists_of_a_switch_that_restarted_go_on_where_the_collectors_have_them() {
    if !common::has_bmv2("lists_of_a_switch_that_restarted_go_on_where_the_collectors_have_them") {
        return;
    }
    let mut ground = Ground::start_switched(&["a", "b"]);
    ground.until_served();
    let followed: Vec<_> = (0..lists::COUNT).map(|list| ground.follow_list(list)).collect();
    ground.load(Duration::from_secs(4));
    let begin = ground.truth.rounds();
    ground.restart_switch();
    ground.until_served();
    let gap = ground.truth.rounds() - begin;
    ground.load(Duration::from_secs(4));
    ground.check_values("the switch has restarted");
    for list in followed {
        // Batches were held when it was killed, too.
        ground.check_list(list, 2 * lists::MOVED + gap as usize);
    }
}

#[test]
#[ignore = "needs etcd-server"]
fn collectors_die_and_others_take_their_place() {
    // The first one plans.
    let mut ground = Ground::start(&["a"]);
    ground.join("b");
    ground.join("c");
    ground.until_at(&["a", "b", "c"]);
    ground.load(Duration::from_secs(4));
    for (dies, left) in [("a", &["b", "c"][..]), ("b", &["c"])] {
        ground.kill(dies, left);
        ground.load(Duration::from_secs(4));
        ground.check_values(&format!("{dies} is dead, and time has passed"));
    }
    ground.join("a");
    ground.until_at(&["a", "c"]);
    ground.load(Duration::from_secs(8));
    ground.check_values("a is back");
    ground.check_epochs();
}

#[test]
#[ignore = "needs etcd-server"]
fn keys_with_copies_at_two_collectors_are_answered_while_one_dies_and_comes_back() {
    let mut ground = Ground::start(&["a", "b"]);
    let keys = apart::keys(10_000, ground::SLOTS);
    ground.write(&keys, 1);
    ground.kill_alone("b");
    // Nobody knows yet.
    assert_eq!(ground.right(&keys, 1), keys.len());
    // No other keys are reported, which would take slots of these.
    ground.wait_until_at(&["a"]);
    assert_eq!(ground.right(&keys, 1), keys.len());
    ground.write(&keys, 2);
    ground.join("b");
    ground.wait_until_at(&["a", "b"]);
    // It has the values of the first turn.
    ground.until_right(&keys, 2);
    ground.write(&keys, 3);
}

#[test]
#[ignore = "needs etcd-server"]
fn of_three_collectors_one_dies_and_comes_back_and_no_key_with_two_copies_is_lost() {
    let mut ground = Ground::start(&["a", "b", "c"]);
    let keys = apart::keys(10_000, ground::SLOTS);
    ground.write(&keys, 1);
    ground.kill_alone("b");
    ground.wait_until_at(&["a", "c"]);
    // The copies that are left stay where they are.
    ground.until_right(&keys, 1);
    ground.write(&keys, 2);
    ground.join("b");
    ground.wait_until_at(&["a", "b", "c"]);
    ground.until_right(&keys, 2);
    ground.write(&keys, 3);
}

#[test]
#[ignore = "needs etcd-server"]
fn counters_with_replicas_lose_nothing_when_their_keys_have_moved_and_a_collector_dies() {
    // What one counts alone would be lost with it.
    let mut ground = Ground::start(&["a"]);
    ground.until_served();
    ground.check_now("a is alone");
    ground.join("b");
    ground.until_at(&["a", "b"]);
    ground.join("c");
    ground.until_at(&["a", "b", "c"]);
    ground.load(Duration::from_secs(4));
    ground.check_now("three collectors");
    ground.kill_alone("b");
    // Nobody knows yet.
    ground.load(Duration::from_secs(2));
    ground.check_counted_twice("b has died");
    ground.until_at(&["a", "c"]);
    ground.load(Duration::from_secs(4));
    ground.check_counted_twice("b is dead, and time has passed");
    // It has counted before what the others have not.
    ground.join("b");
    ground.until_at(&["a", "b", "c"]);
    ground.load(Duration::from_secs(4));
    ground.check_counted_twice("b is back");
    // Its keys are with another one than before, or it is the other one of both.
    ground.kill_alone("b");
    ground.load(Duration::from_secs(2));
    ground.check_counted_twice("b has died again");
}

#[test]
#[ignore = "needs etcd-server"]
fn who_is_started_again_goes_by_what_the_epoch_began_with() {
    let mut ground = Ground::start(&["a", "b"]);
    ground.until_served();
    ground.check_long("two collectors");
    ground.join("c");
    ground.until_at(&["a", "b", "c"]);
    ground.check_long("a third one has nothing in this epoch");
    ground.kill_alone("b");
    ground.join("b");
    ground.load(Duration::from_secs(4));
    ground.check_long("b was started again");
    ground.kill_translator();
    ground.load(Duration::from_secs(4));
    ground.check_long("the translator was started again");
}

#[test]
#[ignore = "needs etcd-server"]
fn without_a_quorum_reports_are_taken_and_questions_answered() {
    let mut ground = Ground::start(&["a", "b"]);
    ground.nodes.kill(0);
    ground.load(Duration::from_secs(2));
    ground.check_now("one node of three is gone");
    ground.join("c");
    ground.until_at(&["a", "b", "c"]);
    ground.load(Duration::from_secs(6));
    ground.check_now("a collector has joined meanwhile");

    ground.nodes.kill(1);
    ground.load(2 * LEASE);
    ground.check_now("there is no quorum");
    ground.nodes.start_node(0);
    ground.until_at(&["a", "b", "c"]);
    ground.load(Duration::from_secs(4));
    ground.check_now("there is a quorum again");
}

#[test]
#[ignore = "needs etcd-server"]
fn a_collector_that_was_frozen_does_not_answer_for_what_moved() {
    let mut ground = Ground::start(&["a", "b"]);
    ground.load(Duration::from_secs(4));
    ground.check_now("both are there");
    let (of_b, keys) = ground.all_of("b");
    ground.freeze("b");
    ground.until_at(&["a"]);
    ground.until_served();
    ground.load(Duration::from_secs(2));
    // Otherwise it would be given something again when it is back.
    ground.drain("b");
    ground.thaw("b");
    let begin = std::time::Instant::now();
    while begin.elapsed() < Duration::from_secs(6) {
        ground.refuses(&of_b, &keys);
        ground.load(Duration::from_millis(100));
    }
    ground.check_values("it is back, and has nothing");
}

#[test]
#[ignore = "needs etcd-server"]
fn a_translator_that_is_cut_off_from_etcd_goes_on_and_one_that_was_killed_comes_back() {
    let mut ground = Ground::start(&["a", "b"]);
    ground.load(Duration::from_secs(2));
    ground.relays.iter().for_each(Relay::cut);
    ground.load(2 * LEASE);
    ground.check_now("etcd cannot be reached");
    ground.join("c");
    ground.until_at(&["a", "b", "c"]);
    ground.relays.iter().for_each(Relay::mend);
    ground.load(Duration::from_secs(6));
    ground.check_now("it can be reached again, and a collector has joined meanwhile");

    ground.kill_translator();
    ground.load(Duration::from_secs(4));
    ground.check_values("the translator was killed");
    ground.check_epochs();
}
