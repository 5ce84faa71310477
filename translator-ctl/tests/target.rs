//! What speaks to targets, with a target that holds rows without names, makes its changes one by
//! one, and fails on request in the middle of them: as a switch may.

#[allow(dead_code, reason = "nobody sends to the NIC here")]
mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::Fake;
use dta_proto::control::ReporterPosition;
use dta_proto::program::{Change, Entry, EntryKey, Fields, Program, Row};
use dta_translator::config::{Config, Translator};
use dta_translator::lease;
use dta_translator::session::{Session, SessionError};
use dta_translator::setup;
use dta_translator::switches::{After, ApplyError, Progress, Status, Target, TargetError};

/// A target in memory. Clones are the same target.
#[derive(Clone, Default)]
struct Switch(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Its tables.
    rows: BTreeMap<EntryKey, Row>,
    /// What was applied, kept beside them: what the rows do not tell.
    applied: Program,
    /// Changes that are made before the next one fails; without, none fails.
    fails_after: Option<usize>,
    /// Whether that is for good.
    refuses: bool,
    /// Whether its counters cannot be read.
    mute: bool,
    heard: Vec<(u16, u32)>,
    /// All changes ever made.
    made: Vec<Change>,
}

const FIELDS: Fields = Fields::NONE;

impl State {
    /// The entries whose rows are there as they were written, without the names that are in no row.
    fn held(&self) -> Program {
        let mut held = Program::default();
        for entry in self.applied.entries().filter(|e| self.rows.get(&e.key()) == Some(&FIELDS.row(e))) {
            let mut entry = entry.clone();
            if let Entry::Store(store) = &mut entry {
                store.spec.name = "untold".into();
            }
            held.set(entry);
        }
        held
    }

    fn make(&mut self, change: &Change) -> Result<(), TargetError> {
        if let Some(left) = &mut self.fails_after {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None if self.refuses => return Err(TargetError::Refused("the table is full".into())),
                None => return Err(TargetError::Failed("the write failed".into())),
            }
        }
        match change {
            Change::Insert { entry } | Change::Modify { to: entry, .. } => {
                self.rows.insert(entry.key(), FIELDS.row(entry));
                self.applied.set(entry.clone());
            }
            Change::Delete { entry } => {
                assert!(self.rows.remove(&entry.key()).is_some(), "{entry:?} is not there");
                self.applied.remove(&entry.key());
            }
            Change::Forget { .. } => {}
        }
        self.made.push(change.clone());
        Ok(())
    }
}

impl Switch {
    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    /// Whether its rows are those of a program.
    fn holds(&self, program: &Program) -> bool {
        let wanted: BTreeMap<EntryKey, Row> = FIELDS.rows(program).map(|row| (row.key, row)).collect();
        self.with(|state| state.rows == wanted)
    }

    fn queue_pairs(&self) -> usize {
        self.with(|state| state.rows.values().filter(|row| row.table == "queue-pair").count())
    }
}

#[tonic::async_trait]
impl Target for Switch {
    async fn held(&mut self) -> Result<Program, TargetError> {
        Ok(self.with(|state| state.held()))
    }

    async fn lacks(&mut self, want: &Program, after: After) -> Result<Vec<Change>, TargetError> {
        Ok(self.with(|state| after.changes(FIELDS, &state.held(), want)))
    }

    async fn apply(&mut self, want: &Program, after: After) -> Result<Vec<Change>, ApplyError> {
        let changes = self.lacks(want, after).await.map_err(ApplyError::nothing)?;
        for (applied, change) in changes.iter().enumerate() {
            let progress = match applied {
                0 => Progress::Nothing,
                _ => Progress::Part { applied, of: changes.len() },
            };
            self.with(|state| state.make(change)).map_err(|error| ApplyError { progress, error })?;
        }
        Ok(changes)
    }

    async fn heard_earlier(&mut self, reporters: &[(u16, u32)]) -> Result<(), TargetError> {
        self.with(|state| state.heard.extend(reporters));
        Ok(())
    }

    async fn status(&mut self) -> Result<Status, TargetError> {
        if self.with(|state| state.mute) {
            return Err(TargetError::Failed("no counters now".into()));
        }
        Ok(Status::default())
    }

    async fn flush_all(&mut self) -> Result<u64, TargetError> {
        Ok(0)
    }
}

fn config(fake: &Fake) -> Translator {
    let text = format!(
        "[translator]\nname = 't'\nsource = '127.0.0.50'\ncollector = '{}'\nlease_seconds = 3\n",
        fake.url()
    );
    Config::parse(&text, "t.toml".as_ref()).unwrap().0.translator
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn setup_that_failed_at_any_change_is_finished_by_the_next() {
    let (fake, _nic) = Fake::start();
    let config = config(&fake);
    block_on(async {
        let mut whole = Switch::default();
        let all = setup::set_up(&config, &mut whole).await.unwrap();
        let want = setup::planned(&config).await.unwrap();
        assert!(all.len() > 8 && whole.holds(&want));
        assert_eq!(setup::set_up(&config, &mut whole).await.unwrap(), []);
        for applied in 0..all.len() {
            let mut target = Switch::default();
            target.with(|state| state.fails_after = Some(applied));
            let error = setup::set_up(&config, &mut target).await.unwrap_err();
            let failed = error.downcast_ref::<ApplyError>().expect("the target's own error");
            match applied {
                0 => assert_eq!(failed.progress, Progress::Nothing),
                _ => assert_eq!(failed.progress, Progress::Part { applied, of: all.len() }),
            }
            if applied == 3 {
                let words = format!("3 of {} changes were made", all.len());
                assert!(error.to_string().starts_with(&words), "{error}");
            }
            target.with(|state| state.fails_after = None);
            // The session is the last entry. Without it, the target is told again where lists end.
            let is_told_again = |change: &Change| matches!(change, Change::Modify { from, to } if from == to);
            let mut left = setup::set_up(&config, &mut target).await.unwrap();
            left.retain(|change| !is_told_again(change));
            assert_eq!(left, all[applied..], "after {applied}");
            assert!(target.holds(&want));
            assert_eq!(setup::set_up(&config, &mut target).await.unwrap(), []);
        }
    });
}

#[test]
fn a_new_session_that_failed_at_any_change_is_finished_by_the_next() {
    let (fake, _nic) = Fake::start();
    let config = config(&fake);
    block_on(async {
        let mut before = Switch::default();
        setup::set_up(&config, &mut before).await.unwrap();
        // The session is lost, and others had theirs meanwhile.
        fake.state.lock().unwrap().generation = 7;
        let want = setup::planned(&config).await.unwrap();
        let start = || {
            let switch = Switch::default();
            let (rows, applied) = before.with(|state| (state.rows.clone(), state.applied.clone()));
            switch.with(|state| (state.rows, state.applied) = (rows, applied));
            switch
        };
        let is_of_lists = |change: &Change| matches!(change, Change::Modify { to: Entry::Lists(_), .. });
        let all = setup::set_up(&config, &mut start()).await.unwrap();
        let lists = all.iter().filter(|change| is_of_lists(change)).count();
        // Two queue pairs, the list, and the session.
        assert!(lists == 1 && all.len() == 4, "{all:?}");
        for applied in 0..all.len() {
            let mut target = start();
            target.with(|state| state.fails_after = Some(applied));
            setup::set_up(&config, &mut target).await.unwrap_err();
            target.with(|state| state.fails_after = None);
            setup::set_up(&config, &mut target).await.unwrap();
            assert!(target.holds(&want));
            assert!(target.with(|state| state.made.iter().any(is_of_lists)), "after {applied}");
            assert_eq!(setup::set_up(&config, &mut target).await.unwrap(), []);
        }
    });
}

/// Keeps a lease for a target until an error ends it. `ready` is called when it is ready.
async fn keep(
    config: &Translator,
    session: &mut Session,
    target: &mut Switch,
    ready: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<lease::Halted> {
    let (_halt, halted) = tokio::sync::watch::channel(false);
    let mut kept = lease::Kept::new(1);
    let tell = |event: lease::Event<'_>| if event.ready { ready() } else { Ok(()) };
    lease::keep(config, std::slice::from_mut(session), target, &mut kept, halted, tell).await
}

/// Keeps a lease for a target until `done`.
async fn keep_until(fake: &Fake, target: &Switch, mut done: impl FnMut() -> bool) {
    let config = config(fake);
    let mut session = Session::new(&config, 0, config.endpoint()).unwrap();
    let mut target = target.clone();
    let kept = keep(&config, &mut session, &mut target, || Ok(()));
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
    let config = config(&fake);
    block_on(async {
        let target = Switch::default();
        target.with(|state| state.fails_after = Some(4));
        // It fails at first, twice.
        keep_until(&fake, &target, || fake.state.lock().unwrap().opened.len() == 3).await;
        assert_eq!(target.with(|state| state.made.len()), 4);
        assert!(fake.state.lock().unwrap().renewed.is_empty());
        let fresh: Vec<bool> = fake.state.lock().unwrap().opened.iter().map(|o| o.fresh).collect();
        assert_eq!(fresh, [true, false, false], "new queue pairs are asked for once");

        let opened = fake.state.lock().unwrap().opened.len();
        target.with(|state| (state.fails_after, state.mute) = (None, true));
        // The lease is renewed although the target does not tell its counters.
        keep_until(&fake, &target, || !fake.state.lock().unwrap().renewed.is_empty()).await;
        assert!(target.holds(&setup::planned(&config).await.unwrap()));
        assert_eq!(fake.state.lock().unwrap().opened.len(), opened + 1);

        // A renewal brings new queue pairs, and the target fails at the second one until it is told
        // otherwise.
        let set = |generation| fake.state.lock().unwrap().generation = generation;
        set(2);
        let want = setup::planned(&config).await.unwrap();
        set(1);
        let counts = || {
            let state = fake.state.lock().unwrap();
            (state.opened.len(), state.renewed.len())
        };
        let before = counts();
        target.with(|state| state.fails_after = Some(1));
        let mut half = false;
        keep_until(&fake, &target, || {
            let now = counts();
            if now.0 == before.0 + 1 && now.1 == before.1 {
                set(2);
            } else if !half && now.1 >= before.1 + 3 {
                half = target.with(|state| state.fails_after == Some(0)) && !target.holds(&want);
                assert!(half);
                target.with(|state| state.fails_after = None);
            }
            half && target.holds(&want)
        })
        .await;
        assert_eq!(counts().0, before.0 + 1, "it was not opened again");
    });
}

#[test]
fn a_lease_ends_when_the_target_cannot_hold_the_program() {
    let (fake, _nic) = Fake::start();
    let config = config(&fake);
    block_on(async {
        let mut target = Switch::default();
        target.with(|state| (state.fails_after, state.refuses) = (Some(2), true));
        let mut session = Session::new(&config, 0, config.endpoint()).unwrap();
        let kept = keep(&config, &mut session, &mut target, || panic!("it is not ready"));
        let error = tokio::time::timeout(Duration::from_secs(60), kept).await.expect("it ends").unwrap_err();
        assert!(error.to_string().ends_with("then: the table is full"), "{error}");
    });
}

#[test]
fn a_target_whose_session_was_given_to_another_stands_down() {
    let (fake, _nic) = Fake::start();
    let config = config(&fake);
    block_on(async {
        let mut target = Switch::default();
        fake.state.lock().unwrap().reporters = vec![ReporterPosition { reporter: 7, sequence: 41 }];
        let mut session = Session::new(&config, 0, config.endpoint()).unwrap();
        let ready = || {
            fake.state.lock().unwrap().superseded = true;
            Ok(())
        };
        let seen = target.clone();
        let kept = keep(&config, &mut session, &mut target, ready);
        let error = tokio::time::timeout(Duration::from_secs(60), kept).await.expect("it ends").unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(SessionError::Superseded { .. })), "{error}");
        assert_eq!(seen.queue_pairs(), 0);
        // The rest stays, for whoever programs it next.
        assert!(seen.with(|state| state.rows.len()) > 5);
        assert_eq!(seen.with(|state| state.heard.clone()), [(7, 41)]);
    });
}
