//! Attaches the programs of `trace/ebpf/` to a running kernel and reads what they hand up. Needs Linux and the feature `ebpf`.

mod attach;
mod cost;
mod maps;
mod namespace;
mod own;
mod probe;
pub mod rights;
mod tai;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aya::maps::{Array, MapData, RingBuf};
use aya::{Btf, Ebpf, EbpfLoader, VerifierLogLevel};
use rustix::event::{PollFd, PollFlags, Timespec};

pub use cost::{Cost, costs};
pub use maps::PointBooks;
pub use probe::{Offer, points};
pub use tai::tai;

use crate::btf;
use crate::counts::{Books, FlowAt, FlowCount};
use crate::digest::Sampling;
use crate::matching::{TABLE, Table};
use crate::point::At;
use crate::record::{RECORD, Record};
use attach::{Attachment, Programs};
use maps::{Settings, Slots};
use namespace::Namespace;
use own::Own;

/// The programs, built by `make ebpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../ebpf/trace.bpf.o");

/// Most points of a tracer. Those that were taken away keep their numbers until these are needed.
pub const POINTS: usize = 256;

/// Flows at points for which the kernel's table has room.
pub const FLOWS: usize = 16_384;

/// Bytes of a record in the kernel's ring, with its header.
const RING_ENTRY: usize = 8 + RECORD;

/// How often namespaces are looked at: the kernel does not tell when one of them ends.
const LOOK: Duration = Duration::from_millis(500);

/// Why tracing does not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A capability is missing.
    #[error("tracing needs {}, which the program does not have; run it as root or grant them", .0.join(", "))]
    Rights(Vec<&'static str>),
    /// The kernel does not describe its types.
    #[error("the kernel has no BTF ({path}: {0}); it is built with CONFIG_DEBUG_INFO_BTF", path = btf::PATH)]
    NoBtf(String),
    /// The object cannot be loaded.
    #[error("the programs cannot be loaded into this kernel: {0}")]
    Load(String),
    /// A point cannot be attached.
    #[error("{at} cannot be attached: {why}")]
    Attach {
        /// The point.
        at: At,
        /// Why not, and what can be attached instead.
        why: String,
    },
    /// There are too many points.
    #[error("there are {POINTS} points already")]
    TooMany,
    /// A system call failed.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
}

fn system(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::System(what, error)
}

/// How to trace.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which packets.
    pub table: Table,
    /// Which share of them.
    pub sampling: Sampling,
    /// Whether packets are followed through address translation, by their buffers.
    pub follow: bool,
    /// Attach to interfaces by clsact though the kernel has tcx.
    pub clsact: bool,
    /// Where the records are sent to as reports. Left out, and counted as [`own`](crate::counts::Books::own), are datagrams to and from
    /// there, RoCEv2 to and from that address, and ICMP errors about these: to trace them would make reports of reports without end.
    pub translator: Option<SocketAddrV4>,
    /// Bytes of the ring; a power of two and whole pages.
    pub ring: u32,
    /// Another build of the programs than the one that is part of this library.
    pub object: Option<Arc<[u8]>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            table: Table::all(),
            sampling: Sampling::ALL,
            follow: true,
            clsact: false,
            translator: None,
            ring: 4 << 20,
            object: None,
        }
    }
}

/// A point of a tracer.
pub struct Point {
    /// Where it is.
    pub at: At,
    /// Its number in records.
    pub number: u16,
    attached: Option<Attachment>,
    wanted: bool,
    /// The kind's place in the settings, for a point that sees the packets of all interfaces.
    kind: Option<u16>,
}

impl Point {
    /// Whether it is attached at the moment: its interface may be away.
    pub fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// Whether it is still asked for.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }
}

/// Programs in the kernel, with the points to which they are attached. All are taken away with it.
pub struct Tracer {
    // Before the programs, so that what is attached goes first.
    points: Vec<Point>,
    own: Vec<Own>,
    programs: Programs,
    ebpf: Ebpf,
    ring: RingBuf<MapData>,
    /// Records that the ring has room for.
    room: usize,
    settings: Settings,
    slots: Slots,
    namespaces: Vec<Namespace>,
    kernel: btf::Kernel,
    looked: Instant,
    ahead: tai::Ahead,
    /// Which point tells what a program missed, by the program's kind, and what it had missed before: points of several interfaces
    /// share a program, and one program is used again for other points.
    missed: BTreeMap<u16, (u16, u64)>,
    /// What became of the packets of points that have lost their number.
    gone: Books,
}

impl Tracer {
    /// Loads the programs, and takes away what a tracer that died left on interfaces.
    pub fn start(options: &Options) -> Result<Self, Error> {
        let missing = rights::missing(false).map_err(system("capabilities cannot be read"))?;
        if !missing.is_empty() {
            return Err(Error::Rights(missing));
        }
        let kernel = btf::Kernel::read().map_err(|error| Error::NoBtf(error.to_string()))?;
        let types = Btf::from_sys_fs().map_err(|error| Error::NoBtf(error.to_string()))?;
        let object = options.object.as_deref().unwrap_or(OBJECT);
        let mut ebpf = EbpfLoader::new()
            .btf(Some(&types))
            .verifier_log_level(VerifierLogLevel::DEBUG)
            .map_max_entries("ring", options.ring)
            .load(object)
            .map_err(|error| Error::Load(chain(&error)))?;
        let ring = ebpf.take_map("ring").ok_or_else(|| Error::Load("it has no ring".into()))?;
        let ring = RingBuf::try_from(ring).map_err(|error| Error::Load(chain(&error)))?;
        let own = Namespace::open(None).map_err(system("the own network namespace cannot be opened"))?;
        attach::clear_stale(&own);
        for name in Namespace::names() {
            if let Ok(other) = Namespace::open(Some(&name)) {
                attach::clear_stale(&other);
            }
        }
        let mut tracer = Self {
            points: Vec::new(),
            own: Vec::new(),
            programs: Programs::new(types, options.clsact),
            settings: Settings::new(options.ring / 4, options.translator),
            slots: Slots::default(),
            ebpf,
            ring,
            room: options.ring as usize / RING_ENTRY,
            namespaces: vec![own],
            kernel,
            looked: Instant::now(),
            ahead: tai::Ahead::measure(),
            missed: BTreeMap::new(),
            gone: Books::default(),
        };
        tracer.settings.follow = options.follow;
        tracer.settings.sampling = options.sampling;
        tracer.set_filter(&options.table)?;
        Ok(tracer)
    }

    /// Attaches a point and returns its number. One that is there already keeps its number.
    pub fn attach(&mut self, at: &At) -> Result<u16, Error> {
        if let Some(point) = self.points.iter().find(|point| point.wanted && point.at == *at) {
            return Ok(point.number);
        }
        if let At::Interface { namespace: Some(name), .. } = at
            && !self.namespaces.iter().any(|open| open.name.as_deref() == Some(name))
        {
            let open = Namespace::open(Some(name)).map_err(|error| Error::Attach {
                at: at.clone(),
                why: match error.kind() {
                    io::ErrorKind::NotFound => {
                        format!(
                            "there is no network namespace {name:?}; there are: {}",
                            Namespace::names().join(", ")
                        )
                    }
                    io::ErrorKind::PermissionDenied => {
                        format!("the namespace cannot be entered ({error}); that needs CAP_SYS_ADMIN")
                    }
                    _ => format!("the namespace cannot be entered: {error}"),
                },
            })?;
            // A namespace without a name was not looked at when the tracer started.
            attach::clear_stale(&open);
            self.namespaces.push(open);
        }
        let number = self.free_number()?;
        let mut point = Point { at: at.clone(), number, attached: None, wanted: true, kind: None };
        self.attach_point(&mut point).map_err(|why| Error::Attach { at: at.clone(), why })?;
        let place = usize::from(number);
        if place == self.points.len() {
            self.points.push(point);
        } else {
            self.gone = self.gone.plus(self.books_of(&self.points[place])?.total);
            maps::clear_books(&mut self.ebpf, number).map_err(Error::Load)?;
            self.points[place] = point;
        }
        Ok(number)
    }

    /// A number that no point has; when there is no other, that of one that was taken away.
    fn free_number(&self) -> Result<u16, Error> {
        if self.points.len() < POINTS {
            return Ok(self.points.len() as u16);
        }
        let gone = self.points.iter().find(|point| !point.wanted);
        gone.map(|point| point.number).ok_or(Error::TooMany)
    }

    /// Takes a point away. Its books stay until its number is needed for another one.
    pub fn detach(&mut self, at: &At) {
        let Some(point) = self.points.iter_mut().find(|point| point.wanted && point.at == *at) else {
            return;
        };
        point.wanted = false;
        point.attached = None;
        let number = point.number;
        let kind = point.kind.take();
        if let Some(place) = self.own.iter().position(|own| own.number == number) {
            self.gone = self.gone.plus(self.own.swap_remove(place).books);
        }
        self.pass_missed_on(number);
        if let Some(kind) = kind {
            self.programs.free(kind);
            self.settings.free(kind);
            // The program does not run any more, or for the points of interfaces alone.
            let _ = self.settings.write(&mut self.ebpf);
        }
        self.write_slots();
    }

    /// Of a point that goes: what its program missed from now on, another point of the same program tells.
    fn pass_missed_on(&mut self, number: u16) {
        let Some((&kind, &(_, before))) = self.missed.iter().find(|(_, (of, _))| *of == number) else {
            return;
        };
        let now = self.programs.missed(&self.ebpf, kind);
        self.gone.missed += now.saturating_sub(before);
        let other =
            self.points.iter().find(|point| point.wanted && program_of(&point.at, point.kind) == Some(kind));
        match other {
            Some(other) => self.missed.insert(kind, (other.number, now)),
            None => self.missed.remove(&kind),
        };
    }

    /// Forgets the flows that were counted at points which are taken away, to make room.
    pub fn forget_flows_of_gone_points(&mut self) -> Result<(), Error> {
        for (at, _) in self.flows()? {
            if self.points.get(usize::from(at.point)).is_none_or(|point| !point.wanted) {
                self.forget_flow(&at)?;
            }
        }
        Ok(())
    }

    /// Attaches a point that is not. In the kernel, its number is in place before the first packet comes.
    fn attach_point(&mut self, point: &mut Point) -> Result<(), String> {
        if let At::Interface { namespace, name, side } = &point.at {
            let open = self.namespaces.iter().find(|open| open.name == *namespace);
            let open = open.ok_or("its namespace is away")?;
            let links = open.links().map_err(|error| format!("interfaces cannot be listed: {error}"))?;
            let Some(link) = links.iter().find(|link| link.name == *name) else {
                let names: Vec<_> = links.iter().map(|link| link.name.as_str()).collect();
                return Err(format!("there is no interface {name:?}; there are: {}", names.join(", ")));
            };
            self.slots.put(open.inode, link, *side, point.number);
            self.slots.write(&mut self.ebpf)?;
            let Self { programs, ebpf, kernel, .. } = self;
            point.attached = Some(programs.interface(ebpf, open, link, *side, kernel)?);
        } else if let At::Uprobe { file, function } = &point.at {
            point.attached = Some(Programs::uprobe(&mut self.ebpf, file, function, point.number)?);
        } else if let At::Program(file) = &point.at {
            let (own, attached) = Own::attach(file, point.number, self.programs.types())?;
            self.own.push(own);
            point.attached = Some(attached);
        } else {
            let kind = self.programs.kind(&point.at)?;
            self.settings.points[usize::from(kind)] = point.number;
            self.settings.write(&mut self.ebpf)?;
            match self.programs.elsewhere(&mut self.ebpf, &point.at, kind, &self.kernel) {
                Ok(attached) => point.attached = Some(attached),
                Err(why) => {
                    self.programs.free(kind);
                    self.settings.free(kind);
                    return self.settings.write(&mut self.ebpf).and(Err(why));
                }
            }
            point.kind = Some(kind);
        }
        if let Some(kind) = program_of(&point.at, point.kind) {
            let before = self.programs.missed(&self.ebpf, kind);
            self.missed.entry(kind).or_insert((point.number, before));
        }
        Ok(())
    }

    /// The points in the order of their numbers.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Changes the filter, between two packets.
    pub fn set_filter(&mut self, table: &Table) -> Result<(), Error> {
        let index = self.settings.table ^ 1;
        let map = self.ebpf.map_mut("filter").ok_or_else(|| Error::Load("it has no filter".into()))?;
        let mut map: Array<_, [u8; TABLE]> = map.try_into().map_err(|error| Error::Load(chain(&error)))?;
        map.set(index, table.to_bytes(), 0).map_err(|error| Error::Load(chain(&error)))?;
        self.settings.table = index;
        self.settings.all = *table == Table::all();
        self.settings.write(&mut self.ebpf).map_err(Error::Load)
    }

    /// Changes the share of packets that is reported.
    pub fn set_sampling(&mut self, sampling: Sampling) -> Result<(), Error> {
        self.settings.sampling = sampling;
        self.settings.write(&mut self.ebpf).map_err(Error::Load)
    }

    /// TAI less UTC in nanoseconds, as this host has it: whole seconds. It belongs to the records that are read next, until
    /// [`Tracer::wait`] is called again.
    pub fn leap(&self) -> i64 {
        self.ahead.leap()
    }

    /// Waits for records, at most so long, attaches points again whose interfaces came back, and follows the clock. Returns early without records as well: the
    /// kernel wakes the program only where the ring fills, so call [`Tracer::read`] each time, some hundred times a second.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        let timeout = Timespec::try_from(timeout).ok();
        let mut waits = vec![PollFd::new(&self.ring, PollFlags::IN)];
        waits.extend(self.own.iter().map(|own| PollFd::new(&own.ring, PollFlags::IN)));
        waits.extend(self.namespaces.iter().map(|namespace| {
            let events = namespace.events();
            PollFd::from_borrowed_fd(events, PollFlags::IN)
        }));
        match rustix::event::poll(&mut waits, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::System("waiting for records failed", error.into())),
        }
        drop(waits);
        self.ahead.follow();
        self.follow_interfaces();
        Ok(())
    }

    /// Hands over the records that are in the rings, and returns how many they were. Of each ring, no more than one filling: where
    /// records come faster than they are taken, this ends all the same.
    pub fn read(&mut self, mut each: impl FnMut(Record)) -> usize {
        let mut count = 0;
        for _ in 0..self.room {
            let Some(bytes) = self.ring.next() else { break };
            if let Some(mut record) = Record::read(&bytes) {
                record.time = self.ahead.at(record.time);
                each(record);
                count += 1;
            }
        }
        for own in &mut self.own {
            own.read(&self.settings, |mut record| {
                record.time = self.ahead.at(record.time);
                each(record);
                count += 1;
            });
        }
        count
    }

    fn follow_interfaces(&mut self) {
        let mut changed: Vec<Option<String>> =
            self.namespaces.iter().filter(|open| open.changed()).map(|open| open.name.clone()).collect();
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            changed.extend(self.follow_namespaces());
        }
        for name in changed {
            self.follow_namespace(name.as_deref());
        }
    }

    /// Lets go of namespaces that ended, opens those that came back, and names both.
    fn follow_namespaces(&mut self) -> Vec<Option<String>> {
        let mut wanted: Vec<String> = Vec::new();
        for point in self.points.iter().filter(|point| point.wanted) {
            if let At::Interface { namespace: Some(name), .. } = &point.at
                && !wanted.contains(name)
            {
                wanted.push(name.clone());
            }
        }
        let mut changed = Vec::new();
        for name in wanted {
            let is = namespace::inode(&name).ok();
            let place = self.namespaces.iter().position(|open| open.name.as_ref() == Some(&name));
            if is == place.map(|place| self.namespaces[place].inode) {
                continue;
            }
            // An open file of a namespace would keep it, with its interfaces.
            if let Some(place) = place {
                self.namespaces.remove(place);
            }
            if is.is_some()
                && let Ok(open) = Namespace::open(Some(&name))
            {
                self.namespaces.push(open);
            }
            changed.push(Some(name));
        }
        changed
    }

    /// Compares the interfaces of a namespace with the points in it.
    fn follow_namespace(&mut self, name: Option<&str>) {
        let open = self.namespaces.iter().find(|open| open.name.as_deref() == name);
        let inode = open.map(|open| open.inode);
        let links = open.and_then(|open| open.links().ok()).unwrap_or_default();
        let mut points = std::mem::take(&mut self.points);
        for point in points.iter_mut().filter(|point| point.wanted) {
            let At::Interface { namespace, name: interface, .. } = &point.at else { continue };
            if namespace.as_deref() != name {
                continue;
            }
            let is = links.iter().find(|link| link.name == *interface).map(|link| link.index).zip(inode);
            if point.attached.as_ref().and_then(|attached| attached.place) == is {
                continue;
            }
            point.attached = None;
            self.slots.forget(point.number);
            if is.is_some() {
                // It stays without where that fails; the next change tries again.
                let _ = self.attach_point(point);
            }
        }
        self.points = points;
        self.write_slots();
    }

    fn write_slots(&mut self) {
        for point in self.points.iter().filter(|point| point.attached.is_none()) {
            self.slots.forget(point.number);
        }
        let _ = self.slots.write(&mut self.ebpf);
    }

    /// What became of the packets, for each point.
    pub fn books(&self) -> Result<Vec<PointBooks>, Error> {
        self.points.iter().map(|point| self.books_of(point)).collect()
    }

    /// What became of all packets, also of those at points that are no more.
    pub fn total(&self) -> Result<Books, Error> {
        Ok(self.books()?.iter().fold(self.gone, |sum, point| sum.plus(point.total)))
    }

    fn books_of(&self, point: &Point) -> Result<PointBooks, Error> {
        if let Some(own) = self.own.iter().find(|own| own.number == point.number) {
            return Ok(PointBooks { point: point.number, total: own.books, cpus: vec![own.books] });
        }
        let told = self.missed.iter().find(|(_, (number, _))| *number == point.number);
        let missed = told
            .map_or(0, |(kind, (_, before))| self.programs.missed(&self.ebpf, *kind).saturating_sub(*before));
        maps::books(&self.ebpf, point.number, missed).map_err(Error::Load)
    }

    /// What was counted of each flow since it was seen first, in no order.
    pub fn flows(&self) -> Result<Vec<(FlowAt, FlowCount)>, Error> {
        maps::flows(&self.ebpf).map_err(Error::Load)
    }

    /// Forgets a flow, to make room. What is counted between the last reading and this is lost, so choose flows that
    /// have rested.
    pub fn forget_flow(&mut self, at: &FlowAt) -> Result<(), Error> {
        maps::forget_flow(&mut self.ebpf, at).map_err(Error::Load)
    }

    /// Names from the running kernel: of drop reasons.
    pub fn kernel(&self) -> &btf::Kernel {
        &self.kernel
    }

    /// Names of interfaces, for people: `pod1/eth0`, or `eth0` in the program's own namespace. A namespace or interface that
    /// has no name is shown by number.
    pub fn places(&self) -> Places {
        let mut names = HashMap::new();
        for name in Namespace::names() {
            if let Ok(open) = Namespace::open(Some(&name)) {
                names.insert(open.inode, open);
            }
        }
        let own = Namespace::open(None).ok();
        Places { own, named: names, known: HashMap::new() }
    }
}

/// Names of interfaces. It keeps the namespaces open that had a name when it was made.
pub struct Places {
    own: Option<Namespace>,
    named: HashMap<u32, Namespace>,
    known: HashMap<(u32, u32), String>,
}

impl Places {
    /// The name of an interface in a namespace, or `-` for a packet without a device.
    pub fn name(&mut self, namespace: u32, interface: u32) -> &str {
        self.known.entry((namespace, interface)).or_insert_with(|| {
            let own = self.own.as_ref().filter(|own| own.inode == namespace);
            let open = own.or_else(|| self.named.get(&namespace));
            let device =
                open.and_then(|open| open.name_of(interface)).unwrap_or_else(|| format!("#{interface}"));
            match open {
                _ if interface == 0 => "-".into(),
                Some(Namespace { name: Some(name), .. }) => format!("{name}/{device}"),
                Some(_) => device,
                None => format!("{namespace}/{device}"),
            }
        })
    }
}

/// The kind of the program that a point has, where the kernel counts what it missed.
fn program_of(at: &At, kind: Option<u16>) -> Option<u16> {
    match at {
        At::Interface { side, .. } => side.tracepoint().and_then(attach::kind_of_tracepoint),
        _ => kind,
    }
}

/// An error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

impl AsFd for Tracer {
    /// What becomes readable when the ring fills.
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.ring.as_fd()
    }
}
