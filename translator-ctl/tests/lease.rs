//! Sessions and leases with a switch that fails where a test says: see `common/chaos.rs`.

#[path = "common/chaos.rs"]
mod chaos;
#[allow(dead_code, reason = "nobody sends to the NIC here")]
mod common;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chaos::Chaos;
use common::Fake;
use dta_proto::control::ReporterPosition;
use dta_proto::program::{DataPlaneChange, DataPlaneEntry, Program};
use dta_switch::P4Switch;
use dta_switch::pipeline::TRANSLATOR;
use dta_switch::tables::{Item, Tables};
use dta_switch::translator::SET_LIST;
use dta_switch::{After, ApplyError, ApplyProgress, Target, TargetError, TargetStatus};
use dta_translator::config::{Config, TranslatorConfig};
use dta_translator::lease::{self, LeaseEvent};
use dta_translator::session::{LeasedSession, SessionError};
use dta_translator::setup;

/// A reachable switch, with its configuration and a place for its state file.
struct Bed {
    config: Config,
    chaos: Chaos,
    dir: tempfile::TempDir,
}

impl Bed {
    fn new(fake: &Fake) -> Bed {
        Bed::with(&[fake])
    }

    /// With several collectors.
    fn with(fakes: &[&Fake]) -> Bed {
        let dir = tempfile::tempdir().unwrap();
        let urls: Vec<String> = fakes.iter().map(|fake| fake.url()).collect();
        let macs = vec!["02:00:00:00:00:01"; fakes.len()];
        let text = format!(
            "[translator]\ncollector = {urls:?}\nlease_seconds = 3\nlisten = '10.0.0.1:40040'\nsource = '10.0.0.1'\nmac = '02:00:00:00:00:02'\n\
             [switch.t]\ntype = 'bmv2'\ncontrol = '127.0.0.1:1'\nstate = '{}'\ncollector_ports = {:?}\ncollector_macs = {macs:?}\n",
            dir.path().join("kept.json").display(),
            vec![1; fakes.len()],
        );
        let (config, _) = Config::parse(&text, "t.toml".as_ref()).unwrap();
        Bed { config, chaos: Chaos::new(&TRANSLATOR, 0), dir }
    }

    /// Another switch in the same state.
    fn fork(&self, fake: &Fake) -> Bed {
        let other = Bed::new(fake);
        std::fs::copy(self.dir.path().join("kept.json"), other.dir.path().join("kept.json")).unwrap();
        other.chaos.with(|state| *state = self.chaos.with(|state| state.clone()));
        other
    }

    fn translator(&self) -> TranslatorConfig {
        self.config.translator_of("t").unwrap()
    }

    /// The control plane of the switch, each time as another process.
    fn target(&self) -> P4Switch {
        let (_, p4) = self.config.find_switch("t").unwrap().p4_config().unwrap();
        P4Switch::new(Box::new(self.chaos.clone()), p4.translator_options("t", &self.translator()))
    }

    async fn set_up(&self) -> anyhow::Result<Vec<DataPlaneChange>> {
        setup::program_target(&self.translator(), &mut self.target()).await
    }

    async fn planned(&self) -> Program {
        setup::preview_program(&self.translator()).await.unwrap()
    }

    fn fails_after(&self, updates: Option<usize>) {
        self.chaos.with(|state| state.fails_after = updates);
    }

    fn tables(&self) -> Tables {
        self.chaos.with(|state| state.tables.clone())
    }

    fn queue_pairs(&self) -> usize {
        let is_pair = |item: &Item| matches!(item, Item::Row { table, .. } if table == "queue_pair");
        self.tables().iter().filter(|(item, _)| is_pair(item)).count()
    }
}

/// The tables of a switch that holds a program.
async fn holding(fake: &Fake, program: &Program) -> Tables {
    let bed = Bed::new(fake);
    bed.target().apply_program(program, After::Open).await.unwrap();
    bed.tables()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn setup_that_failed_at_any_update_is_finished_by_the_next() {
    let (fake, _nic) = Fake::start();
    block_on(async {
        let whole = Bed::new(&fake);
        let all = whole.set_up().await.unwrap();
        let (golden, of) = (whole.tables(), whole.chaos.with(|state| state.updates));
        assert!(all.len() > 8 && of > 20);
        assert_eq!(whole.set_up().await.unwrap(), []);
        for applied in 0..of {
            let bed = Bed::new(&fake);
            bed.fails_after(Some(applied));
            let error = bed.set_up().await.unwrap_err();
            let failed = error.downcast_ref::<ApplyError>().expect("the target's own error");
            match applied {
                0 => assert_eq!(failed.progress, ApplyProgress::Nothing),
                _ => assert_eq!(failed.progress, ApplyProgress::Part { applied, of }),
            }
            if applied == 3 {
                let words = format!("3 of {of} changes were applied");
                assert!(error.to_string().starts_with(&words), "{error}");
            }
            bed.fails_after(None);
            bed.set_up().await.unwrap();
            assert_eq!(bed.tables(), golden, "after {applied}");
            assert_eq!(bed.chaos.with(|state| state.updates), of, "no update was made twice");
            assert_eq!(bed.set_up().await.unwrap(), []);
        }
    });
}

#[test]
fn a_new_session_that_failed_at_any_update_is_finished_by_the_next() {
    let (fake, _nic) = Fake::start();
    block_on(async {
        let before = Bed::new(&fake);
        before.set_up().await.unwrap();
        // The session is lost, and others had theirs meanwhile.
        fake.state.lock().unwrap().generation = 7;
        let is_of_lists = |change: &DataPlaneChange| {
            matches!(change, DataPlaneChange::Modify { to: DataPlaneEntry::Lists(_), .. })
        };
        let whole = before.fork(&fake);
        let all = whole.set_up().await.unwrap();
        let lists = all.iter().filter(|change| is_of_lists(change)).count();
        // Two queue pairs, the list, and the session.
        assert!(lists == 1 && all.len() == 4, "{all:?}");
        let (golden, registers) = (whole.tables(), whole.chaos.with(|state| state.registers.clone()));
        // The rows of both queue pairs.
        for applied in 0..2 {
            let bed = before.fork(&fake);
            bed.chaos.with(|state| state.registers.clear());
            bed.fails_after(Some(applied));
            bed.set_up().await.unwrap_err();
            bed.fails_after(None);
            bed.set_up().await.unwrap();
            assert_eq!(bed.tables(), golden);
            // It is sent the ends of its lists again.
            let now = bed.chaos.with(|state| state.registers.clone());
            assert!(now.keys().eq(registers.keys()), "after {applied}: {now:?}");
            assert_eq!(bed.set_up().await.unwrap(), []);
        }
    });
}

/// Keeps a lease for a target until an error ends it. `ready` is called when it is ready.
async fn keep(
    bed: &Bed,
    target: &mut impl Target,
    ready: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<lease::Halted> {
    let report = |event: LeaseEvent<'_>| if event.ready { ready() } else { Ok(()) };
    keep_and_report(bed, target, report).await
}

/// As [`keep`], with every status of the lease.
async fn keep_and_report(
    bed: &Bed,
    target: &mut impl Target,
    report: impl Fn(LeaseEvent<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<lease::Halted> {
    let config = bed.translator();
    let new = |index| LeasedSession::new(&config, index, config.frame_endpoint()).unwrap();
    let mut sessions: Vec<LeasedSession> = (0..config.collector.count() as u8).map(new).collect();
    let (_halt, halted) = tokio::sync::watch::channel(false);
    let mut kept = lease::KnownLeases::new(&config);
    lease::maintain_leases(&config, &mut sessions, target, &mut kept, halted, report).await
}

/// Keeps a lease for a target until `done`.
async fn keep_until(bed: &Bed, mut done: impl FnMut() -> bool) {
    let mut target = bed.target();
    let kept = keep(bed, &mut target, || Ok(()));
    let watch = async {
        let until = Instant::now() + Duration::from_secs(60);
        while !done() {
            assert!(Instant::now() < until, "it never comes");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        result = kept => panic!("the lease ended: {result:?}"),
        () = watch => {}
    }
}

#[test]
fn a_lease_asks_a_target_that_failed_again_and_goes_on() {
    let (fake, _nic) = Fake::start();
    block_on(async {
        let bed = Bed::new(&fake);
        bed.fails_after(Some(4));
        // It fails at first, twice.
        keep_until(&bed, || fake.state.lock().unwrap().opened.len() == 3).await;
        assert_eq!(bed.chaos.with(|state| state.updates), 4);
        assert!(fake.state.lock().unwrap().renewed.is_empty());
        let fresh: Vec<bool> = fake.state.lock().unwrap().opened.iter().map(|o| o.fresh).collect();
        assert_eq!(fresh, [true, false, false], "new queue pairs are asked for once");

        let opened = fake.state.lock().unwrap().opened.len();
        bed.chaos.with(|state| (state.fails_after, state.mute) = (None, true));
        // The lease is renewed although the target does not show its counters.
        keep_until(&bed, || !fake.state.lock().unwrap().renewed.is_empty()).await;
        assert_eq!(bed.tables(), holding(&fake, &bed.planned().await).await);
        assert_eq!(fake.state.lock().unwrap().opened.len(), opened + 1);

        // A renewal brings new queue pairs, and the target fails at the second one until the test lets it.
        let set = |generation| fake.state.lock().unwrap().generation = generation;
        set(2);
        let want = holding(&fake, &bed.planned().await).await;
        set(1);
        let counts = || {
            let state = fake.state.lock().unwrap();
            (state.opened.len(), state.renewed.len())
        };
        let before = counts();
        bed.fails_after(Some(1));
        // Renewals before the new queue pairs.
        let mut earlier = None;
        let mut half = false;
        keep_until(&bed, || {
            let now = counts();
            if earlier.is_none() && now.0 == before.0 + 1 {
                earlier = Some(now.1);
                set(2);
            } else if !half && earlier.is_some_and(|earlier| now.1 >= earlier + 3) {
                half = bed.chaos.with(|state| state.fails_after == Some(0)) && bed.tables() != want;
                assert!(half);
                bed.fails_after(None);
            }
            half && bed.tables() == want
        })
        .await;
        assert_eq!(counts().0, before.0 + 1, "it was not opened again");
    });
}

#[test]
fn a_renewed_grant_says_where_lists_were_when_the_session_was_opened() {
    let (fake, _nic) = Fake::start();
    block_on(async {
        let bed = Bed::new(&fake);
        let config = bed.translator();
        let mut session = LeasedSession::new(&config, 0, config.frame_endpoint()).unwrap();
        let opened = session.open(30, false).await.unwrap();
        assert_eq!(opened.grant.lists[0].positions, [(1, 5)]);
        for _ in 0..2 {
            let renewed = session.renew_lease(Vec::new(), "", 0).await.unwrap();
            assert_eq!(renewed.lists, opened.grant.lists);
            session = session.with_config(&config).unwrap();
        }
    });
}

#[test]
fn sessions_of_a_switch_that_restarted_are_opened_again() {
    let ((fake, _nic), (other, _other_nic)) = (Fake::start(), Fake::start_beyond(10));
    // What flushes it may have loaded its program.
    for is_loaded in [false, true] {
        opens_again(&[&fake], is_loaded);
        opens_again(&[&fake, &other], is_loaded);
    }
}

fn opens_again(fakes: &[&Fake], is_loaded: bool) {
    for fake in fakes {
        let mut state = fake.state.lock().unwrap();
        (state.opened, state.renewed) = Default::default();
    }
    let bed = Bed::with(fakes);
    let mut restarted = false;
    let was_renewed = |fake: &&Fake| !fake.state.lock().unwrap().renewed.is_empty();
    let done = || {
        if !restarted && fakes.iter().all(was_renewed) {
            restarted = true;
            bed.chaos.with(|state| state.restart(is_loaded));
        }
        restarted && bed.queue_pairs() == 2 * fakes.len()
    };
    block_on(keep_until(&bed, done));
    for fake in fakes {
        let fresh: Vec<bool> = fake.state.lock().unwrap().opened.iter().map(|open| open.fresh).collect();
        assert_eq!(fresh, [true, true], "it has new queue pairs");
    }
    // Lists go on where the collector has them.
    let set = bed.chaos.with(|state| state.registers.get(&(SET_LIST, 0, 2, 1)).copied());
    assert_eq!(set, Some(5));
}

#[test]
fn a_switch_confirms_a_region_with_the_renewal_after_it_was_programmed() {
    let (fake, _nic) = Fake::start();
    block_on(async {
        let bed = Bed::new(&fake);
        let renewed = || fake.state.lock().unwrap().renewed.len();
        let mut before = None;
        keep_until(&bed, || match before {
            None if renewed() > 0 => {
                let mut state = fake.state.lock().unwrap();
                (state.moved, before) = (1, Some(state.renewed.len()));
                false
            }
            None => false,
            Some(before) => renewed() >= before + 3,
        })
        .await;
        let renewed: Vec<u64> =
            fake.state.lock().unwrap().renewed[before.unwrap()..].iter().map(|r| r.generation).collect();
        // The first one brings the region.
        assert_eq!(renewed[..3], [1, 2, 2]);
        assert_eq!(bed.tables(), holding(&fake, &bed.planned().await).await);
    });
}

#[test]
fn a_lease_ends_when_the_target_cannot_hold_the_program() {
    let (fake, _nic) = Fake::start();
    block_on(async {
        let bed = Bed::new(&fake);
        bed.chaos.with(|state| (state.fails_after, state.refuses) = (Some(2), true));
        let mut target = bed.target();
        let kept = keep(&bed, &mut target, || panic!("it is not ready"));
        let error = tokio::time::timeout(Duration::from_secs(60), kept).await.expect("it ends").unwrap_err();
        assert!(error.to_string().ends_with("then: the table is full"), "{error}");
    });
}

/// A switch that records which reporters it is sent: P4 switches track theirs themselves.
struct Heard(P4Switch, Arc<Mutex<Vec<(u16, u32)>>>);

#[tonic::async_trait]
impl Target for Heard {
    async fn held_program(&mut self) -> Result<Program, TargetError> {
        self.0.held_program().await
    }

    async fn required_changes(
        &mut self,
        want: &Program,
        after: After,
    ) -> Result<Vec<DataPlaneChange>, TargetError> {
        self.0.required_changes(want, after).await
    }

    async fn apply_program(
        &mut self,
        want: &Program,
        after: After,
    ) -> Result<Vec<DataPlaneChange>, ApplyError> {
        self.0.apply_program(want, after).await
    }

    async fn heard_earlier(&mut self, reporters: &[(u16, u32)]) -> Result<(), TargetError> {
        self.1.lock().unwrap().extend(reporters);
        Ok(())
    }

    async fn read_status(&mut self) -> Result<TargetStatus, TargetError> {
        self.0.read_status().await
    }

    async fn flush_all(&mut self) -> Result<u64, TargetError> {
        self.0.flush_all().await
    }

    fn looks_after_itself(&self) -> bool {
        self.0.looks_after_itself()
    }
}

#[test]
fn a_target_whose_session_was_given_to_another_stands_down() {
    let (fake, _nic) = Fake::start();
    block_on(async {
        let (bed, heard) = (Bed::new(&fake), Arc::default());
        let mut target = Heard(bed.target(), Arc::clone(&heard));
        fake.state.lock().unwrap().reporters = vec![ReporterPosition { reporter: 7, sequence: 41 }];
        let ready = || {
            fake.state.lock().unwrap().superseded = true;
            Ok(())
        };
        let kept = keep(&bed, &mut target, ready);
        let error = tokio::time::timeout(Duration::from_secs(60), kept).await.expect("it ends").unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(SessionError::Superseded(_))), "{error}");
        assert_eq!(bed.queue_pairs(), 0);
        // The rest stays for whoever programs it next.
        assert!(bed.tables().len() > 5);
        assert_eq!(*heard.lock().unwrap(), [(7, 41)]);
    });
}

#[test]
fn a_refusal_is_reported_once_the_dead_queue_pairs_are_gone() {
    let (fake, _nic) = Fake::start();
    block_on(async {
        let bed = Bed::new(&fake);
        let mut target = bed.target();
        let refusal = "another session has the lists";
        let report = |event: LeaseEvent<'_>| {
            if event.ready {
                assert_eq!(bed.queue_pairs(), 2);
                let mut state = fake.state.lock().unwrap();
                (state.gone, state.refuse) = (true, Some(refusal.into()));
            }
            match event.waits_for {
                Some((_, why)) if why.contains(refusal) => {
                    anyhow::bail!("refused with {} queue pairs", bed.queue_pairs())
                }
                _ => Ok(()),
            }
        };
        let kept = keep_and_report(&bed, &mut target, report);
        let error = tokio::time::timeout(Duration::from_secs(60), kept).await.expect("it ends").unwrap_err();
        assert_eq!(error.to_string(), "refused with 0 queue pairs");
    });
}
