//! Attaches the programs of `reporter/ebpf/` to a running kernel and reads their records. Needs Linux and the
//! feature `ebpf`.

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

pub use cost::{Cost, measure_costs};
pub use maps::PointBooks;
pub use probe::{TracePointOffer, probe_points};
pub use tai::tai_now;

use crate::packet_trace::btf;
use crate::packet_trace::counts::{Books, FlowAt, FlowCount};
use crate::packet_trace::digest::Sampling;
use crate::packet_trace::matching::{FilterTable, TABLE};
use crate::packet_trace::point::At;
use crate::packet_trace::record::{RECORD, TraceRecord};
use attach::{Attachment, Programs};
use maps::{KernelSettings, Slots};
use namespace::Namespace;
use own::UserProgram;

/// The programs, built by `make ebpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../ebpf/trace.bpf.o");

/// Most points of a tracer. Removed points keep their numbers until these are needed.
pub const POINTS: usize = 256;

/// Size of the kernel's table of flows at points.
pub const FLOWS: usize = 16_384;

/// Length of a record in the kernel's ring, with its header.
const RING_ENTRY: usize = 8 + RECORD;

/// How often namespaces are checked: the kernel does not report when one ends.
const LOOK: Duration = Duration::from_millis(500);

/// Why tracing does not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("tracing needs {}, which the program lacks; run it as root or grant them", .0.join(", "))]
    Rights(Vec<&'static str>),
    /// The kernel does not describe its types.
    #[error("the kernel has no BTF ({path}: {0}); it needs CONFIG_DEBUG_INFO_BTF", path = btf::PATH)]
    NoBtf(String),
    /// The object cannot be loaded.
    #[error("cannot load the programs into this kernel: {0}")]
    Load(String),
    /// A point cannot be attached.
    #[error("cannot attach {at}: {why}")]
    Attach {
        at: At,
        /// Why not, and an alternative.
        why: String,
    },
    /// There are too many points.
    #[error("there are {POINTS} points already")]
    TooMany,
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
}

fn system_error(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::System(what, error)
}

#[derive(Clone, Debug)]
pub struct TracerOptions {
    pub table: FilterTable,
    pub sampling: Sampling,
    /// Whether to track packets through address translation, by their buffers.
    pub follow: bool,
    /// Attach to interfaces by clsact even if the kernel has tcx.
    pub clsact: bool,
    /// Destination of the reports. Datagrams to and from there, RoCEv2 to and from that address, and ICMP errors about
    /// these are excluded, and counted as [`own`](crate::packet_trace::counts::Books::own): tracing them would generate
    /// reports about reports without end.
    pub translator: Option<SocketAddrV4>,
    /// Size of the ring in bytes; a power of two and whole pages.
    pub ring: u32,
    /// Another build of the programs instead of the embedded one.
    pub object: Option<Arc<[u8]>>,
}

impl Default for TracerOptions {
    fn default() -> Self {
        Self {
            table: FilterTable::match_all(),
            sampling: Sampling::ALL,
            follow: true,
            clsact: false,
            translator: None,
            ring: 4 << 20,
            object: None,
        }
    }
}

pub struct TracerPoint {
    pub at: At,
    pub number: u16,
    attached: Option<Attachment>,
    wanted: bool,
    /// The kind's index in the settings, for a point that sees all interfaces' packets.
    kind: Option<u16>,
}

impl TracerPoint {
    /// Whether it is currently attached: its interface may be gone.
    pub fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// Whether it is still wanted.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }
}

/// Programs in the kernel, with the points that they are attached to. Dropping this detaches them all.
pub struct Tracer {
    // Before the programs, so that points are detached first.
    points: Vec<TracerPoint>,
    own: Vec<UserProgram>,
    programs: Programs,
    ebpf: Ebpf,
    ring: RingBuf<MapData>,
    /// Records that fit into the ring.
    room: usize,
    settings: KernelSettings,
    slots: Slots,
    namespaces: Vec<Namespace>,
    kernel: btf::Kernel,
    looked: Instant,
    ahead: tai::Ahead,
    /// By a program's kind, the point that reports what it missed, and the count before: points of several interfaces share
    /// a program, and a program is reused for other points.
    missed: BTreeMap<u16, (u16, u64)>,
    /// Counters of points that have lost their number.
    gone: Books,
}

impl Tracer {
    /// Loads the programs, and detaches what a dead tracer left on interfaces.
    pub fn start(options: &TracerOptions) -> Result<Self, Error> {
        let missing =
            rights::missing_capabilities(false).map_err(system_error("cannot read capabilities"))?;
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
            .map_err(|error| Error::Load(error_chain(&error)))?;
        let ring = ebpf.take_map("ring").ok_or_else(|| Error::Load("the object has no map `ring`".into()))?;
        let ring = RingBuf::try_from(ring).map_err(|error| Error::Load(error_chain(&error)))?;
        let own =
            Namespace::open(None).map_err(system_error("cannot open this process's network namespace"))?;
        attach::clear_stale(&own);
        for name in Namespace::list_names() {
            if let Ok(other) = Namespace::open(Some(&name)) {
                attach::clear_stale(&other);
            }
        }
        let mut tracer = Self {
            points: Vec::new(),
            own: Vec::new(),
            programs: Programs::new(types, options.clsact),
            settings: KernelSettings::new(options.ring / 4, options.translator),
            slots: Slots::default(),
            ebpf,
            ring,
            room: options.ring as usize / RING_ENTRY,
            namespaces: vec![own],
            kernel,
            looked: Instant::now(),
            ahead: tai::Ahead::measure_best(),
            missed: BTreeMap::new(),
            gone: Books::default(),
        };
        tracer.settings.follow = options.follow;
        tracer.settings.sampling = options.sampling;
        tracer.set_filter(&options.table)?;
        Ok(tracer)
    }

    /// Attaches a point and returns its number. An existing one keeps its number.
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
                            Namespace::list_names().join(", ")
                        )
                    }
                    io::ErrorKind::PermissionDenied => {
                        format!("cannot enter the namespace ({error}); that needs CAP_SYS_ADMIN")
                    }
                    _ => format!("cannot enter the namespace: {error}"),
                },
            })?;
            // An unnamed namespace was not yet known when the tracer started.
            attach::clear_stale(&open);
            self.namespaces.push(open);
        }
        let number = self.free_number()?;
        let mut point = TracerPoint { at: at.clone(), number, attached: None, wanted: true, kind: None };
        self.attach_point(&mut point).map_err(|why| Error::Attach { at: at.clone(), why })?;
        let place = usize::from(number);
        if place == self.points.len() {
            self.points.push(point);
        } else {
            self.gone.add(&self.read_point_books(&self.points[place])?.total);
            maps::clear_books(&mut self.ebpf, number).map_err(Error::Load)?;
            self.points[place] = point;
        }
        Ok(number)
    }

    /// A free number or, if there is none, that of a removed point.
    fn free_number(&self) -> Result<u16, Error> {
        if self.points.len() < POINTS {
            return Ok(self.points.len() as u16);
        }
        let gone = self.points.iter().find(|point| !point.wanted);
        gone.map(|point| point.number).ok_or(Error::TooMany)
    }

    /// Removes a point. Its counters stay until another point needs its number.
    pub fn detach(&mut self, at: &At) {
        let Some(point) = self.points.iter_mut().find(|point| point.wanted && point.at == *at) else {
            return;
        };
        point.wanted = false;
        point.attached = None;
        let number = point.number;
        let kind = point.kind.take();
        if let Some(place) = self.own.iter().position(|own| own.number == number) {
            self.gone.add(&self.own.swap_remove(place).books);
        }
        self.pass_missed_on(number);
        if let Some(kind) = kind {
            self.programs.free_kind(kind);
            self.settings.free_kind(kind);
            // The program no longer runs, or only for the points of interfaces.
            let _ = self.settings.write_to_map(&mut self.ebpf);
        }
        self.write_slots();
    }

    /// For a point being removed: another point of the same program now reports what the program misses.
    fn pass_missed_on(&mut self, number: u16) {
        let Some((&kind, &(_, before))) = self.missed.iter().find(|(_, (of, _))| *of == number) else {
            return;
        };
        let now = self.programs.missed_runs(&self.ebpf, kind);
        self.gone.missed += now.saturating_sub(before);
        let other =
            self.points.iter().find(|point| point.wanted && program_of(&point.at, point.kind) == Some(kind));
        match other {
            Some(other) => self.missed.insert(kind, (other.number, now)),
            None => self.missed.remove(&kind),
        };
    }

    /// Forgets the flows counted at removed points, to make room.
    pub fn forget_flows_of_gone_points(&mut self) -> Result<(), Error> {
        for (at, _) in self.read_flows()? {
            if self.points.get(usize::from(at.point)).is_none_or(|point| !point.wanted) {
                self.forget_flow(&at)?;
            }
        }
        Ok(())
    }

    /// Attaches an unattached point. Its number is in the kernel before the first packet arrives.
    fn attach_point(&mut self, point: &mut TracerPoint) -> Result<(), String> {
        if let At::Interface { namespace, name, side } = &point.at {
            let open = self.namespaces.iter().find(|open| open.name == *namespace);
            let open = open.ok_or("its namespace is gone")?;
            let links = open.list_links().map_err(|error| format!("cannot list interfaces: {error}"))?;
            let Some(link) = links.iter().find(|link| link.name == *name) else {
                let names: Vec<_> = links.iter().map(|link| link.name.as_str()).collect();
                return Err(format!("there is no interface {name:?}; there are: {}", names.join(", ")));
            };
            self.slots.add_slot(open.inode, link, *side, point.number);
            self.slots.write_to_map(&mut self.ebpf)?;
            let Self { programs, ebpf, kernel, .. } = self;
            point.attached = Some(programs.interface(ebpf, open, link, *side, kernel)?);
        } else if let At::Uprobe { file, function } = &point.at {
            point.attached = Some(Programs::attach_uprobe(&mut self.ebpf, file, function, point.number)?);
        } else if let At::Program(file) = &point.at {
            let (own, attached) =
                UserProgram::load_and_attach(file, point.number, self.programs.kernel_types())?;
            self.own.push(own);
            point.attached = Some(attached);
        } else {
            let kind = self.programs.allocate_kind(&point.at)?;
            self.settings.points[usize::from(kind)] = point.number;
            self.settings.write_to_map(&mut self.ebpf)?;
            match self.programs.elsewhere(&mut self.ebpf, &point.at, kind, &self.kernel) {
                Ok(attached) => point.attached = Some(attached),
                Err(why) => {
                    self.programs.free_kind(kind);
                    self.settings.free_kind(kind);
                    return self.settings.write_to_map(&mut self.ebpf).and(Err(why));
                }
            }
            point.kind = Some(kind);
        }
        if let Some(kind) = program_of(&point.at, point.kind) {
            let before = self.programs.missed_runs(&self.ebpf, kind);
            self.missed.entry(kind).or_insert((point.number, before));
        }
        Ok(())
    }

    pub fn points(&self) -> &[TracerPoint] {
        &self.points
    }

    /// Replaces the filter, between two packets.
    pub fn set_filter(&mut self, table: &FilterTable) -> Result<(), Error> {
        let index = self.settings.table ^ 1;
        let map = self.ebpf.map_mut("filter").ok_or_else(|| Error::Load("it has no filter".into()))?;
        let mut map: Array<_, [u8; TABLE]> =
            map.try_into().map_err(|error| Error::Load(error_chain(&error)))?;
        map.set(index, table.to_bytes(), 0).map_err(|error| Error::Load(error_chain(&error)))?;
        self.settings.table = index;
        self.settings.all = *table == FilterTable::match_all();
        self.settings.write_to_map(&mut self.ebpf).map_err(Error::Load)
    }

    /// Changes the share of packets that are reported.
    pub fn set_sampling(&mut self, sampling: Sampling) -> Result<(), Error> {
        self.settings.sampling = sampling;
        self.settings.write_to_map(&mut self.ebpf).map_err(Error::Load)
    }

    /// TAI minus UTC on this host in nanoseconds, a whole number of seconds. It applies to the records read from now until
    /// the next [`Tracer::wait_for_records`].
    pub fn tai_offset(&self) -> i64 {
        self.ahead.tai_offset()
    }

    /// Waits for records, at most this long, reattaches points whose interfaces came back, and follows the clock. May
    /// return early without records. Call [`Tracer::read`] each time, several hundred times a second: the kernel wakes this
    /// process only when the ring fills up.
    pub fn wait_for_records(&mut self, timeout: Duration) -> Result<(), Error> {
        let timeout = Timespec::try_from(timeout).ok();
        let mut waits = vec![PollFd::new(&self.ring, PollFlags::IN)];
        waits.extend(self.own.iter().map(|own| PollFd::new(&own.ring, PollFlags::IN)));
        waits.extend(self.namespaces.iter().map(|namespace| {
            let events = namespace.event_fd();
            PollFd::from_borrowed_fd(events, PollFlags::IN)
        }));
        match rustix::event::poll(&mut waits, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::System("cannot wait for records", error.into())),
        }
        drop(waits);
        self.ahead.follow_clock();
        self.follow_interfaces();
        Ok(())
    }

    /// Passes the records in the rings to `each`, and returns their number. Reads at most one filling of each ring, so it
    /// ends even if records arrive faster than they are read.
    pub fn read(&mut self, mut each: impl FnMut(TraceRecord)) -> usize {
        let mut count = 0;
        for _ in 0..self.room {
            let Some(bytes) = self.ring.next() else { break };
            if let Some(mut record) = TraceRecord::read(&bytes) {
                record.time = self.ahead.tai_at_monotonic(record.time);
                each(record);
                count += 1;
            }
        }
        for own in &mut self.own {
            own.read(&self.settings, |mut record| {
                record.time = self.ahead.tai_at_monotonic(record.time);
                each(record);
                count += 1;
            });
        }
        count
    }

    fn follow_interfaces(&mut self) {
        let mut changed: Vec<Option<String>> =
            self.namespaces.iter().filter(|open| open.has_changed()).map(|open| open.name.clone()).collect();
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            changed.extend(self.follow_namespaces());
        }
        for name in changed {
            self.follow_namespace(name.as_deref());
        }
    }

    /// Closes namespaces that ended, opens those that came back, and returns the names of both.
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
            let is = namespace::namespace_inode(&name).ok();
            let place = self.namespaces.iter().position(|open| open.name.as_ref() == Some(&name));
            if is == place.map(|place| self.namespaces[place].inode) {
                continue;
            }
            // An open file would keep the namespace alive, with its interfaces.
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
        let links = open.and_then(|open| open.list_links().ok()).unwrap_or_default();
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
            self.slots.remove_point(point.number);
            if is.is_some() {
                // If that fails, the point stays; the next change tries again.
                let _ = self.attach_point(point);
            }
        }
        self.points = points;
        self.write_slots();
    }

    fn write_slots(&mut self) {
        for point in self.points.iter().filter(|point| point.attached.is_none()) {
            self.slots.remove_point(point.number);
        }
        let _ = self.slots.write_to_map(&mut self.ebpf);
    }

    pub fn read_books(&self) -> Result<Vec<PointBooks>, Error> {
        self.points.iter().map(|point| self.read_point_books(point)).collect()
    }

    /// Counters of all packets, including those at removed points.
    pub fn total_books(&self) -> Result<Books, Error> {
        let mut sum = self.gone;
        self.read_books()?.iter().for_each(|point| sum.add(&point.total));
        Ok(sum)
    }

    fn read_point_books(&self, point: &TracerPoint) -> Result<PointBooks, Error> {
        if let Some(own) = self.own.iter().find(|own| own.number == point.number) {
            return Ok(PointBooks { point: point.number, total: own.books, cpus: vec![own.books] });
        }
        let entry = self.missed.iter().find(|(_, (number, _))| *number == point.number);
        let missed = entry.map_or(0, |(kind, (_, before))| {
            self.programs.missed_runs(&self.ebpf, *kind).saturating_sub(*before)
        });
        maps::read_books(&self.ebpf, point.number, missed).map_err(Error::Load)
    }

    /// Counts of each flow since it was first seen, in no particular order.
    pub fn read_flows(&self) -> Result<Vec<(FlowAt, FlowCount)>, Error> {
        maps::read_flows(&self.ebpf).map_err(Error::Load)
    }

    /// Forgets a flow, to make room. Counts since the last read are lost, so choose idle flows.
    pub fn forget_flow(&mut self, at: &FlowAt) -> Result<(), Error> {
        maps::forget_flow(&mut self.ebpf, at).map_err(Error::Load)
    }

    /// The running kernel's names of drop reasons.
    pub fn kernel(&self) -> &btf::Kernel {
        &self.kernel
    }

    /// Names of interfaces, for people: `pod1/eth0`, or `eth0` in the program's own namespace. Unnamed
    /// namespaces and interfaces are shown by number.
    pub fn interface_names(&self) -> InterfaceNames {
        let mut names = HashMap::new();
        for name in Namespace::list_names() {
            if let Ok(open) = Namespace::open(Some(&name)) {
                names.insert(open.inode, open);
            }
        }
        let own = Namespace::open(None).ok();
        InterfaceNames { own, named: names, known: HashMap::new() }
    }
}

/// Names of interfaces. It keeps the namespaces open that had a name when it was created.
pub struct InterfaceNames {
    own: Option<Namespace>,
    named: HashMap<u32, Namespace>,
    known: HashMap<(u32, u32), String>,
}

impl InterfaceNames {
    /// The name of an interface in a namespace, or `-` for a packet without a device.
    pub fn interface_name(&mut self, namespace: u32, interface: u32) -> &str {
        self.known.entry((namespace, interface)).or_insert_with(|| {
            let own = self.own.as_ref().filter(|own| own.inode == namespace);
            let open = own.or_else(|| self.named.get(&namespace));
            let device = open
                .and_then(|open| open.interface_name(interface))
                .unwrap_or_else(|| format!("#{interface}"));
            match open {
                _ if interface == 0 => "-".into(),
                Some(Namespace { name: Some(name), .. }) => format!("{name}/{device}"),
                Some(_) => device,
                None => format!("{namespace}/{device}"),
            }
        })
    }
}

/// The kind of a point's program, if the kernel counts what it missed.
fn program_of(at: &At, kind: Option<u16>) -> Option<u16> {
    match at {
        At::Interface { side, .. } => side.tracepoint().and_then(attach::kind_of_tracepoint),
        _ => kind,
    }
}

/// An error with its causes on one line.
fn error_chain(error: &dyn std::error::Error) -> String {
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
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.ring.as_fd()
    }
}
