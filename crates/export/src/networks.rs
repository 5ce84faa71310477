//! The owners of addresses: names and numbers of autonomous systems, by the longest prefix in a CSV file and, where that
//! says nothing, from MaxMind databases. A thread checks the files for changes, and reads all of them again.
//!
//! ```csv
//! prefix,name,asn
//! 10.0.0.0/8,campus,
//! 2001:db8::/32,lab,64512
//! ```

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::thread;
use std::time::{Duration, SystemTime};

use dta_proto::key::Flow;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use maxminddb::Reader;
use prefix_trie::PrefixMap;
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};

/// How often files are checked for changes.
const LOOK: Duration = Duration::from_secs(2);
const LONGEST: usize = 80;

/// The owner of an address; `None` = the files do not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// What people call it: the name in the CSV file, or an organisation.
    pub name: Option<String>,
    pub asn: Option<u32>,
}

/// The owners of a flow's two ends. Unknown ones are left out of JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlowNetworks {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_network: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_as: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_network: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_as: Option<u32>,
}

impl FlowNetworks {
    /// In words, such as `campus -> Example Net (AS 64496)`, with `?` for an unknown end; `None` if both are unknown.
    pub fn describe(&self) -> Option<String> {
        let from = describe_network(self.source_network.as_deref(), self.source_as);
        let to = describe_network(self.destination_network.as_deref(), self.destination_as);
        let unknown = || "?".to_owned();
        match (from, to) {
            (None, None) => None,
            (from, to) => Some(format!("{} -> {}", from.unwrap_or_else(unknown), to.unwrap_or_else(unknown))),
        }
    }
}

/// Such as `campus (AS 64512)`; `None` if nothing is known.
fn describe_network(name: Option<&str>, asn: Option<u32>) -> Option<String> {
    match (name, asn) {
        (Some(name), Some(asn)) => Some(format!("{name} (AS {asn})")),
        (Some(name), None) => Some(name.to_owned()),
        (None, Some(asn)) => Some(format!("AS {asn}")),
        (None, None) => None,
    }
}

pub struct Networks {
    files: NetworkFiles,
    known: RwLock<Arc<NetworkIndex>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NetworkFiles {
    csv: Option<PathBuf>,
    maxmind: Vec<PathBuf>,
}

#[derive(Default)]
struct NetworkIndex {
    v4: PrefixMap<Ipv4Net, Network>,
    v6: PrefixMap<Ipv6Net, Network>,
    databases: Vec<Reader<Vec<u8>>>,
}

/// Distinguishes states of files; `None` = the file's metadata cannot be read.
type Stamp = Vec<Option<(SystemTime, u64)>>;

impl Networks {
    /// Reads the files, and follows their changes until this is dropped. If a changed file cannot be used, this is logged
    /// once, and what was read before stays.
    ///
    /// # Errors
    /// A sentence that names the file and, in the CSV file, the line.
    pub fn open(csv: Option<PathBuf>, maxmind: Vec<PathBuf>) -> Result<Arc<Self>, String> {
        let files = NetworkFiles { csv, maxmind };
        // Taken first, so that what changes during reading is read again.
        let stamp = files.file_stamps();
        let known = RwLock::new(Arc::new(files.read()?));
        let networks = Arc::new(Self { files, known });
        let of = Arc::downgrade(&networks);
        let thread =
            thread::Builder::new().name("dta-networks".into()).spawn(move || watch_files(&of, stamp));
        thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(networks)
    }

    pub fn find_network(&self, address: IpAddr) -> Network {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).clone();
        known.find_network(address)
    }

    pub fn flow_networks(&self, flow: &Flow) -> FlowNetworks {
        let [from, to] = [flow.src, flow.dst].map(|address| self.find_network(address));
        FlowNetworks {
            source_network: from.name,
            source_as: from.asn,
            destination_network: to.name,
            destination_as: to.asn,
        }
    }
}

impl fmt::Debug for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Networks").field(&self.files).finish()
    }
}

impl PartialEq for Networks {
    fn eq(&self, other: &Self) -> bool {
        self.files == other.files
    }
}

impl Eq for Networks {}

/// Reads changed files again, as long as anyone holds `of`.
fn watch_files(of: &Weak<Networks>, mut last: Stamp) {
    loop {
        thread::sleep(LOOK);
        let Some(networks) = of.upgrade() else { return };
        let stamp = networks.files.file_stamps();
        if stamp == last {
            continue;
        }
        last = stamp;
        match networks.files.read() {
            Ok(known) => {
                let mut current = networks.known.write().unwrap_or_else(PoisonError::into_inner);
                let before = std::mem::replace(&mut *current, Arc::new(known));
                drop(current);
                // Freeing a large one takes a while.
                drop(before);
                tracing::info!("network names reloaded");
            }
            Err(error) => {
                tracing::warn!(error, "cannot use a changed file of networks: keeping the previous names");
            }
        }
    }
}

impl NetworkFiles {
    fn file_stamps(&self) -> Stamp {
        let stamp = |path: &PathBuf| {
            let metadata = fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        self.csv.iter().chain(&self.maxmind).map(stamp).collect()
    }

    fn read(&self) -> Result<NetworkIndex, String> {
        let mut known = NetworkIndex::default();
        if let Some(path) = &self.csv {
            known.read(path).map_err(|reason| format!("{}{reason}", path.display()))?;
        }
        for path in &self.maxmind {
            let database = open_database(path);
            known.databases.push(database.map_err(|reason| format!("{}: {reason}", path.display()))?);
        }
        Ok(known)
    }
}

/// Opens a database of autonomous systems.
fn open_database(path: &Path) -> Result<Reader<Vec<u8>>, String> {
    let reader = Reader::open_readfile(path).map_err(|error| error.to_string())?;
    let kind = &reader.metadata().database_type;
    if !["ASN", "ISP", "Enterprise"].iter().any(|has| kind.contains(has)) {
        return Err(format!(
            "a database of the type {kind} has no autonomous systems: give one such as GeoLite2-ASN"
        ));
    }
    Ok(reader)
}

/// What an entry of a database says: beside its other fields or, in GeoIP2-Enterprise, among its `traits`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct AsnEntry<'a> {
    #[serde(deserialize_with = "deserialize_as_number")]
    autonomous_system_number: Option<u32>,
    autonomous_system_organization: Option<&'a str>,
    traits: Option<Box<AsnEntry<'a>>>,
}

/// A number of any integer type in the format: MaxMind writes uint32, others whatever fits.
fn deserialize_as_number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    struct AsNumber;

    impl Visitor<'_> for AsNumber {
        type Value = Option<u32>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the number of an autonomous system")
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<Option<u32>, E> {
            Ok(number.try_into().ok())
        }

        fn visit_u128<E: Error>(self, number: u128) -> Result<Option<u32>, E> {
            Ok(number.try_into().ok())
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<Option<u32>, E> {
            Ok(number.try_into().ok())
        }
    }

    from.deserialize_any(AsNumber)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkRow {
    prefix: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    asn: Option<u32>,
}

impl NetworkIndex {
    /// Reads the lines of a file; the error begins with what follows the file's name.
    fn read(&mut self, path: &Path) -> Result<(), String> {
        let text = fs::read_to_string(path).map_err(|error| format!(": {error}"))?;
        let mut reader =
            csv::ReaderBuilder::new().trim(csv::Trim::All).comment(Some(b'#')).from_reader(text.as_bytes());
        let mut record = csv::StringRecord::new();
        let headers = reader.headers().map_err(|error| format!(": {error}"))?.clone();
        if !headers.iter().any(|name| name == "prefix") {
            return Err(": the first line must name the columns: prefix, name, asn".into());
        }
        while reader.read_record(&mut record).map_err(|error| format!(": {error}"))? {
            let row: Result<NetworkRow, _> = record.deserialize(Some(&headers));
            let row = row.map_err(|error| match error.kind() {
                csv::ErrorKind::Deserialize { err, .. } => err.to_string(),
                _ => error.to_string(),
            });
            row.and_then(|row| self.insert_row(row)).map_err(|reason| {
                // The reader's own line number skips comments and empty lines before the record.
                let read = text.get(..reader.position().byte() as usize).unwrap_or(&text);
                format!(", line {}: {reason}", read.trim_end().lines().count())
            })?;
        }
        Ok(())
    }

    fn insert_row(&mut self, NetworkRow { prefix, name, asn }: NetworkRow) -> Result<(), String> {
        let parsed = prefix.parse::<IpNet>().or_else(|_| prefix.parse::<IpAddr>().map(IpNet::from));
        let parsed = parsed.map_err(|_| format!("{prefix:?} is not a prefix, such as 10.0.0.0/8"))?;
        let is_plain = |name: &String| name.chars().count() <= LONGEST && !name.chars().any(char::is_control);
        let name = name.filter(|name| !name.is_empty());
        if name.as_ref().is_some_and(|name| !is_plain(name)) {
            return Err(format!("a name has at most {LONGEST} characters, none of them a control character"));
        }
        if name.is_none() && asn.is_none() {
            return Err(format!("{prefix} has neither a name nor an AS number"));
        }
        let network = Network { name, asn };
        let before = match parsed {
            IpNet::V4(prefix) => self.v4.insert(prefix.trunc(), network),
            IpNet::V6(prefix) => self.v6.insert(prefix.trunc(), network),
        };
        if before.is_some() { Err(format!("{prefix} is listed twice")) } else { Ok(()) }
    }

    fn find_network(&self, address: IpAddr) -> Network {
        let found = match address {
            IpAddr::V4(address) => self.v4.get_lpm(&address.into()).map(|(_, network)| network),
            IpAddr::V6(address) => self.v6.get_lpm(&address.into()).map(|(_, network)| network),
        };
        let mut network = found.cloned().unwrap_or_default();
        for database in &self.databases {
            if network.name.is_some() && network.asn.is_some() {
                break;
            }
            // A damaged entry says nothing.
            let found = database.lookup(address).and_then(|found| found.decode::<AsnEntry<'_>>());
            let Ok(Some(found)) = found else { continue };
            let found = found.traits.map_or(AsnEntry { traits: None, ..found }, |traits| *traits);
            network.asn = network.asn.or(found.autonomous_system_number);
            let plain = |name: &str| name.chars().filter(|c| !c.is_control()).take(LONGEST).collect();
            network.name = network.name.or_else(|| found.autonomous_system_organization.map(plain));
        }
        network
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");

    fn description(networks: &Networks, address: &str) -> String {
        let network = networks.find_network(address.parse().unwrap());
        describe_network(network.name.as_deref(), network.asn).unwrap_or_default()
    }

    #[test]
    fn the_longest_prefix_names_an_address_and_a_database_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let csv = folder.path().join("networks.csv");
        let text = "# ours\nprefix, name, asn\n10.0.0.0/8,all,64512\n10.1.0.0/16,campus,\n10.1.2.3,door,64513\n\
                    192.0.2.0/25,half,\n2001:db8::/32,\"lab, old\",\n0.0.0.0/0,,65000\n";
        fs::write(&csv, text).unwrap();
        let asn = PathBuf::from(DATA).join("asn.mmdb");
        let networks = Networks::open(Some(csv.clone()), vec![asn.clone()]).unwrap();
        for (address, wanted) in [
            ("10.9.9.9", "all (AS 64512)"),
            ("10.1.0.1", "campus"),
            ("10.1.2.3", "door (AS 64513)"),
            ("10.1.2.4", "campus"),
            // The database has what the file lacks.
            ("192.0.2.1", "half (AS 64496)"),
            ("192.0.2.200", "Example Net (AS 65000)"),
            ("2001:db8:1::1", "lab, old (AS 4200000000)"),
            ("2001:db8:2::1", "lab, old"),
            ("8.8.8.8", "AS 65000"),
            ("::1", ""),
        ] {
            assert_eq!(description(&networks, address), wanted, "{address}");
        }
        let alone = Networks::open(None, vec![asn]).unwrap();
        assert_eq!(description(&alone, "198.51.100.1"), "AS 64497");
        assert_eq!(description(&alone, "10.0.0.1"), "");
        let flow = "192.0.2.1:1->10.0.0.1:2/udp".parse().unwrap();
        let ends = alone.flow_networks(&flow);
        assert_eq!(ends.describe().as_deref(), Some("Example Net (AS 64496) -> ?"));
        let json = serde_json::to_value(&ends).unwrap();
        assert_eq!(json, serde_json::json!({"source_network": "Example Net", "source_as": 64496}));
        assert_eq!(FlowNetworks::default().describe(), None);
    }

    /// A database of this type in which one entry covers all IPv4 addresses.
    fn encode_database(kind: &str, entry: &[u8]) -> Vec<u8> {
        let metadata = [
            map(9),
            text("node_count"),
            integer(UINT32, &1u32.to_be_bytes()),
            text("record_size"),
            integer(UINT16, &24u16.to_be_bytes()),
            text("ip_version"),
            integer(UINT16, &4u16.to_be_bytes()),
            text("database_type"),
            text(kind),
            text("languages"),
            vec![0, 4],
            text("binary_format_major_version"),
            integer(UINT16, &2u16.to_be_bytes()),
            text("binary_format_minor_version"),
            integer(UINT16, &0u16.to_be_bytes()),
            text("build_epoch"),
            integer(UINT64, &1u64.to_be_bytes()),
            text("description"),
            map(0),
        ];
        // One node, both of whose records point to the start of the data.
        let tree = [0, 0, 17, 0, 0, 17];
        [&tree[..], &[0; 16], entry, b"\xab\xcd\xefMaxMind.com", &metadata.concat()].concat()
    }

    const UINT16: u8 = 5;
    const UINT32: u8 = 6;
    const INT32: u8 = 8;
    const UINT64: u8 = 9;
    const UINT128: u8 = 10;

    /// An integer in the database's format; types above 7 have a byte of their own.
    fn integer(kind: u8, bytes: &[u8]) -> Vec<u8> {
        let len = bytes.len() as u8;
        let control = if kind > 7 { vec![len, kind - 7] } else { vec![kind << 5 | len] };
        [&control, bytes].concat()
    }

    fn text(text: &str) -> Vec<u8> {
        let control = match text.len() as u8 {
            len @ 0..29 => vec![2 << 5 | len],
            len => vec![2 << 5 | 29, len - 29],
        };
        [&control, text.as_bytes()].concat()
    }

    fn map(fields: u8) -> Vec<u8> {
        vec![7 << 5 | fields]
    }

    #[test]
    fn an_as_number_may_have_any_integer_type() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("asn.mmdb");
        let entry = |number: &[u8]| {
            let [number_name, name] =
                ["number", "organization"].map(|of| text(&format!("autonomous_system_{of}")));
            [&map(2), &number_name, number, &name, &text("Net")].map(|part| part.to_vec()).concat()
        };
        for (number, wanted) in [
            (integer(UINT32, &64500u32.to_be_bytes()), "Net (AS 64500)"),
            (integer(UINT16, &64500u16.to_be_bytes()), "Net (AS 64500)"),
            (integer(UINT64, &4_200_000_000u64.to_be_bytes()), "Net (AS 4200000000)"),
            (integer(UINT128, &64500u128.to_be_bytes()), "Net (AS 64500)"),
            (integer(INT32, &64500i32.to_be_bytes()), "Net (AS 64500)"),
            // Not numbers of autonomous systems: the name is still used.
            (integer(INT32, &(-1i32).to_be_bytes()), "Net"),
            (integer(UINT64, &u64::MAX.to_be_bytes()), "Net"),
        ] {
            let in_traits = [map(1), text("traits"), entry(&number)].concat();
            for (kind, entry) in [("GeoLite2-ASN", entry(&number)), ("GeoIP2-Enterprise", in_traits)] {
                fs::write(&path, encode_database(kind, &entry)).unwrap();
                let networks = Networks::open(None, vec![path.clone()]).unwrap();
                assert_eq!(description(&networks, "192.0.2.1"), wanted, "{kind}: {number:?}");
            }
        }
    }

    #[test]
    fn what_is_wrong_in_a_file_is_refused_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let csv = folder.path().join("n.csv");
        let open = || Networks::open(Some(csv.clone()), Vec::new()).unwrap_err();
        assert!(open().contains("n.csv: No such file"), "{}", open());
        for (text, wanted) in [
            ("", "n.csv: the first line must name the columns"),
            ("10.0.0.0/8,a,1\n", "n.csv: the first line must name the columns"),
            ("prefix,name,as\n10.0.0.0/8,a,1\n", "line 2: unknown field `as`"),
            ("prefix,name\n10.0.0.0/8,a\n10.0.0/9,b\n", "line 3: \"10.0.0/9\" is not a prefix"),
            ("prefix,name\n\n# two\n10.0.0.0/33,a\n\n", "line 4: \"10.0.0.0/33\" is not a prefix"),
            ("prefix,asn\n10.0.0.0/8,x\n", "line 2: "),
            ("prefix,name,asn\n10.0.0.0/8,,\n", "line 2: 10.0.0.0/8 has neither"),
            ("prefix,name\n10.0.0.0/8,a\n10.9.0.0/8,b\n", "line 3: 10.9.0.0/8 is listed twice"),
            ("prefix,name\n10.0.0.0/8\n", "n.csv: "),
            ("prefix,name\n10.0.0.0/8,\"a\tb\"\n", "line 2: a name has"),
        ] {
            fs::write(&csv, text).unwrap();
            assert!(open().contains(wanted), "{text:?}: {}", open());
        }
        let maxmind = |name: &str| Networks::open(None, vec![Path::new(DATA).join(name)]).unwrap_err();
        assert!(
            maxmind("country.mmdb").contains("country.mmdb: a database of the type GeoLite2-Country has no")
        );
        fs::write(&csv, "prefix,name\n").unwrap();
        assert!(Networks::open(None, vec![csv]).unwrap_err().contains("n.csv: "));
    }

    #[test]
    fn a_changed_file_is_read_again_and_a_bad_one_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let csv = folder.path().join("n.csv");
        fs::write(&csv, "prefix,name\n10.0.0.0/8,before\n").unwrap();
        let networks = Networks::open(Some(csv.clone()), Vec::new()).unwrap();
        let until = |name: &str| {
            let begun = std::time::Instant::now();
            while description(&networks, "10.0.0.1") != name {
                assert!(begun.elapsed() < Duration::from_secs(60), "never {name}");
                thread::sleep(Duration::from_millis(20));
            }
        };
        until("before");
        fs::write(&csv, "prefix,name\n10.0.0.0/8,then\n").unwrap();
        until("then");
        fs::write(&csv, "prefix,name\nnonsense\n").unwrap();
        thread::sleep(2 * LOOK);
        assert_eq!(description(&networks, "10.0.0.1"), "then");
        // It is still being checked.
        fs::write(&csv, "prefix,name\n10.0.0.0/8,at last\n").unwrap();
        until("at last");
    }
}
