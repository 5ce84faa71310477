//! The programs and what they are attached to. Errors state the reason and an alternative.

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Weak};

use aya::programs::tc::{self, NlOptions, TcAttachOptions};
use aya::programs::tp_btf::BtfTracePointLink;
use aya::programs::uprobe::{UProbeAttachPoint, UProbeScope};
use aya::programs::{
    BtfTracePoint, FEntry, KProbe, LinkOrder, Program, ProgramError, SchedClassifier, TcAttachType, UProbe,
    Xdp, XdpMode,
};
use aya::{Btf, Ebpf};

use super::error_chain;
use super::namespace::{Link, Namespace};
use crate::packet_trace::btf;
use crate::packet_trace::point::{At, InterfaceSide};
use crate::packet_trace::record::AttachmentKind;

const CLASSIFIERS: [(InterfaceSide, TcAttachType, &str); 2] = [
    (InterfaceSide::Ingress, TcAttachType::Ingress, "dta_ingress"),
    (InterfaceSide::Egress, TcAttachType::Egress, "dta_egress"),
];

/// Programs per kind of function.
const FUNCTIONS: u16 = 4;

/// An attached program, detached on drop.
pub(super) struct Attachment {
    /// Namespace and index of the interface, if it is one.
    pub(super) place: Option<(u32, u32)>,
    link: Option<Box<dyn Any + Send>>,
    /// Where a clsact filter must be removed; the kernel's links can be ended from anywhere.
    inside: Option<Namespace>,
}

impl Attachment {
    /// An attachment to anything but an interface.
    pub(super) fn elsewhere(link: impl Any + Send) -> Self {
        Self { place: None, link: Some(Box::new(link)), inside: None }
    }

    /// Whether the kernel detaches it with the program, whatever happens.
    pub(super) fn is_link(&self) -> bool {
        self.inside.is_none()
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        match (self.link.take(), &self.inside) {
            // If the namespace ended, so did the filter.
            (Some(link), Some(inside)) => drop(inside.run(move || drop(link))),
            (link, _) => drop(link),
        }
    }
}

pub(super) struct Programs {
    types: Btf,
    clsact: bool,
    /// Which of the kinds for functions are in use.
    functions: [bool; 2 * FUNCTIONS as usize],
    /// Attached tracepoints; points of several interfaces share one.
    tracepoints: HashMap<String, Weak<BtfTracePointLink>>,
}

impl Programs {
    pub(super) fn new(types: Btf, clsact: bool) -> Self {
        Self { types, clsact, functions: [false; 2 * FUNCTIONS as usize], tracepoints: HashMap::new() }
    }

    pub(super) fn kernel_types(&self) -> &Btf {
        &self.types
    }

    /// The kind's number, for a point that is not an interface.
    pub(super) fn allocate_kind(&mut self, at: &At) -> Result<u16, String> {
        let first = match at {
            At::Tracepoint(name) => {
                return kind_of_tracepoint(name).ok_or_else(|| "there is no program for it".into());
            }
            At::Fentry(_) => 0,
            At::Kprobe(_) => FUNCTIONS,
            _ => return Err("it has no kind of its own".into()),
        };
        let free = (first..first + FUNCTIONS).find(|place| !self.functions[usize::from(*place)]);
        let free = free.ok_or_else(|| format!("already tracing {FUNCTIONS} functions of this kind"))?;
        self.functions[usize::from(free)] = true;
        Ok(AttachmentKind::Function as u16 + free)
    }

    pub(super) fn free_kind(&mut self, kind: u16) {
        if let Some(place) = kind.checked_sub(AttachmentKind::Function as u16) {
            self.functions[usize::from(place)] = false;
        }
    }

    pub(super) fn interface(
        &mut self,
        ebpf: &mut Ebpf,
        namespace: &Namespace,
        link: &Link,
        side: InterfaceSide,
        kernel: &btf::Kernel,
    ) -> Result<Attachment, String> {
        let place = Some((link.index, namespace.inode));
        if let Some(name) = side.tracepoint() {
            let link = self.tracepoint(ebpf, name, kernel)?;
            return Ok(Attachment { place, link: Some(link), inside: None });
        }
        let Some((_, direction, name)) = CLASSIFIERS.iter().find(|(of, ..)| *of == side) else {
            let attached = self.attach_xdp(ebpf, namespace, link)?;
            return Ok(Attachment { place, link: Some(attached), inside: None });
        };
        let program: &mut SchedClassifier = find_program(ebpf, name)?;
        if program.fd().is_err() {
            program
                .load()
                .map_err(|error| format!("the kernel refuses the program: {}", error_chain(&error)))?;
        }
        if !self.clsact {
            let options = TcAttachOptions::TcxOrder(LinkOrder::first());
            let attached = namespace
                .run(|| program.attach_with_options(&link.name, *direction, options))
                .map_err(|error| format!("cannot enter its namespace: {error}"))?;
            match attached {
                Ok(id) => {
                    let attached = program.take_link(id).map_err(|error| error_chain(&error))?;
                    return Ok(Attachment { place, link: Some(Box::new(attached)), inside: None });
                }
                // A kernel before 6.6.
                Err(error) if os_error_number(&error) == Some(EINVAL) => {}
                Err(error) => return Err(format!("tcx: {}; {INSTEAD_OF_INTERFACE}", error_chain(&error))),
            }
        }
        let attached = namespace
            .run(|| {
                // It may already exist, with others' filters.
                let _ = tc::qdisc_add_clsact(&link.name);
                let options = TcAttachOptions::Netlink(NlOptions { priority: 1, ..NlOptions::default() });
                let id = program.attach_with_options(&link.name, *direction, options)?;
                program.take_link(id)
            })
            .map_err(|error| format!("cannot enter its namespace: {error}"))?
            .map_err(|error| format!("clsact: {}; {INSTEAD_OF_INTERFACE}", error_chain(&error)))?;
        let again = Namespace::open(namespace.name.as_deref()).map_err(|error| error.to_string())?;
        Ok(Attachment { place, link: Some(Box::new(attached)), inside: Some(again) })
    }

    fn attach_xdp(
        &self,
        ebpf: &mut Ebpf,
        namespace: &Namespace,
        link: &Link,
    ) -> Result<Box<dyn Any + Send>, String> {
        let program: &mut Xdp = find_program(ebpf, "dta_xdp")?;
        if program.fd().is_err() {
            program
                .load()
                .map_err(|error| format!("the kernel refuses the program: {}", error_chain(&error)))?;
        }
        let instead = format!("iface:{}/ingress sees the same packets a little later", link.name);
        let attached = namespace
            .run(|| program.attach_to_if_index(link.index, XdpMode::Driver))
            .map_err(|error| format!("cannot enter its namespace: {error}"))?;
        let id = attached.map_err(|error| match os_error_number(&error) {
            Some(EOPNOTSUPP) => format!("the interface's driver has no native XDP; {instead}"),
            Some(EBUSY) => format!("another XDP program is on the interface; {instead}"),
            _ => format!("XDP: {}; {instead}", error_chain(&error)),
        })?;
        Ok(Box::new(program.take_link(id).map_err(|error| error_chain(&error))?))
    }

    /// Attaches to a tracepoint or a function.
    pub(super) fn elsewhere(
        &mut self,
        ebpf: &mut Ebpf,
        at: &At,
        kind: u16,
        kernel: &btf::Kernel,
    ) -> Result<Attachment, String> {
        let link = match at {
            At::Tracepoint(name) => self.tracepoint(ebpf, name, kernel)?,
            At::Fentry(function) => self.attach_fentry(ebpf, function, kind)?,
            At::Kprobe(function) => attach_kprobe(ebpf, function, kind)?,
            _ => return Err("it is attached otherwise".into()),
        };
        Ok(Attachment { place: None, link: Some(link), inside: None })
    }

    fn tracepoint(
        &mut self,
        ebpf: &mut Ebpf,
        name: &str,
        kernel: &btf::Kernel,
    ) -> Result<Box<dyn Any + Send>, String> {
        if !kernel.has_tracepoint(name) {
            return Err(format!("the kernel has no such tracepoint; {}", instead_of_tracepoint(name)));
        }
        if let Some(link) = self.tracepoints.get(name).and_then(Weak::upgrade) {
            return Ok(Box::new(link));
        }
        let program: &mut BtfTracePoint = find_program(ebpf, &format!("dta_{name}"))?;
        if program.fd().is_err() {
            let loaded = program.load(name, &self.types);
            loaded.map_err(|error| {
                format!(
                    "the kernel refuses the program: {}; {}",
                    error_chain(&error),
                    instead_of_tracepoint(name)
                )
            })?;
        }
        let id = program
            .attach()
            .map_err(|error| format!("{}; {}", error_chain(&error), instead_of_tracepoint(name)))?;
        let link = Arc::new(program.take_link(id).map_err(|error| error_chain(&error))?);
        self.tracepoints.insert(name.to_owned(), Arc::downgrade(&link));
        Ok(Box::new(link))
    }

    fn attach_fentry(
        &self,
        ebpf: &mut Ebpf,
        function: &str,
        kind: u16,
    ) -> Result<Box<dyn Any + Send>, String> {
        let name = format!("dta_fentry_{}", kind - AttachmentKind::Function as u16);
        let program: &mut FEntry = find_program(ebpf, &name)?;
        if program.fd().is_ok() {
            // It was loaded for another function before.
            program.unload().map_err(|error| error_chain(&error))?;
        }
        let instead = instead_of(function);
        program.load(function, &self.types).map_err(|error| match (&error, os_error_number(&error)) {
            (ProgramError::Btf(_), _) => format!("the kernel has no function {function:?} to trace; {instead}"),
            (_, Some(EPERM | EACCES)) => {
                format!("the kernel does not allow attaching programs to functions (locked down, or without ftrace); {instead}")
            }
            (_, Some(ENOTSUPP | EOPNOTSUPP)) => format!("the kernel has no fentry on this processor; kprobe:{function} may do"),
            _ => format!("fentry: {}; {instead}", error_chain(&error)),
        })?;
        let id = program.attach().map_err(|error| format!("fentry: {}; {instead}", error_chain(&error)))?;
        Ok(Box::new(program.take_link(id).map_err(|error| error_chain(&error))?))
    }

    /// Attaches to a function in user space, in all processes. The program learns the point's number from the
    /// attachment.
    pub(super) fn attach_uprobe(
        ebpf: &mut Ebpf,
        file: &str,
        function: &str,
        number: u16,
    ) -> Result<Attachment, String> {
        if !cfg!(target_arch = "x86_64") {
            return Err("programs for functions are built only for x86-64".into());
        }
        if !std::path::Path::new("/sys/bus/event_source/devices/uprobe").exists() {
            return Err("the kernel has no uprobes (CONFIG_UPROBE_EVENTS); tp:net_dev_queue sees packets that programs send".into());
        }
        let program: &mut UProbe = find_program(ebpf, "dta_uprobe")?;
        if program.fd().is_err() {
            program
                .load()
                .map_err(|error| format!("the kernel refuses the program: {}", error_chain(&error)))?;
        }
        let place = UProbeAttachPoint { location: function.into(), cookie: Some(number.into()) };
        let id = program.attach(place, file, UProbeScope::AllProcesses).map_err(|error| {
            format!(
                "{function} of {file}: {}; nm -D {file} lists functions of a library",
                error_chain(&error)
            )
        })?;
        let link = program.take_link(id).map_err(|error| error_chain(&error))?;
        Ok(Attachment::elsewhere(link))
    }

    /// How often the kernel skipped a program at a tracepoint or function because it was already running on
    /// that processor.
    pub(super) fn missed_runs(&self, ebpf: &Ebpf, kind: u16) -> u64 {
        let Some(name) = name_of_kind(kind) else { return 0 };
        let fd = match ebpf.program(&name) {
            Some(Program::BtfTracePoint(program)) => program.fd(),
            Some(Program::FEntry(program)) => program.fd(),
            Some(Program::KProbe(program)) => program.fd(),
            _ => return 0,
        };
        let Ok(fd) = fd else { return 0 };
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd()));
        let text = text.unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("recursion_misses:"));
        line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    }
}

const OF_TRACEPOINTS: [(AttachmentKind, &str); 5] = [
    (AttachmentKind::DevQueue, "net_dev_queue"),
    (AttachmentKind::DevStartXmit, "net_dev_start_xmit"),
    (AttachmentKind::NetifReceive, "netif_receive_skb"),
    (AttachmentKind::Kfree, "kfree_skb"),
    (AttachmentKind::Consume, "consume_skb"),
];

pub(super) fn kind_of_tracepoint(name: &str) -> Option<u16> {
    OF_TRACEPOINTS.iter().find(|(_, of)| *of == name).map(|(kind, _)| *kind as u16)
}

fn name_of_kind(kind: u16) -> Option<String> {
    let functions = AttachmentKind::Function as u16;
    let tracepoint = OF_TRACEPOINTS.into_iter().find(|(of, _)| *of as u16 == kind);
    match (tracepoint, kind.checked_sub(functions)) {
        (Some((_, name)), _) => Some(format!("dta_{name}")),
        (None, Some(place)) if place < FUNCTIONS => Some(format!("dta_fentry_{place}")),
        (None, Some(place)) => Some(format!("dta_kprobe_{}", place - FUNCTIONS)),
        (None, None) => None,
    }
}

fn attach_kprobe(ebpf: &mut Ebpf, function: &str, kind: u16) -> Result<Box<dyn Any + Send>, String> {
    let instead = instead_of(function);
    if !cfg!(target_arch = "x86_64") {
        return Err(format!("programs for kprobes are built only for x86-64; {instead}"));
    }
    if !std::path::Path::new("/sys/bus/event_source/devices/kprobe").exists() {
        return Err(format!("the kernel has no kprobes (CONFIG_KPROBE_EVENTS); {instead}"));
    }
    let program: &mut KProbe =
        find_program(ebpf, &format!("dta_kprobe_{}", kind - AttachmentKind::Function as u16 - FUNCTIONS))?;
    if program.fd().is_err() {
        program
            .load()
            .map_err(|error| format!("the kernel refuses the program: {}; {instead}", error_chain(&error)))?;
    }
    let id =
        program.attach(function, 0).map_err(|error| format!("kprobe: {}; {instead}", error_chain(&error)))?;
    Ok(Box::new(program.take_link(id).map_err(|error| error_chain(&error))?))
}

/// An alternative to an interface.
const INSTEAD_OF_INTERFACE: &str =
    "tp:net_dev_queue sees outgoing packets of all interfaces, tp:netif_receive_skb incoming ones";

/// An alternative to a tracepoint.
fn instead_of_tracepoint(name: &str) -> &'static str {
    match name {
        "net_dev_queue" | "net_dev_start_xmit" => {
            "iface:DEVICE/egress sees packets that leave through an interface"
        }
        "netif_receive_skb" => "iface:DEVICE/ingress sees packets that arrive through an interface",
        _ => "iface:DEVICE shows how far packets get, but no other point shows why one is dropped",
    }
}

/// An alternative to a function.
fn instead_of(function: &str) -> &'static str {
    if function.contains("xmit") || function.contains("output") || function.contains("send") {
        "tp:net_dev_queue sees packets that leave"
    } else if function.contains("free") || function.contains("drop") {
        "tp:kfree_skb sees packets that are dropped"
    } else {
        "tp:netif_receive_skb sees packets that arrive"
    }
}

fn find_program<'a, T>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut T, String>
where
    &'a mut T: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or_else(|| format!("the object has no program {name}"))?;
    program.try_into().map_err(|error: ProgramError| error_chain(&error))
}

const EPERM: i32 = 1;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;
const ENOTSUPP: i32 = 524;

/// The system's error number among the causes of an error.
fn os_error_number(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut cause = Some(error);
    while let Some(inner) = cause {
        if let Some(number) = inner.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(number);
        }
        cause = inner.source();
    }
    None
}

/// Removes clsact filters with our programs' names. Others' filters stay, and so does the empty qdisc.
pub(super) fn clear_stale(namespace: &Namespace) {
    let Ok(links) = namespace.list_links() else { return };
    let _ = namespace.run(|| {
        for link in &links {
            for (_, direction, name) in CLASSIFIERS {
                // Usually there is nothing to remove.
                let _ = tc::qdisc_detach_program(&link.name, direction, name);
            }
        }
    });
}
