//! Configuration files: TOML, with line and key of any error.
//!
//! Keys are written as in messages (`store.redundancy`), except that arrays of tables have indices
//! (`store[1].redundancy`); [`strip_indices`] removes the indices.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::{fmt, io};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use crate::file;

/// In place of a file name: read no file, not even a default one.
pub const NONE: &str = "none";

/// The file to read: the one `asked` for, or else the first that exists of `$XDG_CONFIG_HOME/dta/NAME`
/// (`~/.config/dta/NAME`) and `/etc/dta/NAME`. `None` = the defaults.
pub fn find_config_file(asked: Option<&Path>, name: &str) -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let user = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
    choose_config_file(asked, name, &[user.as_deref(), Some(Path::new("/etc"))])
}

fn choose_config_file(asked: Option<&Path>, name: &str, folders: &[Option<&Path>]) -> Option<PathBuf> {
    match asked {
        Some(path) => (path != Path::new(NONE)).then(|| path.to_owned()),
        None => folders
            .iter()
            .flatten()
            .map(|folder| folder.join("dta").join(name))
            // A file that cannot be examined counts as existing: reading it gives the error.
            .find(|path| path.try_exists().unwrap_or(true)),
    }
}

/// Positions of a file's keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPositions {
    path: PathBuf,
    lines: BTreeMap<String, usize>,
    forgotten: Vec<String>,
}

/// Whether a key equals this one or is below it.
fn is_at_or_below(key: &str, this: &str) -> bool {
    key.strip_prefix(this).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

impl KeyPositions {
    /// The line, from 1, of a key or, if it is not in the file, of the table it belongs to. `None` if neither
    /// is, or if the key was forgotten.
    pub fn line_of_key(&self, key: &str) -> Option<usize> {
        if self.forgotten.iter().any(|forgotten| is_at_or_below(key, forgotten)) {
            return None;
        }
        let mut key = key;
        loop {
            if let Some(line) = self.lines.get(key) {
                return Some(*line);
            }
            key = &key[..key.rfind(['.', '['])?];
        }
    }

    pub fn file_path(&self) -> &Path {
        &self.path
    }

    /// The error with the file and the line of its key, if that or its table is in the file.
    pub fn locate_error(&self, error: ConfigError) -> ConfigError {
        let place = self.line_of_key(&error.key).map(|line| (self.path.clone(), line));
        ConfigError { place, ..error }
    }

    /// An error about a value that parses but cannot be used, in the parser's form.
    pub fn value_error(&self, key: &str, message: String) -> FileError {
        let wrong = Wrong { line: self.line_of_key(key), key: Some(key.to_owned()), message };
        FileError::Parse { path: self.path.clone(), wrong }
    }

    /// Applies a flag, if given: its value replaces that of the key.
    pub fn apply_flag<T: Clone>(&mut self, key: &str, field: &mut T, flag: &Option<T>) {
        if let Some(flag) = flag {
            field.clone_from(flag);
            self.forget_key(key);
        }
    }

    /// Forgets a key because something else, such as a flag, has replaced its value.
    pub fn forget_key(&mut self, key: &str) {
        self.lines.retain(|other, _| !is_at_or_below(other, key));
        self.forgotten.push(key.to_owned());
    }
}

/// The keys whose values differ between two configurations.
pub fn changed_keys(old: &impl Serialize, new: &impl Serialize) -> Vec<String> {
    // Flags may have numbers that TOML cannot hold.
    let (old, new) = (serde_json::to_value(old), serde_json::to_value(new));
    let mut keys = Vec::new();
    if let (Ok(Json::Object(old)), Ok(Json::Object(new))) = (&old, &new) {
        compare_tables(old, new, "", &mut keys);
    }
    keys
}

fn compare_tables(old: &Map<String, Json>, new: &Map<String, Json>, under: &str, keys: &mut Vec<String>) {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for name in names {
        let path = if under.is_empty() { name.clone() } else { format!("{under}.{name}") };
        match (old.get(name), new.get(name)) {
            (Some(Json::Object(old)), Some(Json::Object(new))) => compare_tables(old, new, &path, keys),
            (old, new) if old != new => keys.push(path),
            _ => {}
        }
    }
}

/// At most this many keys are left out, one at a time, to find the one that a message without a value is about.
const MOST_TRIED: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The line, from 1, if it is known.
    pub line: Option<usize>,
    /// The key, if it is known.
    pub key: Option<String>,
    pub message: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}, ")?;
        }
        if let Some(key) = &self.key {
            write!(f, "key `{}`: ", strip_indices(key))?;
        }
        // Some of the parser's messages have several lines.
        f.write_str(&self.message.trim().replace('\n', ", "))
    }
}

impl std::error::Error for Wrong {}

/// Why a file is not a configuration.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read {what} {}: {source}", path.display())]
    Read {
        /// Its contents, as in "the configuration".
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Its text is not TOML, or has a key that is unknown, missing or of the wrong type.
    #[error("{}, {wrong}", path.display())]
    Parse { path: PathBuf, wrong: Wrong },
}

/// Why a configuration cannot be used: the key at fault, its place in the file, and what to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    key: String,
    reason: String,
    /// The file, and the line, from 1; `None` if no file is to blame, such as for a flag.
    place: Option<(PathBuf, usize)>,
}

impl ConfigError {
    /// An error for which `key` is to blame, with indices of arrays of tables; empty if no key is. `reason` says what
    /// to change.
    pub fn new(key: impl Into<String>, reason: impl Into<String>) -> ConfigError {
        ConfigError { key: key.into(), reason: reason.into(), place: None }
    }

    /// An error about a value that cannot be used: the value as shown, and what it must be.
    pub fn invalid_value(
        key: impl Into<String>,
        value: impl fmt::Display,
        must: impl fmt::Display,
    ) -> ConfigError {
        let key = key.into();
        let reason = format!("{} is {value}, but must be {must}", strip_indices(&key));
        ConfigError::new(key, reason)
    }

    /// The same for a value in quotation marks.
    pub fn invalid_quoted(
        key: impl Into<String>,
        value: impl fmt::Display,
        must: impl fmt::Display,
    ) -> ConfigError {
        ConfigError::invalid_value(key, format_args!("{:?}", value.to_string()), must)
    }

    pub fn check_range(
        key: impl Into<String>,
        value: impl Into<u64>,
        range: RangeInclusive<u64>,
    ) -> Result<(), ConfigError> {
        let value = value.into();
        match range.contains(&value) {
            true => Ok(()),
            false => Err(ConfigError::invalid_value(
                key,
                value,
                format_args!("{} to {}", range.start(), range.end()),
            )),
        }
    }

    /// Checks that the numbers of a table are in their ranges.
    pub fn check_numbers(
        table: &str,
        numbers: impl IntoIterator<Item = (&'static str, u64, RangeInclusive<u64>)>,
    ) -> Result<(), ConfigError> {
        let check = |(key, value, range)| ConfigError::check_range(format!("{table}.{key}"), value, range);
        numbers.into_iter().try_for_each(check)
    }

    pub fn config_key(&self) -> &str {
        &self.key
    }

    #[must_use]
    pub fn with_key(self, key: String) -> ConfigError {
        ConfigError { key, ..self }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((path, line)) = &self.place {
            write!(f, "{}, line {line}: ", path.display())?;
        }
        f.write_str(&self.reason)
    }
}

impl std::error::Error for ConfigError {}

impl From<FileError> for ConfigError {
    fn from(error: FileError) -> ConfigError {
        ConfigError::new("", error.to_string())
    }
}

/// A key without the indices of tables.
pub fn strip_indices(key: &str) -> String {
    let mut plain = String::new();
    let mut numbers = false;
    for c in key.chars() {
        match c {
            '[' => numbers = true,
            ']' => numbers = false,
            _ if !numbers => plain.push(c),
            _ => {}
        }
    }
    plain
}

/// The text of a file with `what` ("the configuration").
pub fn read(path: &Path, what: &'static str) -> Result<String, FileError> {
    file::read_text(path).map_err(|source| FileError::Read { what, path: path.to_owned(), source })
}

/// Parses a text that came from `path`. Returns its contents and the positions of its keys.
pub fn parse_config<T: DeserializeOwned>(text: &str, path: &Path) -> Result<(T, KeyPositions), FileError> {
    parse_text(text, path).map_err(|wrong| FileError::Parse { path: path.to_owned(), wrong })
}

fn parse_text<T: DeserializeOwned>(text: &str, path: &Path) -> Result<(T, KeyPositions), Wrong> {
    let lines = LineEnds::from_text(text);
    let document = DeTable::parse(text).map_err(|error| Wrong {
        line: error
            .span()
            .map(|span| lines.line_at(span.start))
            .or_else(|| lines.first_failing_line(text, error.message())),
        key: None,
        message: error.message().to_owned(),
    })?;
    let mut spots = Vec::new();
    collect_table_spots(&lines, document.get_ref(), "", &mut spots);
    match toml::from_str::<T>(text) {
        Ok(read) => {
            let lines = spots.into_iter().map(|spot| (spot.path, spot.line)).collect();
            Ok((read, KeyPositions { path: path.to_owned(), lines, forgotten: Vec::new() }))
        }
        Err(error) => Err(explain_parse_error::<T>(text, &lines, &spots, &error)),
    }
}

struct LineEnds(Vec<usize>);

impl LineEnds {
    fn from_text(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    /// The line, from 1, of a byte offset.
    fn line_at(&self, at: usize) -> usize {
        self.0.partition_point(|end| *end < at) + 1
    }

    /// How many lines it takes until the parser gives `message`: some errors have no position.
    fn first_failing_line(&self, text: &str, message: &str) -> Option<usize> {
        let says = |count: usize| {
            let until = self.0.get(count - 1).map_or(text.len(), |end| end + 1);
            DeTable::parse_recoverable(&text[..until]).1.iter().any(|error| error.message() == message)
        };
        let (mut without, mut with) = (0, self.0.len() + 1);
        if !says(with) {
            return None;
        }
        while without + 1 < with {
            let middle = without.midpoint(with);
            *(if says(middle) { &mut with } else { &mut without }) = middle;
        }
        Some(with)
    }
}

/// A key of the text.
struct Spot {
    path: String,
    line: usize,
    /// Span of its name; empty for an element of an array.
    key: Range<usize>,
    value: Range<usize>,
    is_table: bool,
}

fn collect_table_spots(lines: &LineEnds, table: &DeTable<'_>, under: &str, spots: &mut Vec<Spot>) {
    for (key, value) in table {
        let path =
            if under.is_empty() { key.get_ref().to_string() } else { format!("{under}.{}", key.get_ref()) };
        collect_spots(lines, path, key.span(), value, spots);
    }
}

fn collect_spots(
    lines: &LineEnds,
    path: String,
    key: Range<usize>,
    value: &Spanned<DeValue<'_>>,
    spots: &mut Vec<Spot>,
) {
    let start = if key.is_empty() { value.span().start } else { key.start };
    let is_table = matches!(value.get_ref(), DeValue::Table(_));
    spots.push(Spot { path: path.clone(), line: lines.line_at(start), key, value: value.span(), is_table });
    match value.get_ref() {
        DeValue::Table(table) => collect_table_spots(lines, table, &path, spots),
        DeValue::Array(array) => {
            for (index, element) in array.iter().enumerate() {
                collect_spots(lines, format!("{path}[{index}]"), 0..0, element, spots);
            }
        }
        _ => {}
    }
}

fn explain_parse_error<T: DeserializeOwned>(
    text: &str,
    lines: &LineEnds,
    spots: &[Spot],
    error: &toml::de::Error,
) -> Wrong {
    let message = error.message().to_owned();
    let Some(span) = error.span() else {
        return Wrong { line: None, key: None, message };
    };
    let at_line = lines.line_at(span.start);
    // The name of a key that is unknown or duplicated.
    if let Some(spot) = spots.iter().find(|spot| !spot.key.is_empty() && spot.key == span) {
        return Wrong { line: Some(spot.line), key: Some(spot.path.clone()), message };
    }
    let holds = |spot: &&Spot| spot.value.start <= span.start && span.end <= spot.value.end;
    // The innermost one; on a tie, the one deeper in the tree, which comes later.
    let inner =
        spots.iter().filter(holds).min_by_key(|spot| (spot.value.len(), std::cmp::Reverse(spot.path.len())));
    let Some(inner) = inner else {
        return Wrong { line: Some(at_line), key: None, message };
    };
    let culprit = inner.is_table.then(|| find_culprit_key::<T>(text, &inner.path, &message)).flatten();
    let key = culprit.unwrap_or_else(|| inner.path.clone());
    let line = spots.iter().find(|spot| spot.path == key).map_or(at_line, |spot| spot.line);
    Wrong { line: Some(line), key: Some(key), message }
}

/// Which key of a table `message` is about. For some tables the parser reports only the table, because it must read all of
/// it first (a store for its `kind`, a switch for its `type`); its message contains the name of a key or a value.
fn find_culprit_key<T: DeserializeOwned>(text: &str, table: &str, message: &str) -> Option<String> {
    let mut whole: Table = toml::from_str(text).ok()?;
    let keys = table_at_path(&mut whole, table)?.clone();
    let (said, _) = message.split_once(", expected").unwrap_or((message, ""));
    if said.starts_with("missing field") {
        return None;
    }
    if let Some(name) = said.strip_prefix("unknown field `") {
        return keys
            .contains_key(name.trim_end_matches('`'))
            .then(|| format!("{table}.{}", name.trim_end_matches('`')));
    }
    let mentioned: Vec<&String> =
        keys.iter().filter(|(_, value)| is_mentioned(said, value)).map(|(key, _)| key).collect();
    let message_without = |key: &str| {
        let mut changed = whole.clone();
        table_at_path(&mut changed, table)?.remove(key);
        toml::from_str::<T>(&toml::to_string(&changed).ok()?).err().map(|error| error.message().to_owned())
    };
    let culprit = match &mentioned[..] {
        [only] => Some(*only),
        [] => keys.keys().take(MOST_TRIED).find(|key| {
            message_without(key).is_none_or(|other| other != message && !other.starts_with("missing field"))
        }),
        several => several.iter().copied().find(|key| message_without(key).as_deref() != Some(message)),
    };
    culprit.map(|key| format!("{table}.{key}"))
}

/// Whether a message of the parser contains this value, as serde writes values.
fn is_mentioned(message: &str, value: &Value) -> bool {
    match value {
        Value::String(text) => {
            message.contains(&format!("{text:?}")) || message.contains(&format!("`{text}`"))
        }
        Value::Array(elements) => {
            message == format!("invalid length {}", elements.len())
                || message.contains("invalid type: sequence")
                || elements.iter().any(|element| is_mentioned(message, element))
        }
        Value::Table(table) => {
            message.contains("invalid type: map") || table.values().any(|value| is_mentioned(message, value))
        }
        other => message.contains(&format!("`{other}`")),
    }
}

fn table_at_path<'t>(whole: &'t mut Table, path: &str) -> Option<&'t mut Table> {
    let mut now: Option<&mut Value> = None;
    let mut top = Some(whole);
    for step in path.split('.') {
        let (name, numbers) = step.split_once('[').unwrap_or((step, ""));
        let table = match now.take() {
            Some(value) => value.as_table_mut()?,
            None => top.take()?,
        };
        let mut value = table.get_mut(name)?;
        for number in numbers.split('[').filter(|number| !number.is_empty()) {
            value = value.as_array_mut()?.get_mut(number.trim_end_matches(']').parse::<usize>().ok()?)?;
        }
        now = Some(value);
    }
    now?.as_table_mut()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        #[serde(default)]
        #[allow(dead_code, reason = "it is read to be refused")]
        main: Main,
        #[serde(default)]
        #[allow(dead_code, reason = "it is read to be refused")]
        store: Vec<Store>,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Main {
        #[allow(dead_code, reason = "it is read to be refused")]
        port: u16,
    }

    #[derive(Debug, Deserialize)]
    struct Store {
        #[allow(dead_code, reason = "it is read to be refused")]
        id: u16,
        #[serde(flatten)]
        #[allow(dead_code, reason = "it is read to be refused")]
        kind: Kind,
    }

    #[derive(Debug, Deserialize)]
    #[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
    #[allow(dead_code, reason = "it is read to be refused")]
    enum Kind {
        Heap { slots: u64, copies: u8, address: Option<std::net::Ipv4Addr> },
    }

    fn error_of(text: &str) -> String {
        parse_text::<File>(text, Path::new("x")).unwrap_err().to_string()
    }

    #[test]
    fn line_and_key_are_named_whether_or_not_the_parser_names_them() {
        let store = "\n[[store]]\nid = 1\nkind = 'heap'\nslots = 1\ncopies = 2\n";
        let of = |change: &str, to: &str| error_of(&format!("{store}{}", store.replace(change, to)));
        for (error, is) in [
            (
                error_of("[main]\nport = 'x'"),
                "line 2, key `main.port`: invalid type: string \"x\", expected u16",
            ),
            (error_of("[main]\nprt = 1"), "line 2, key `main.prt`: unknown field `prt`, expected `port`"),
            (error_of("\n[man]\n"), "line 2, key `man`: unknown field `man`, expected `main` or `store`"),
            (
                error_of("[main]\nport = 70000"),
                "line 2, key `main.port`: invalid value: integer `70000`, expected u16",
            ),
            (
                of("copies = 2", "copies = 'two'"),
                "line 12, key `store.copies`: invalid type: string \"two\", expected u8",
            ),
            (
                of("copies = 2", "copies = 300"),
                "line 12, key `store.copies`: invalid value: integer `300`, expected u8",
            ),
            (
                of("slots = 1", "slots = -1"),
                "line 11, key `store.slots`: invalid value: integer `-1`, expected u64",
            ),
            (of("'heap'", "'heep'"), "line 10, key `store.kind`: unknown variant `heep`, expected `heap`"),
            (of("id = 1", "id = 'a'"), "line 9, key `store.id`: invalid type: string \"a\", expected u16"),
            (of("slots = 1", "slot = 1"), "line 11, key `store.slot`: unknown field `slot`"),
            (of("slots = 1\n", ""), "line 8, key `store`: missing field `slots`"),
            (
                of("slots = 1", "slots = 1\naddress = 'x'"),
                "line 12, key `store.address`: invalid IPv4 address syntax",
            ),
        ] {
            assert!(error.starts_with(is), "{error}\n{is}");
        }
        assert!(error_of("a = 1\n[main\n").starts_with("line 2, "), "{}", error_of("a = 1\n[main\n"));
        assert!(
            error_of("[main]\nport = 1\nport = 2").contains("line 3, "),
            "{}",
            error_of("[main]\nport = 1\nport = 2")
        );
    }

    #[test]
    fn what_is_nested_too_deeply_is_refused_with_its_line() {
        let deep = "x.".repeat(200);
        let before = (0..3).map(|n| format!("a{n} = [\n1]\n\n")).collect::<String>();
        for deep in [format!("{deep}y = 1"), format!("[{deep}y]"), format!("y = {}", "[".repeat(200))] {
            for after in ["", "\n", "\nz = 1\n[t]\nb = 2\n"] {
                let error = error_of(&format!("{before}{deep}{after}"));
                assert!(error.starts_with("line 10, "), "{error}");
            }
        }
    }

    #[test]
    fn the_work_grows_as_the_text() {
        let time = |keys: usize| {
            let text: String = (0..keys).map(|n| format!("key{n} = {n}\n")).collect();
            let begun = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            let (read, places) = parse_text::<Table>(&text, Path::new("x")).unwrap();
            let ended = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            assert_eq!((read.len(), places.line_of_key(&format!("key{}", keys - 1))), (keys, Some(keys)));
            (ended.tv_sec - begun.tv_sec) as f64 + (ended.tv_nsec - begun.tv_nsec) as f64 / 1e9
        };
        // CPU time of this thread, independent of other load; the fastest of three.
        let best = |keys| (0..3).map(|_| time(keys)).fold(f64::MAX, f64::min);
        let (few, many) = (best(20_000), best(80_000));
        assert!(many < 9.0 * few, "{few} s for a quarter of the keys, {many} s for all");
    }

    #[test]
    fn places_are_known_and_forgotten() {
        let text = "[main]\nport = 1\n[[store]]\nid = 1\nkind = 'heap'\nslots = 1\ncopies = 2\n";
        let (_, mut places) = parse_text::<File>(text, Path::new("x.toml")).unwrap();
        assert_eq!(places.line_of_key("main.port"), Some(2));
        assert_eq!(places.line_of_key("main.other.deeper"), Some(1));
        assert_eq!(places.line_of_key("store[0].copies"), Some(7));
        assert_eq!((places.file_path(), places.line_of_key("store[0]")), (Path::new("x.toml"), Some(3)));
        assert_eq!(places.line_of_key("nothing.of.this"), None);
        // The table stays, but is not to blame for a key whose value comes from elsewhere.
        places.forget_key("main.port");
        assert_eq!((places.line_of_key("main.port"), places.line_of_key("main.other")), (None, Some(1)));
        places.forget_key("main");
        assert_eq!(places.line_of_key("main.other"), None);
        assert_eq!(strip_indices("store[12].copies"), "store.copies");
    }

    #[test]
    fn the_users_file_goes_before_that_of_the_system() {
        let folder = tempfile::tempdir().unwrap();
        let (user, system) = (folder.path().join("user"), folder.path().join("etc"));
        let folders = [Some(&*user), None, Some(&*system)];
        assert_eq!(choose_config_file(None, "x.toml", &folders), None);
        for folder in [&system, &user] {
            std::fs::create_dir_all(folder.join("dta")).unwrap();
            std::fs::write(folder.join("dta/x.toml"), "").unwrap();
            assert_eq!(choose_config_file(None, "x.toml", &folders), Some(folder.join("dta/x.toml")));
        }
        assert_eq!(choose_config_file(Some(Path::new("y")), "x.toml", &folders), Some("y".into()));
        assert_eq!(choose_config_file(Some(Path::new("none")), "x.toml", &folders), None);
    }

    #[test]
    fn changes_are_named_by_their_keys() {
        let of = |text: &str| toml::from_str::<Table>(text).unwrap();
        let old = of("a = 1\nb = [1]\n[t]\nx = 1\ny = 2\n[gone]\nz = 1");
        let new = of("a = 1\nb = [2]\n[t]\nx = 1\ny = 3\n[new]\nz = 1");
        assert_eq!(changed_keys(&old, &new), ["b", "gone", "new", "t.y"]);
        assert_eq!(changed_keys(&old, &old), Vec::<String>::new());
        let beyond = |port| BTreeMap::from([("seed", u64::MAX), ("port", port)]);
        assert_eq!(changed_keys(&beyond(1), &beyond(2)), ["port"]);
    }
}
