//! Collectors that join, leave and die in real etcd, of which nodes are killed.

mod nodes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dta_cluster::{
    ClusterAlerts, CollectorRecord, Config, Earlier, EtcdTls, Membership, View, Views, follow_cluster,
    join_alerts, join_cluster, read, set_drained,
};
use dta_proto::control::Alert;
use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use nodes::Nodes;
use tokio::sync::watch;

/// How long a test waits for what must come before it says what came in its place.
const PATIENCE: Duration = Duration::from_secs(120);

fn collector(n: u8, generation: u64) -> CollectorRecord {
    CollectorRecord {
        address: format!("10.0.0.{n}:40050"),
        metrics: String::new(),
        device: "soft".into(),
        zone: format!("rack{n}"),
        free_memory: 64 << 30,
        copies: 2,
        lists: BTreeMap::from([("events".into(), 8)]),
        generation,
    }
}

fn enter(config: &Config, n: u8) -> Membership {
    enter_as(config, n, collector(n, 1))
}

/// Joins under the id of the `n`-th.
fn enter_as(config: &Config, n: u8, collector: CollectorRecord) -> Membership {
    join_cluster(config.clone(), format!("c{n}"), watch::channel(collector).1).unwrap()
}

/// Waits for a view.
async fn until(views: &mut Views, what: &str, is: impl Fn(&View) -> bool) -> Arc<View> {
    let wait = async {
        loop {
            let view = views.now();
            if is(&view) {
                return view;
            }
            views.next_view().await;
        }
    };
    match tokio::time::timeout(PATIENCE, wait).await {
        Ok(view) => view,
        Err(_) => panic!("{what}: {:#?}", views.now()),
    }
}

/// Waits for something else.
async fn eventually(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{what}"));
}

/// Whether everything is placed at these collectors, evenly, and at no others.
fn is_at(view: &View, ids: &[&str]) -> bool {
    let copies = 2.min(ids.len());
    let is_even = |id: &&str| {
        (0..copies).all(|copy| {
            view.placement.buckets_of_copy(copy, id).iter().count().abs_diff(256 / ids.len()) <= 1
        })
    };
    view.placement.keys.len() == copies
        && view.placement.keys.iter().all(|of_copy| of_copy.len() == ids.len())
        && ids.iter().all(is_even)
        && (0..8)
            .all(|list| view.placement.list_collector("events", list).is_some_and(|id| ids.contains(&id)))
}

async fn until_at(views: &mut Views, ids: &[&str]) -> Arc<View> {
    until(views, &format!("all at {ids:?}"), |view| is_at(view, ids)).await
}

#[tokio::test]
#[ignore = "needs etcd-server"]
async fn collectors_join_leave_are_drained_and_die() {
    let nodes = Nodes::start();
    let config = nodes.config();
    let mut views = follow_cluster(config.clone()).unwrap();
    let one = enter(&config, 1);
    let first = until_at(&mut views, &["c1"]).await;
    assert_eq!(first.collectors["c1"], collector(1, 1));

    let mut two = enter(&config, 2);
    let both = until_at(&mut views, &["c1", "c2"]).await;
    assert!(both.placement.version > first.placement.version);
    two.is_joined().await;
    let three = enter(&config, 3);
    let all = until_at(&mut views, &["c1", "c2", "c3"]).await;
    // A third of what each had, and what its second copies had to make room for.
    let moved = all.placement.moved_since(&both.placement);
    assert!((170..=200).contains(&moved), "{moved}");
    let read_once = read(&config).await.unwrap();
    assert_eq!(*all, View { earlier: all.earlier.clone(), ..read_once });

    // Leaving is seen at once: its lease is gone, not expired.
    three.leave_cluster().await;
    assert!(!read(&config).await.unwrap().collectors.contains_key("c3"));
    until_at(&mut views, &["c1", "c2"]).await;
    set_drained(&config, "c2", true).await.unwrap();
    let drained = until_at(&mut views, &["c1"]).await;
    assert!(drained.collectors.contains_key("c2") && two.lease().is_in_cluster());
    set_drained(&config, "c2", false).await.unwrap();
    until_at(&mut views, &["c1", "c2"]).await;

    // The first one planned so far. It dies without a word, and the other one takes its place.
    drop(one);
    let last = until_at(&mut views, &["c2"]).await;
    assert_eq!(last.collectors.keys().collect::<Vec<_>>(), ["c2"]);
    assert!(two.lease().is_in_cluster());
}

#[tokio::test]
#[ignore = "needs etcd-server"]
async fn only_one_plans_and_nothing_is_written_over_what_it_was_not_planned_from() {
    let nodes = Nodes::with(1, "http", |_| Vec::new());
    let config = nodes.config();
    let mut views = follow_cluster(config.clone()).unwrap();
    let mut raw = Client::connect(&config.endpoints, None).await.unwrap();
    // All at once: each of them may become the planner.
    let members: Vec<Membership> = (1..=8).map(|n| enter(&config, n)).collect();
    let ids: Vec<String> = (1..=8).map(|n| format!("c{n}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    until_at(&mut views, &ids).await;

    // Every placement there ever was followed from the one before it: no version came twice, and none was lost.
    let history = history(&mut raw, "/dta/placement").await;
    let versions: Vec<u64> = history.iter().map(|text| version(text)).collect();
    assert!(versions.len() <= 8, "{versions:?}");
    assert!(versions.windows(2).all(|pair| pair[1] == pair[0] + 1), "{versions:?}");

    // What a person or another program writes is taken as it is, and planned on from; what cannot be read is not
    // replaced.
    let last = versions[versions.len() - 1];
    let by_hand = format!(r#"{{"version":{},"keys":[{{"c1":"0-255"}}]}}"#, last + 1);
    raw.put("/dta/placement", by_hand, None).await.unwrap();
    until(&mut views, "planned on", |view| view.placement.version == last + 2 && is_at(view, &ids)).await;
    raw.put("/dta/placement", "{}", None).await.unwrap();
    drop(members);
    until(&mut views, "all dead", |view| view.collectors.is_empty()).await;
    let late = enter(&config, 9);
    until(&mut views, "another one", |view| view.collectors.len() == 1).await;
    let is_planner = async || {
        let planner = raw.clone().get("/dta/planner", None).await.unwrap();
        planner.kvs().first().is_some_and(|planner| planner.value() == b"c9")
    };
    eventually("c9 plans", is_planner).await;
    assert_eq!(views.now().placement.version, last + 2);
    let spoilt = raw.get("/dta/placement", None).await.unwrap();
    assert_eq!(spoilt.kvs()[0].value(), b"{}");
    // Deleted, it is planned anew, under a version that there never was.
    raw.delete("/dta/placement", None).await.unwrap();
    let anew = until_at(&mut views, &["c9"]).await;
    assert!(anew.placement.version > last + 2);
    drop(late);
}

/// All values that a key ever had.
async fn history(raw: &mut Client, key: &str) -> Vec<String> {
    let now = raw.get(key, None).await.unwrap();
    let now = now.kvs().first().unwrap().mod_revision();
    let options = etcd_client::WatchOptions::new().with_start_revision(1);
    let mut changes = raw.watch(key, Some(options)).await.unwrap();
    let mut all = Vec::new();
    loop {
        let message = changes.message().await.unwrap().unwrap();
        for event in message.events() {
            let key_value = event.kv().unwrap();
            all.push(key_value.value_str().unwrap().to_owned());
            if key_value.mod_revision() == now {
                return all;
            }
        }
    }
}

fn version(text: &str) -> u64 {
    serde_json::from_str::<dta_proto::placement::ClusterPlacement>(text).unwrap().version
}

#[tokio::test]
#[ignore = "needs etcd-server"]
async fn one_node_is_not_missed_and_without_a_quorum_the_last_placement_stays() {
    let mut nodes = Nodes::start();
    let config = nodes.config();
    let mut views = follow_cluster(config.clone()).unwrap();
    let members = [enter(&config, 1), enter(&config, 2)];
    until_at(&mut views, &["c1", "c2"]).await;

    nodes.kill(0);
    let three = enter(&config, 3);
    let before = until_at(&mut views, &["c1", "c2", "c3"]).await;

    // Nothing can be changed with one node of three: nobody joins, nobody dies, and all keep what they know.
    nodes.kill(1);
    eventually("no quorum", async || read(&config).await.is_err()).await;
    drop(three);
    let mut four = enter(&config, 4);
    eventually("their leases cannot be renewed", async || {
        !members.iter().any(|member| member.lease().is_in_cluster())
    })
    .await;
    assert!(!four.lease().is_in_cluster());
    assert_eq!(views.now(), before);

    nodes.start_node(0);
    four.is_joined().await;
    until_at(&mut views, &["c1", "c2", "c4"]).await;
    nodes.start_node(1);
    eventually("both are in again", async || members.iter().all(|member| member.lease().is_in_cluster()))
        .await;
    four.leave_cluster().await;
    until_at(&mut views, &["c1", "c2"]).await;
}

#[tokio::test]
#[ignore = "needs etcd-server"]
async fn a_planner_whose_id_another_one_takes_plans_no_more() {
    let nodes = Nodes::with(1, "http", |_| Vec::new());
    let config = nodes.config();
    let log = tempfile::NamedTempFile::new().unwrap();
    let writer = Arc::new(log.reopen().unwrap());
    // With a single subscriber tracing keeps what the first thread to reach a line says, and other tests' threads have none.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
    let _logged = tracing::subscriber::set_default(subscriber);
    let mut views = follow_cluster(config.clone()).unwrap();
    let mut first = enter(&config, 1);
    first.is_joined().await;
    until_at(&mut views, &["c1"]).await;
    let mut stranger = enter_as(&config, 1, collector(2, 2));
    stranger.is_joined().await;
    eventually("the first is out", async || !first.lease().is_in_cluster()).await;
    // It says whose doing that is.
    let read = || std::fs::read_to_string(log.path()).unwrap();
    let expected = "the collector at 10.0.0.2:40050 is in the cluster as \"c1\": give each an id of its own";
    eventually("the reason is logged", async || read().contains(expected)).await;
    assert!(!read().contains("taken out") && !read().contains("no etcd node"), "{}", read());
    let _second = enter(&config, 2);
    until_at(&mut views, &["c1", "c2"]).await;
}

#[tokio::test]
#[ignore = "needs etcd-server"]
async fn a_store_that_a_collector_says_it_has_later_is_placed() {
    let nodes = Nodes::with(1, "http", |_| Vec::new());
    let config = nodes.config();
    let mut views = follow_cluster(config.clone()).unwrap();
    let (says, said) = watch::channel(collector(1, 1));
    let mut first = join_cluster(config.clone(), "c1".into(), said).unwrap();
    first.is_joined().await;
    until_at(&mut views, &["c1"]).await;
    says.send_modify(|said| said.lists.extend([("more".to_owned(), 4)]));
    let lists = |view: &View| view.placement.lists.get("c1").cloned().unwrap_or_default();
    let view =
        until(&mut views, "placed", |view| lists(view).iter().any(|range| range.store == "more")).await;
    assert_eq!(lists(&view).iter().map(|range| range.count).sum::<u32>(), 12);
    // It stayed in the cluster, under the lease that it has.
    assert!(first.lease().is_in_cluster());
    assert_eq!(view.collectors["c1"].lists["more"], 4);
}

#[tokio::test]
#[ignore = "needs etcd-server"]
async fn an_id_belongs_to_one_collector_and_to_its_latest_life() {
    let nodes = Nodes::with(1, "http", |_| Vec::new());
    let config = nodes.config();
    let mut views = follow_cluster(config.clone()).unwrap();
    let mut first = enter(&config, 1);
    first.is_joined().await;
    // Another one of the same id has to wait until the first is gone.
    let mut other = enter_as(&config, 1, collector(2, 1));
    let mut raw = Client::connect(&config.endpoints, None).await.unwrap();
    let mut two = enter(&config, 2);
    two.is_joined().await;
    until_at(&mut views, &["c1", "c2"]).await;
    assert!(first.lease().is_in_cluster() && !other.lease().is_in_cluster());
    first.leave_cluster().await;
    other.is_joined().await;
    until(&mut views, "the other one", |view| view.collectors.get("c1") == Some(&collector(2, 1))).await;
    // A later life of it need not wait, and the earlier one sees that it is out.
    let mut later = enter_as(&config, 1, collector(2, 2));
    later.is_joined().await;
    eventually("the earlier life is out", async || !other.lease().is_in_cluster()).await;
    until(&mut views, "the later life", |view| view.collectors.get("c1") == Some(&collector(2, 2))).await;
    // Whose key was taken away says again that it is there.
    raw.delete("/dta/collectors/c1", None).await.unwrap();
    until(&mut views, "gone", |view| !view.collectors.contains_key("c1")).await;
    until(&mut views, "there again", |view| view.collectors.contains_key("c1")).await;
    // Clusters with other prefixes know nothing of it.
    let elsewhere = Config { prefix: "/other/".into(), ..config };
    assert_eq!(read(&elsewhere).await.unwrap(), View::default());
}

#[tokio::test]
#[ignore = "needs etcd-server"]
async fn a_later_life_learns_what_was_placed_before_and_who_has_been_there_since() {
    let nodes = Nodes::with(1, "http", |_| Vec::new());
    let config = nodes.config();
    let mut views = follow_cluster(config.clone()).unwrap();
    let _first = enter(&config, 1);
    until_at(&mut views, &["c1"]).await;
    let second = enter(&config, 2);
    until_at(&mut views, &["c1", "c2"]).await;
    let _third = enter(&config, 3);
    let three = until_at(&mut views, &["c1", "c2", "c3"]).await;
    // Those of which who has something, and whether all have been there since.
    let earlier = |view: &View| -> Vec<(Vec<String>, bool)> {
        let ids =
            |of: &Earlier| of.placement.keys.first().into_iter().flat_map(|of| of.keys().cloned()).collect();
        view.earlier.iter().map(|of| (ids(of), of.is_waited_for)).collect()
    };
    let ids = |ids: &[&str]| -> Vec<String> { ids.iter().map(|id| (*id).to_owned()).collect() };
    let mut later = enter_as(&config, 1, collector(1, 2));
    let view = until_at(&mut later.views, &["c1", "c2", "c3"]).await;
    assert_eq!(earlier(&view), [(ids(&[]), false), (ids(&["c1"]), true), (ids(&["c1", "c2"]), true)]);
    assert!(view.earlier.is_sorted_by_key(|of| of.placement.version));
    second.leave_cluster().await;
    until(&mut views, "two", |view| view.placement.version > three.placement.version).await;
    let _second = enter(&config, 2);
    until_at(&mut views, &["c1", "c2", "c3"]).await;
    // Who comes now learns what came before, and who was there knows the same.
    let mut follower = follow_cluster(config.clone()).unwrap();
    let view = until_at(&mut follower, &["c1", "c2", "c3"]).await;
    let since =
        [([].as_slice(), false), (&["c1"], true), (&["c1", "c2"], false), (&["c1", "c2", "c3"], false)];
    let since = since.into_iter().chain([(["c1", "c3"].as_slice(), true)]);
    assert_eq!(earlier(&view), since.map(|(of, is)| (ids(of), is)).collect::<Vec<_>>());
    let newest = view.placement.version;
    let known = until(&mut later.views, "the newest", |view| view.placement.version == newest).await;
    assert_eq!(earlier(&known), earlier(&view));
}

fn alert(fingerprint: &str, fired_at: u64, resolved_at: Option<u64>) -> Alert {
    Alert {
        fingerprint: fingerprint.into(),
        state: if resolved_at.is_some() { "resolved" } else { "firing" }.into(),
        fired_at: Some(fired_at),
        resolved_at,
        ..Alert::default()
    }
}

/// Fingerprints and states of what the log has, by number.
fn logged(alerts: &ClusterAlerts) -> Vec<(u64, String, String)> {
    let log = alerts.log();
    let all = log.transitions_after(0).map(|transition| {
        let alert = transition.alert.clone().unwrap();
        (transition.number, alert.fingerprint, alert.state)
    });
    all.collect()
}

#[tokio::test]
#[ignore = "needs etcd-server"]
async fn what_several_collectors_find_is_logged_once_and_the_log_goes_on_when_its_keeper_dies() {
    let nodes = Nodes::with(1, "http", |_| Vec::new());
    let config = nodes.config();
    let join = |id: &str| join_alerts(config.clone(), id.to_owned()).unwrap();
    let first = join("a");
    eventually("the first one keeps the log", async || first.is_keeper()).await;
    let second = join("b");
    first.set_found([alert("x", 1000, None)]);
    second.set_found([alert("x", 2000, None), alert("y", 3000, None)]);
    eventually("both are logged", async || logged(&second).len() == 2).await;
    eventually("the second one is in the cluster", async || second.is_in_cluster()).await;
    let begun = logged(&second);
    assert!(!second.is_keeper() && !second.note_delivered("hook", 9).await, "{begun:?}");
    eventually("it is noted", async || first.note_delivered("hook", 1).await).await;
    eventually("the note is known", async || second.log().delivered_number("hook") == Some(1)).await;

    // It dies without a word. What it found alone may be found by another one; nothing is resolved meanwhile.
    drop(first);
    eventually("another one keeps the log", async || second.is_keeper()).await;
    assert_eq!((logged(&second), second.log().delivered_number("hook")), (begun.clone(), Some(1)));
    second.set_found([alert("x", 2000, Some(10_000)), alert("y", 3000, None)]);
    eventually("x is resolved", async || logged(&second).len() == 3).await;
    let resolved = logged(&second)[2].clone();
    assert_eq!((resolved.1.as_str(), resolved.2.as_str()), ("x", "resolved"));

    // A later life of the first one finds the same as before: that is no news.
    let later = join("a");
    later.set_found([alert("y", 1500, None)]);
    eventually("it knows the log", async || logged(&later).len() == 3).await;
    second.set_found([]);
    later.set_found([alert("y", 1500, None), alert("z", 20_000, None)]);
    eventually("z is logged", async || logged(&later).len() == 4).await;
    assert_eq!(logged(&later)[3], (4, "z".to_owned(), "firing".to_owned()));
    // None of it is among what others watch.
    assert_eq!(read(&config).await.unwrap(), View::default());
}

#[tokio::test]
#[ignore = "needs etcd-server"]
async fn a_keeper_that_leaves_has_a_successor_before_its_lease_ends_and_nothing_is_resolved() {
    let nodes = Nodes::with(1, "http", |_| Vec::new());
    let config = Config { lease_seconds: 900, ..nodes.config() };
    let join = |id: &str| join_alerts(config.clone(), id.to_owned()).unwrap();
    let first = join("a");
    eventually("the first one keeps the log", async || first.is_keeper()).await;
    let second = join("b");
    first.set_found([alert("x", 1000, None)]);
    eventually("x is logged", async || logged(&second).len() == 1).await;
    // Who does not keep the log takes it from nobody.
    join("c").leave_cluster().await;
    assert!(first.is_keeper());
    first.leave_cluster().await;
    assert!(!first.is_keeper());
    eventually("the second one keeps the log", async || second.is_keeper()).await;
    second.set_found([alert("y", 2000, None)]);
    eventually("y is logged", async || logged(&second).len() == 2).await;
    assert_eq!(logged(&second)[1], (2, "y".to_owned(), "firing".to_owned()));
}

#[tokio::test]
#[ignore = "needs etcd-server"]
async fn over_tls_with_a_name_and_a_password() {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    let nodes = Nodes::with(1, "https", |folder| {
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("ca.pem"), ca.pem()).unwrap();
        let key = KeyPair::generate().unwrap();
        let leaf =
            CertificateParams::new(vec!["etcd.example".to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
        std::fs::write(path("cert.pem"), leaf.pem()).unwrap();
        std::fs::write(path("key.pem"), key.serialize_pem()).unwrap();
        let file = |flag: &str, name: &str| [flag.to_owned(), path(name).display().to_string()];
        [file("--cert-file", "cert.pem"), file("--key-file", "key.pem"), file("--trusted-ca-file", "ca.pem")]
            .into_iter()
            .flatten()
            // Passwords are to be checked in no time.
            .chain(["--client-cert-auth", "--bcrypt-cost", "4"].map(str::to_owned))
            .collect()
    });
    let path = |name: &str| nodes.folder().join(name);
    let tls = EtcdTls {
        ca: path("ca.pem"),
        cert: path("cert.pem"),
        key: path("key.pem"),
        domain: Some("etcd.example".into()),
    };
    let without = nodes.config();
    let config = Config { tls: Some(tls), ..nodes.config() };
    eventually("etcd answers over TLS", async || read(&config).await.is_ok()).await;
    let error = read(&without).await.unwrap_err().to_string();
    assert!(error.contains("etcd"), "{error}");

    // From now on only who has a name and a password.
    std::fs::write(path("credentials"), "root:s3cret:with colon\n").unwrap();
    let with_name = Config { credentials: Some(path("credentials")), ..config.clone() };
    let read_file = |name: &str| std::fs::read(path(name)).unwrap();
    let raw = TlsOptions::new()
        .ca_certificate(Certificate::from_pem(read_file("ca.pem")))
        .identity(Identity::from_pem(read_file("cert.pem"), read_file("key.pem")))
        .domain_name("etcd.example");
    let mut raw =
        Client::connect(&config.endpoints, Some(ConnectOptions::new().with_tls(raw))).await.unwrap();
    raw.user_add("root", "s3cret:with colon", None).await.unwrap();
    raw.role_add("root").await.unwrap();
    raw.user_grant_role("root", "root").await.unwrap();
    raw.auth_enable().await.unwrap();
    eventually("a name is wanted", async || read(&config).await.is_err()).await;
    let mut one = enter(&with_name, 1);
    one.is_joined().await;
    let mut views = follow_cluster(with_name.clone()).unwrap();
    until_at(&mut views, &["c1"]).await;
    std::fs::write(path("credentials"), "root:wrong\n").unwrap();
    let refused =
        async |why: &str| read(&with_name).await.is_err_and(|error| error.to_string().contains(why));
    eventually("a wrong password is refused", async || refused("authentication failed").await).await;
    std::fs::write(path("credentials"), "root\n").unwrap();
    assert!(refused("the first line must be NAME:PASSWORD").await);
}
