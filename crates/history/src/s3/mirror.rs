//! The copy of a table in object storage.
//!
//! It has a log of its own, not a copy of the table's: each commit is the difference between what the table has now and what the copy
//! has. So nothing is uploaded that the table has removed meanwhile, and each version of the copy names only files that exist, however
//! far behind it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use dta_files::moment::now;
use object_store::ObjectMeta;
use serde_json::json;

use super::{S3Error, StorageBucket};
use crate::EpochTable;
use crate::epoch::KeptEpoch;
use crate::flush::FILE;
use crate::log::action::{LogAction, PROTOCOL, commit_text};
use crate::log::replay::{LogState, LoggedFile};
use crate::log::{FOLDER, checkpoint, commit_name, version_of};
use crate::retention::remove_action;
use crate::vacuum::GRACE;

/// Most new files in one commit.
const FILES: usize = 16;
/// How long a file that no commit names is kept (milliseconds): somebody else may be about to commit it.
const UNNAMED: u64 = 24 * 60 * 60 * 1000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorProgress {
    /// Epochs newly in the copy.
    pub epochs: u64,
    /// Epochs that the table lost before the copy had them.
    pub missed: u64,
    /// Bytes of data files uploaded.
    pub bytes: u64,
    pub commits: u64,
    /// Data files removed from object storage.
    pub removed: u64,
}

/// The copy of a table, in a folder of the same name.
pub struct Mirror {
    bucket: Arc<StorageBucket>,
    name: String,
    remote: Option<Remote>,
    /// The table's next version when the copy last had all of it.
    like: Option<u64>,
    /// Epochs that the table had and the copy lacks.
    waiting: BTreeMap<u64, Arc<KeptEpoch>>,
    /// Files that the table names but that cannot be read.
    unreadable: BTreeSet<String>,
}

struct Remote {
    state: LogState,
    /// Its data files, whether or not the log names them.
    present: BTreeSet<String>,
}

impl Mirror {
    /// The copy of a table whose folder has this name. It is first read when it is needed.
    pub fn new(bucket: Arc<StorageBucket>, name: &str) -> Mirror {
        Mirror {
            bucket,
            name: name.to_owned(),
            remote: None,
            like: None,
            waiting: BTreeMap::new(),
            unreadable: BTreeSet::new(),
        }
    }

    /// How many epochs the copy still lacks.
    pub fn waiting_epoch_count(&self) -> usize {
        self.waiting.len()
    }

    /// Updates what is waiting and what was lost before it was copied, without reading the copy.
    pub fn update_waiting(&mut self, table: &EpochTable, done: &mut MirrorProgress) -> Result<(), S3Error> {
        let state = table.refreshed()?;
        self.record_waiting(&state, done);
        Ok(())
    }

    /// Brings the copy up to date with the table. Progress is added to `done` even if the call then fails; the next call continues
    /// from there.
    ///
    /// # Errors
    /// Object storage or the table cannot be read or written; what is there is not a copy of this table.
    pub fn mirror_table(&mut self, table: &EpochTable, done: &mut MirrorProgress) -> Result<(), S3Error> {
        let next = table.refreshed()?.next;
        if self.remote.is_none() || self.like != Some(next) {
            let followed = self.catch_up_remote(table, done);
            if let Err(S3Error::Foreign { .. }) = followed {
                // Read it again next time: somebody may have put it right.
                self.remote = None;
            }
            followed?;
        }
        self.vacuum_files(done)
    }

    fn catch_up_remote(&mut self, table: &EpochTable, done: &mut MirrorProgress) -> Result<(), S3Error> {
        loop {
            let state = table.refreshed()?.clone();
            self.record_waiting(&state, done);
            if self.remote.is_none() {
                let remote = self.open(&state)?;
                // Copied by an earlier run.
                self.waiting.retain(|number, _| !remote.state.epochs.contains_key(number));
                self.remote = Some(remote);
                self.record_waiting(&state, done);
            }
            let remote = self.remote.as_ref().expect("it is open");
            let Some(step) = next_step(&state, &remote.state, &self.unreadable) else {
                self.like = Some(state.next);
                return Ok(());
            };
            if self.upload_all(table, &step.adds, done)? {
                self.commit_step(&step, done)?;
            }
            self.record_waiting(&state, done);
        }
    }

    fn remote_mut(&mut self) -> &mut Remote {
        self.remote.as_mut().expect("it is open")
    }

    /// Records which epochs are waiting, which are now in the copy, and which were lost first.
    fn record_waiting(&mut self, table: &LogState, done: &mut MirrorProgress) {
        let copied = self.remote.as_ref().map(|remote| &remote.state.epochs);
        // Epochs that no commit names yet come with the next one.
        for (number, (kept, _)) in table.epochs.iter().filter(|(number, _)| !table.unchanged.contains(number))
        {
            if copied.is_none_or(|epochs| !epochs.contains_key(number)) {
                self.waiting.entry(*number).or_insert_with(|| kept.clone());
            }
        }
        // Which of them are in the copy is unknown so far.
        let Some(copied) = copied else { return };
        let before = self.waiting.len();
        self.waiting.retain(|number, _| !copied.contains_key(number));
        done.epochs += (before - self.waiting.len()) as u64;
        if !table.damage.is_empty() {
            return;
        }
        // An epoch merged into a longer one arrives with that one.
        let is_part = |kept: &KeptEpoch| {
            table.epochs.values().chain(copied.values()).any(|(by, _)| by.epoch.covers_epoch(&kept.epoch))
        };
        self.waiting.retain(|number, kept| {
            let is_there = table.epochs.contains_key(number);
            done.missed += u64::from(!is_there && !is_part(kept));
            is_there
        });
    }

    /// Reads the copy from object storage; creates it if there is none.
    fn open(&self, table: &LogState) -> Result<Remote, S3Error> {
        let mut state = self.read()?;
        let unknown =
            || self.foreign_error("the table's own log is damaged, and does not say which table it is");
        let meta = table.meta.as_ref().ok_or_else(unknown)?;
        if state.next == 0 {
            let info = LogAction::commit_info("CREATE TABLE", json!({}), now());
            self.try_commit(
                &mut state,
                &[info, LogAction::Protocol(PROTOCOL), LogAction::MetaData(meta.clone())],
            )?;
        }
        if state.meta.as_ref().map(|meta| &meta.id) != Some(&meta.id) {
            return Err(self.foreign_error(
                "it belongs to another table; give each collector its own url or, if the table was recreated, move the old copy away",
            ));
        }
        let (mut present, mut gone) = (BTreeSet::new(), Vec::new());
        for object in self.bucket.list_folder(&self.bucket.object_path(&[&self.name]))? {
            let Some(name) = object.location.filename().filter(|name| name.starts_with(FILE)) else {
                continue;
            };
            let is_named = [&state.files, &table.files].iter().any(|files| files.contains_key(name))
                || state.removed.contains_key(name);
            if is_named || object_age(&object) < UNNAMED {
                present.insert(name.to_owned());
            } else {
                gone.push(object.location);
            }
        }
        self.bucket.delete_objects(gone)?;
        Ok(Remote { state, present })
    }

    fn read(&self) -> Result<LogState, S3Error> {
        let mut state = LogState::default();
        if let Some(version) = self.get(checkpoint::LAST)?.and_then(|text| checkpoint::said_last(&text)) {
            let name = checkpoint::checkpoint_name(version);
            let bytes = self.get(&name)?.ok_or_else(|| self.foreign_error(&format!("{name} is missing")))?;
            let actions = checkpoint::read_from(bytes);
            let actions =
                actions.map_err(|error| self.foreign_error(&format!("{name} is damaged: {error}")))?;
            state.read_checkpoint(actions, version, Path::new(&name));
        }
        self.read_new_commits(&mut state)?;
        Ok(state)
    }

    /// Reads the commits added since.
    fn read_new_commits(&self, state: &mut LogState) -> Result<(), S3Error> {
        loop {
            let name = commit_name(state.next);
            let Some(text) = self.get(&name)? else { return Ok(()) };
            state.read_commit(&text, Path::new(&name));
            if let Some(damage) = state.damage.first() {
                return Err(self.foreign_error(damage));
            }
        }
    }

    fn get(&self, name: &str) -> Result<Option<Bytes>, S3Error> {
        self.bucket.get(&self.bucket.object_path(&[&self.name, FOLDER, name]))
    }

    fn foreign_error(&self, problem: &str) -> S3Error {
        S3Error::Foreign {
            url: format!("{}/{}", self.bucket.bucket_url(), self.name),
            problem: problem.to_owned(),
        }
    }

    /// Uploads data files. `false`: the table has dropped one meanwhile.
    fn upload_all(
        &mut self,
        table: &EpochTable,
        files: &[Arc<LoggedFile>],
        done: &mut MirrorProgress,
    ) -> Result<bool, S3Error> {
        for entry in files {
            let (name, len) = (&entry.add.path, entry.add.size);
            if self.remote_mut().present.contains(name) {
                continue;
            }
            let path = table.table_path().join(name);
            let to = self.bucket.object_path(&[&self.name, name]);
            let file = File::open(&path).map_err(|error| S3Error::file_error(&path, error));
            let put = file.and_then(|file| self.bucket.upload_file(&to, &path, &file, len));
            match put {
                Ok(()) => {
                    self.remote_mut().present.insert(name.clone());
                    done.bytes += len;
                }
                Err(S3Error::File { .. }) if !table.refreshed()?.files.contains_key(name) => {
                    return Ok(false);
                }
                Err(error @ S3Error::File { .. }) => {
                    // It must not hold up the others.
                    self.unreadable.insert(name.clone());
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Commits a step. If somebody else has committed meanwhile, reads that instead. If the answer is lost, the next call finds the
    /// commit there.
    fn commit_step(&mut self, step: &MirrorStep, done: &mut MirrorProgress) -> Result<(), S3Error> {
        let mut remote = self.remote.take().expect("it is open");
        let committed = self.try_commit(&mut remote.state, &step.to_actions());
        if let Ok(true) = committed {
            done.commits += 1;
            if remote.state.next.is_multiple_of(checkpoint::EVERY) {
                // Readers manage without it, and the next checkpoint covers what this one would have.
                let _ = self.checkpoint(&remote.state);
            }
        }
        self.remote = Some(remote);
        committed.map(|_| ())
    }

    /// Commits these actions as the next version. `false`: that version exists; the log was read further instead.
    fn try_commit(&self, state: &mut LogState, actions: &[LogAction]) -> Result<bool, S3Error> {
        let (name, text) = (commit_name(state.next), Bytes::from(commit_text(actions)));
        let is_taken = self
            .bucket
            .put_if_absent(&self.bucket.object_path(&[&self.name, FOLDER, &name]), text.clone())?;
        if is_taken {
            state.read_commit(&text, Path::new(&name));
        } else {
            self.read_new_commits(state)?;
        }
        Ok(is_taken)
    }

    /// Writes a checkpoint, and removes commits and checkpoints before it that are a day old.
    fn checkpoint(&self, state: &LogState) -> Result<(), S3Error> {
        let (version, log) = (state.next - 1, [&self.name, FOLDER]);
        let path = |name: &str| self.bucket.object_path(&[log[0], log[1], name]);
        let made = checkpoint::encode_checkpoint(state, version, now());
        let (bytes, last) = made.map_err(|error| self.foreign_error(&error.to_string()))?;
        self.bucket.put_object(&path(&checkpoint::checkpoint_name(version)), bytes.into())?;
        self.bucket.put_object(&path(checkpoint::LAST), last.into())?;
        let is_old = |object: &ObjectMeta| {
            let of = object.location.filename();
            let of = of.and_then(|name| version_of(name).or_else(|| checkpoint::version_of_checkpoint(name)));
            of.is_some_and(|of| of < version) && object_age(object) > checkpoint::STAY.as_millis() as u64
        };
        let objects = self.bucket.list_folder(&self.bucket.object_path(&log))?;
        self.bucket.delete_objects(objects.into_iter().filter(is_old).map(|object| object.location).collect())
    }

    /// Deletes data files that a commit removed at least ten minutes ago.
    fn vacuum_files(&mut self, done: &mut MirrorProgress) -> Result<(), S3Error> {
        let old = |at: &u64| at.saturating_add(GRACE) <= now();
        let removed = &self.remote_mut().state.removed;
        let removed: Vec<String> =
            removed.iter().filter(|(_, at)| old(at)).map(|(name, _)| name.clone()).collect();
        let (here, gone): (Vec<_>, Vec<_>) =
            removed.into_iter().partition(|name| self.remote_mut().present.contains(name));
        if !here.is_empty() {
            let paths = here.iter().map(|name| self.bucket.object_path(&[&self.name, name]));
            self.bucket.delete_objects(paths.collect())?;
            done.removed += here.len() as u64;
        }
        let remote = self.remote_mut();
        for name in here.iter().chain(&gone) {
            remote.state.removed.remove(name);
            remote.present.remove(name);
        }
        Ok(())
    }
}

struct MirrorStep {
    adds: Vec<Arc<LoggedFile>>,
    /// Those of `adds` that the copy already has, with fewer epochs.
    known: BTreeSet<String>,
    removes: Vec<Arc<LoggedFile>>,
}

/// The next step towards the table; `None` if the copy has everything.
///
/// Files whose epochs are newer than everything to be removed come first, a few at a time. The rest goes into one commit with the
/// removals, so that no version has an epoch twice or lacks one that the version before had.
fn next_step(table: &LogState, copy: &LogState, unreadable: &BTreeSet<String>) -> Option<MirrorStep> {
    // If the log is damaged, what else the table has is unknown.
    let goes = |name: &String| {
        !table.files.contains_key(name) && (table.damage.is_empty() || table.removed.contains_key(name))
    };
    let removes = copy.files.iter().filter(|(name, _)| goes(name));
    let removes: Vec<Arc<LoggedFile>> = removes.map(|(_, entry)| entry.clone()).collect();
    // A file that the copy has may have taken in more epochs.
    let comes = |(name, entry): &(&String, &Arc<LoggedFile>)| {
        let is_known = copy.files.get(*name).is_some_and(|copied| copied.add.tags == entry.add.tags);
        !is_known && !unreadable.contains(*name)
    };
    let adds = table.files.iter().filter(comes);
    let mut adds: Vec<Arc<LoggedFile>> = adds.map(|(_, entry)| entry.clone()).collect();
    adds.sort_by_key(|entry| opening_moments(entry).min());
    let last = removes.iter().flat_map(|entry| opening_moments(entry)).max();
    let is_newer = |entry: &&Arc<LoggedFile>| opening_moments(entry).all(|opened| Some(opened) > last);
    let newer: Vec<Arc<LoggedFile>> = adds.iter().filter(is_newer).take(FILES).cloned().collect();
    let names = adds.iter().map(|entry| entry.add.path.clone());
    let known = names.filter(|name| copy.files.contains_key(name)).collect();
    if !newer.is_empty() {
        return Some(MirrorStep { adds: newer, known, removes: Vec::new() });
    }
    (!adds.is_empty() || !removes.is_empty()).then_some(MirrorStep { adds, known, removes })
}

fn opening_moments(entry: &LoggedFile) -> impl Iterator<Item = u64> {
    entry.epochs.iter().map(|kept| kept.epoch.opened)
}

impl MirrorStep {
    fn to_actions(&self) -> Vec<LogAction> {
        let now = now();
        let epochs = |entries: &[Arc<LoggedFile>]| {
            let epochs = entries.iter().flat_map(|entry| &entry.epochs);
            epochs.map(|kept| (kept.epoch.number, kept.clone())).collect::<BTreeMap<u64, Arc<KeptEpoch>>>()
        };
        // The same rows in other files are not a change of data.
        let is_data = epochs(&self.adds) != epochs(&self.removes);
        let operation = match (self.adds.is_empty(), self.removes.is_empty()) {
            (_, true) => "WRITE",
            (true, false) => "DELETE",
            (false, false) if is_data => "MERGE",
            (false, false) => "OPTIMIZE",
        };
        let info = LogAction::commit_info(operation, json!({ "files": self.adds.len().to_string() }), now);
        let removes = self.removes.iter().map(|entry| LogAction::Remove(remove_action(entry, is_data, now)));
        let adds = self.adds.iter().map(|entry| {
            let mut add = entry.add.clone();
            add.data_change = is_data && !self.known.contains(&add.path);
            LogAction::Add(add)
        });
        std::iter::once(info).chain(removes).chain(adds).collect()
    }
}

/// The age of an object in milliseconds.
fn object_age(object: &ObjectMeta) -> u64 {
    now().saturating_sub(object.last_modified.timestamp_millis().max(0).cast_unsigned())
}
