//! Compares the software NIC with the kernel's soft-RoCE, or AF_XDP with AF_PACKET: both execute the same frames,
//! from the same veth pair, one after the other.
//!
//! A sender on one end of the pair sends a fixed number of prepared frames, in bursts, with at most a few bursts in
//! flight, so that nothing is lost. Each frame has its own slot in the NIC's memory, and every slot is checked
//! afterwards: a frame that did not land is an error, not a faster run.
//!
//! Sender and NIC share one CPU, and the sender yields it while it waits. CPU time is that of the whole machine,
//! because soft-RoCE works in the sender's context (a frame sent on a veth pair is received in the same softirq),
//! where a process's own time says nothing. The cost of sending alone is measured in the same way with the same
//! frames to an Ethernet address that nobody has, which the receiving end drops at once; the rest is the NIC's: the
//! path up through the kernel, its work, and its answers. Sender and NICs take turns, and the best of each counts.

mod case;
mod cpu;
mod pair;
mod posting;
mod show;
mod turn;

use crate::ground::{FrameSender, NicKind};
use dta_link::SocketKind;
use serde::Serialize;

pub use case::{CASES, VethCase};
pub use posting::POSTING_CASES;
pub use show::render_figures;

use pair::VethPair;
use posting::OperationCost;
use turn::{Measured, Turn};

#[derive(Clone, Copy, Debug)]
pub struct Length {
    /// Frames of one turn: a power of two, at least 64.
    pub frames: u64,
    /// Turns of sender and NICs.
    pub turns: u32,
}

impl Length {
    /// The settings of the project's figures.
    pub const FULL: Self = Self { frames: 1 << 14, turns: 8 };
    /// To see that it works, and roughly how fast.
    pub const QUICK: Self = Self { frames: 1 << 12, turns: 1 };
}

/// One figure. Names are `CASE.NIC`, and `CASE.soft/rxe`, `CASE.xdp/soft`, `CASE.runs/plain` or `CASE.posted/frames`
/// for comparisons; `xdp` is the software NIC with both ends on AF_XDP, `runs` and `plain` are soft-RoCE, which gets
/// frames by UDP sockets. `posted` and `frames` are a translator's engine and link; the CPU time of
/// `all-posted/all-frames` is the whole machine's, and without `all` that of tasks alone, without softirqs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VethFigure {
    pub name: String,
    /// `ops/s`, operations per second with the sender on the same CPU; or `ns/op`, CPU time per operation without the
    /// sender's (in `xdp/soft` and `runs/plain` with it).
    pub unit: &'static str,
    pub value: f64,
    /// The sender's alone; in comparisons, the figure of the name after the slash.
    pub floor: f64,
    /// `value / floor`; `None` if the floor is 0, as a NIC's CPU time may seem to be on a machine that does other
    /// things.
    pub ratio: Option<f64>,
}

impl VethFigure {
    fn new(name: String, unit: &'static str, value: f64, floor: f64) -> VethFigure {
        VethFigure { name, unit, value, floor, ratio: (floor > 0.0).then(|| value / floor) }
    }

    /// Whether it compares frames per second by AF_XDP and AF_PACKET, and AF_XDP has fewer.
    pub fn is_xdp_slower(&self) -> bool {
        self.unit == "ops/s"
            && self.name.ends_with(".xdp/soft")
            && self.name.contains("write")
            && self.ratio.is_none_or(|ratio| ratio < 1.0)
    }

    /// Whether it compares the CPU time of a write on the two NICs, and the software NIC takes at least as much as
    /// soft-RoCE.
    pub fn is_soft_slower(&self) -> bool {
        self.unit == "ns/op"
            && self.name.ends_with(".soft/rxe")
            && self.name.contains("write")
            && self.ratio.is_none_or(|ratio| ratio >= 1.0)
    }
}

/// Names of the cases with a NIC.
pub fn case_names(nic: NicKind) -> impl Iterator<Item = &'static str> {
    let posting: &[_] = if nic == NicKind::Rxe { &POSTING_CASES } else { &[] };
    CASES.iter().map(|case| case.name).chain(posting.iter().map(|case| case.name))
}

/// Measures the cases whose names satisfy `wanted`: with `NicKind::Rxe` both NICs, with `NicKind::Soft` only the
/// software NIC. Needs root: it makes a veth pair, and removes it afterwards. Calls `progress` with what comes next.
///
/// # Errors
/// The pair or the device cannot be made, a NIC refuses, or frames did not land.
pub fn run(
    nic: NicKind,
    length: &Length,
    wanted: impl Fn(&str) -> bool,
    mut progress: impl FnMut(&str),
) -> anyhow::Result<Vec<VethFigure>> {
    super::harness::pin_to_current_cpu();
    let pair = VethPair::set_up()?;
    if nic == NicKind::Rxe {
        crate::ground::load_rxe_module()?;
    }
    let mut turn = Turn::new(&pair, length.frames)?;
    let mut rows = Vec::new();
    for case in CASES.iter().filter(|case| wanted(case.name)) {
        progress(case.what);
        let (mut sender, mut soft) = (Measured::MAX, Measured::MAX);
        // The NIC that the software NIC is compared with, and the cost of sending alone there.
        let (mut other_sender, mut other) = (Measured::MAX, Measured::MAX);
        // Frames by UDP sockets to soft-RoCE.
        let (mut plain, mut runs) = (Measured::MAX, Measured::MAX);
        for _ in 0..length.turns {
            sender = sender.min_with(turn.send_to_nobody(case, SocketKind::Packet)?);
            soft = soft.min_with(turn.send_to_soft_nic(case, SocketKind::Packet)?);
            match nic {
                NicKind::Rxe => {
                    other = other.min_with(turn.send_raw_to_rxe(case)?);
                    plain = plain.min_with(turn.rxe_by_sockets(case, false)?);
                    runs = runs.min_with(turn.rxe_by_sockets(case, true)?);
                }
                NicKind::Soft => {
                    other_sender = other_sender.min_with(turn.send_to_nobody(case, SocketKind::Xdp)?);
                    other = other.min_with(turn.send_to_soft_nic(case, SocketKind::Xdp)?);
                }
            }
        }
        let rate = |m: Measured| 1e9 / m.took;
        let cost = |m: Measured, sender: Measured| (m.busy - sender.busy).max(0.0);
        let mut push = |nic, unit, value, floor| {
            rows.push(VethFigure::new(format!("{}.{nic}", case.name), unit, value, floor));
        };
        push("soft", "ops/s", rate(soft), rate(sender));
        push("soft", "ns/op", cost(soft, sender), sender.busy);
        match nic {
            NicKind::Rxe => {
                push("rxe", "ops/s", rate(other), rate(sender));
                push("rxe", "ns/op", cost(other, sender), sender.busy);
                push("soft/rxe", "ops/s", rate(soft), rate(other));
                push("soft/rxe", "ns/op", cost(soft, sender), cost(other, sender));
                // Sender and NIC together.
                push("runs/plain", "ops/s", rate(runs), rate(plain));
                push("runs/plain", "ns/op", runs.busy, plain.busy);
            }
            NicKind::Soft => {
                push("xdp", "ops/s", rate(other), rate(other_sender));
                push("xdp", "ns/op", cost(other, other_sender), other_sender.busy);
                // Sender and NIC together: with AF_XDP, both differ from AF_PACKET.
                push("xdp/soft", "ops/s", rate(other), rate(soft));
                push("xdp/soft", "ns/op", other.busy, soft.busy);
            }
        }
    }
    for case in POSTING_CASES.iter().filter(|case| nic == NicKind::Rxe && wanted(case.name)) {
        progress(case.what);
        let (mut posted, mut frames) = (OperationCost::MAX, OperationCost::MAX);
        for _ in 0..length.turns {
            frames = frames.min_with(posting::measure(case, FrameSender::Soft, length.frames)?);
            posted = posted.min_with(posting::measure(case, FrameSender::Rxe, length.frames)?);
        }
        for (name, posted, frames) in
            [("posted/frames", posted.tasks, frames.tasks), ("all-posted/all-frames", posted.all, frames.all)]
        {
            let name = format!("{}.{name}", case.name);
            rows.push(VethFigure::new(name.clone(), "ops/s", 1e9 / posted.took, 1e9 / frames.took));
            rows.push(VethFigure::new(name, "ns/op", posted.busy, frames.busy));
        }
    }
    Ok(rows)
}
