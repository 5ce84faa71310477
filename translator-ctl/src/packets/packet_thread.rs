//! The thread that carries reports between links and engine, in batches.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant, SystemTime};

use dta_link::fault::FaultCounts;
use dta_link::shared_ring::End;
use dta_link::{IntakeLink, Link, LinkError, RingCounters, UdpLink};
use dta_memory::nic::NicError;
use dta_proto::batch::PacketBatch;
use tokio::sync::oneshot;
use tracing::warn;

use super::bell::Bell;
use super::device_link::DeviceCounters;
use super::int_side::{IntSide, MOST_LISTENERS};
use super::roce_link::{PacketTooLong, RoceLink};
use dta_dataplane::counters::{EngineCounters, Reason};
use dta_dataplane::workers::Crew;
use dta_dataplane::{
    Engine, EngineOutput, Offender, QueuePairStatus, ReporterCounters, ReporterStatus, SetupError,
};
use dta_proto::program::{DataPlaneChange, DataPlaneEntry, Program, Transport, apply_changes};
use dta_switch::DeviceSource;

/// Longest time that a command waits for the thread.
const IDLE: Duration = Duration::from_millis(5);
/// How long a worker waits for others to take what it has for them.
const FULL: Duration = Duration::from_micros(100);
/// How long a stop processes reports sent before it, and waits for an RC queue pair without progress.
const DRAIN: Duration = Duration::from_secs(1);
/// Longest time that a stop waits for RC queue pairs.
const LONGEST_DRAIN: Duration = Duration::from_secs(20);
const BATCH: usize = 128;
/// Longest datagram received: longer ones cannot be reports, and the link counts them.
const RECEIVED: usize = 2032;

/// Why changes cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum ProgramRefusal {
    /// The engine cannot hold it.
    #[error(transparent)]
    Engine(#[from] SetupError),
    /// The link cannot carry it.
    #[error(transparent)]
    Link(#[from] PacketTooLong),
    /// The RDMA device has no queue pair for it now.
    #[error(transparent)]
    Device(#[from] NicError),
}

/// Requests from the control side.
pub enum Command {
    /// Apply changes to the engine's program.
    Apply(Vec<DataPlaneChange>, oneshot::Sender<Result<(), ProgramRefusal>>),
    /// Check whether changes could be applied. Nothing changes.
    Check(Vec<DataPlaneChange>, oneshot::Sender<Result<(), ProgramRefusal>>),
    /// Set the reporters to accept (empty = all), and NACKs per second to one version-0 source.
    Reception(Vec<(u16, Ipv4Addr)>, u32, oneshot::Sender<()>),
    /// How far an earlier run of this translator had heard its reporters: id and newest sequence.
    Reporters(Vec<(u16, u32)>, oneshot::Sender<()>),
    /// If there is an RDMA device: return the source of its frames to a collector, whose writes use this transport.
    DeviceSource(u8, Transport, oneshot::Sender<Result<Option<DeviceSource>, NicError>>),
    /// Send frames to the NIC at the other end of a ring through it, from the answer on.
    Ring(Box<End>, oneshot::Sender<()>),
    /// Return whether frames to the NIC at this address go through a ring.
    HasRing(SocketAddrV4, oneshot::Sender<bool>),
    Flush(oneshot::Sender<u64>),
    Program(oneshot::Sender<Program>),
    Snapshot(oneshot::Sender<Box<Snapshot>>),
    /// Return the drops: one report for each reason since the last call.
    Drops(oneshot::Sender<Vec<Dropped>>),
    /// Process the reports received so far, and accept no more. Other workers may still hand some over.
    Quiesce(oneshot::Sender<()>),
    /// Flush, wait for acknowledgements, and end.
    Stop(oneshot::Sender<Box<Snapshot>>),
}

impl Command {
    /// Whether it changes nothing and nobody awaits its answer any more, for example after a cancelled call.
    fn is_unwanted(&self) -> bool {
        match self {
            Command::Check(_, reply) => reply.is_closed(),
            Command::HasRing(_, reply) => reply.is_closed(),
            Command::Flush(reply) => reply.is_closed(),
            Command::Program(reply) => reply.is_closed(),
            Command::Snapshot(reply) => reply.is_closed(),
            Command::Apply(..)
            | Command::Reception(..)
            | Command::Reporters(..)
            | Command::Ring(..)
            | Command::DeviceSource(..)
            | Command::Drops(_)
            | Command::Quiesce(_)
            | Command::Stop(_) => false,
        }
    }
}

/// The next command whose answer is awaited. Each turn executes one.
fn next(commands: &Receiver<Command>) -> Result<Command, TryRecvError> {
    loop {
        match commands.try_recv() {
            Ok(command) if command.is_unwanted() => {}
            next => return next,
        }
    }
}

/// Reports dropped for one reason.
#[derive(Clone, Copy, Debug)]
pub struct Dropped {
    pub reason: Reason,
    /// How many, since the translator started.
    pub total: u64,
    /// The first since the last call.
    pub first: Offender,
}

pub struct Snapshot {
    pub at: SystemTime,
    pub counters: EngineCounters,
    pub reporters: Vec<ReporterStatus>,
    pub evicted: ReporterCounters,
    /// Number of evictions: of reporters with more than one report, and of the others.
    pub evictions: (u64, u64),
    pub queue_pairs: Vec<QueuePairStatus>,
    /// Former regions with unacknowledged operations in flight.
    pub former_regions: usize,
    /// RoCEv2 packets that were no answers to us.
    pub answers_ignored: u64,
    /// Counters of INT and flows by their dotted names; empty without listeners for them.
    pub int: Vec<(String, u64)>,
    /// All INT listeners' links, summed.
    pub int_link: Option<dta_link::LinkCounters>,
    /// All links for flow exports, summed.
    pub flows_link: Option<dta_link::LinkCounters>,
    /// Link of reports and NACKs.
    pub reports_link: dta_link::LinkCounters,
    /// Link of frames and answers.
    pub roce_link: dta_link::LinkCounters,
    /// The part of the latter that went through rings.
    pub ring: RingCounters,
    /// What happened to the RDMA device that sends, if there is one.
    pub device: Option<DeviceCounters>,
    pub roce_faults: FaultCounts,
    pub nack_faults: FaultCounts,
    pub answer_faults: FaultCounts,
}

impl Snapshot {
    /// Adds another worker's counters, as if of one data plane.
    pub fn add(&mut self, other: Snapshot) {
        self.at = self.at.max(other.at);
        self.counters.add(&other.counters);
        // Only one worker hears a reporter.
        self.reporters.extend(other.reporters);
        self.evicted.add(&other.evicted);
        self.evictions.0 += other.evictions.0;
        self.evictions.1 += other.evictions.1;
        for pair in other.queue_pairs {
            let same = |q: &&mut QueuePairStatus| (q.collector, q.purpose) == (pair.collector, pair.purpose);
            match self.queue_pairs.iter_mut().find(same) {
                Some(own) => {
                    own.outstanding += pair.outstanding;
                    own.waiting += pair.waiting;
                    own.down |= pair.down;
                    own.counters.add(&pair.counters);
                }
                None => self.queue_pairs.push(pair),
            }
        }
        self.former_regions += other.former_regions;
        self.answers_ignored += other.answers_ignored;
        for (name, count) in other.int {
            match self.int.iter_mut().find(|(own, _)| *own == name) {
                Some((_, sum)) => *sum += count,
                None => self.int.push((name, count)),
            }
        }
        for (own, other) in [(&mut self.int_link, other.int_link), (&mut self.flows_link, other.flows_link)] {
            match (own, other) {
                (Some(own), Some(other)) => own.add(&other),
                (own, other) => *own = own.or(other),
            }
        }
        self.reports_link.add(&other.reports_link);
        self.roce_link.add(&other.roce_link);
        self.ring.add(&other.ring);
        if let (Some(own), Some(other)) = (&mut self.device, &other.device) {
            own.add(other);
        }
        self.roce_faults.add(&other.roce_faults);
        self.nack_faults.add(&other.nack_faults);
        self.answer_faults.add(&other.answer_faults);
    }
}

/// Additional state of one of several workers.
pub struct PacketThreadMember {
    crew: Crew,
    bell: Bell,
    /// Deadline for reports from before a stop, and who waits for it.
    closing: Option<(Instant, oneshot::Sender<()>)>,
    /// Whether it accepts no more reports from the network.
    is_closed: bool,
    /// Whether it waits for others to take what they were handed.
    is_blocked: bool,
}

impl PacketThreadMember {
    /// A worker that receives reports.
    pub fn new(crew: Crew, bell: Bell) -> PacketThreadMember {
        PacketThreadMember { crew, bell, closing: None, is_closed: false, is_blocked: false }
    }
}

pub struct PacketThread {
    pub reports: IntakeLink,
    /// Receives INT Telemetry Reports and flow exports.
    pub int: Option<IntSide>,
    pub roce: RoceLink,
    pub engine: Engine,
    /// The other workers, if any.
    pub member: Option<PacketThreadMember>,
    pub path: Box<dyn PacketPath>,
    /// Increases with each turn of this thread, to show that it is not stuck.
    pub turns: Arc<AtomicU64>,
    pub commands: Receiver<Command>,
}

#[derive(Debug, thiserror::Error)]
pub enum PacketThreadError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("cannot write the ledger: {0}")]
    Ledger(#[from] io::Error),
}

/// The path that packets take between engine and links.
pub trait PacketPath: Send {
    /// Sends the engine's frames and NACKs.
    ///
    /// # Errors
    /// A broken link.
    fn send_output(
        &mut self,
        out: &mut EngineOutput,
        engine: &mut Engine,
        roce: &mut RoceLink,
        reports: &mut UdpLink,
    ) -> Result<(), PacketThreadError>;

    /// The answers that reach the engine, of those received; called with an empty batch too.
    fn arriving_answers<'a>(&'a mut self, received: &'a mut PacketBatch) -> &'a mut PacketBatch {
        received
    }

    /// Called when there is nothing else to do.
    ///
    /// # Errors
    /// [`PacketThreadError::Ledger`].
    fn settle(&mut self) -> Result<(), PacketThreadError> {
        Ok(())
    }

    /// Sends what is left: nothing comes after it.
    ///
    /// # Errors
    /// As [`PacketPath::send_output`].
    fn close(
        &mut self,
        _engine: &mut Engine,
        _roce: &mut RoceLink,
        _reports: &mut UdpLink,
    ) -> Result<(), PacketThreadError> {
        Ok(())
    }

    /// Faults on frames, NACKs and answers.
    fn fault_counts(&self) -> [FaultCounts; 3] {
        Default::default()
    }
}

/// Packets leave as they are made.
pub struct DirectPath;

impl PacketPath for DirectPath {
    fn send_output(
        &mut self,
        out: &mut EngineOutput,
        engine: &mut Engine,
        roce: &mut RoceLink,
        reports: &mut UdpLink,
    ) -> Result<(), PacketThreadError> {
        roce.post_requests(out, engine);
        for batch in out.frames.batches_mut().iter_mut().filter(|batch| !batch.is_empty()) {
            roce.send(batch)?;
        }
        for batch in out.nacks.batches_mut().iter_mut().filter(|batch| !batch.is_empty()) {
            reports.send(batch)?;
        }
        Ok(())
    }
}

impl PacketThread {
    /// Runs until stopped.
    ///
    /// # Errors
    /// A broken link, or a ledger that cannot be written.
    pub fn run(mut self) -> Result<(), PacketThreadError> {
        let start = Instant::now();
        let now = || start.elapsed().as_nanos() as u64;
        let mut input = PacketBatch::with_packet_capacity(BATCH, RECEIVED);
        let mut out = EngineOutput::default();
        let mut settled = true;
        let mut programmed = false;
        let mut turns = 0;
        loop {
            turns += 1;
            // Nobody else writes it, and it orders no other reads.
            self.turns.store(turns, Ordering::Relaxed);
            match next(&self.commands) {
                Ok(Command::Stop(reply)) => {
                    self.stop_gracefully(&now, &mut input, &mut out)?;
                    let _ = reply.send(Box::new(self.take_snapshot()));
                    return Ok(());
                }
                Ok(command) => {
                    settled &= !matches!(command, Command::Apply(..));
                    self.handle_command(command, now(), &mut out);
                    programmed = programmed || self.has_queue_pair();
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    return self.stop_gracefully(&now, &mut input, &mut out);
                }
            }
            let mut received = 0;
            if !programmed {
                // Before the first session: reports wait in their socket until they can be sent somewhere.
            } else if settled {
                received = self.take_reports(now(), &mut input, &mut out)?;
                received += self.receive_telemetry(now(), &mut out)?;
            } else {
                // Reports wait in their socket until their frames can leave.
                settled = self.resolve_destinations()?;
            }
            self.write_due_counts(now(), self.engine.queue_headroom(), &mut out);
            self.stop_accepting(received == 0 || !programmed);
            received += self.take_answers(now(), &mut input, &mut out)?;
            self.engine.run_timers(now(), &mut out);
            self.send_output(&mut out)?;
            if received == 0 {
                self.wait_for_work(now(), programmed && settled)?;
            }
        }
    }

    /// Processes received reports, from the network and from other workers. Returns their number.
    fn take_reports(
        &mut self,
        now: u64,
        input: &mut PacketBatch,
        out: &mut EngineOutput,
    ) -> Result<usize, PacketThreadError> {
        let Some(member) = &mut self.member else {
            let received = self.reports.recv(input, Some(Duration::ZERO))?;
            if received != 0 {
                self.engine.ingest_packets(now, input.iter(), out);
            }
            return Ok(received);
        };
        let mut received = self.engine.take_handovers(now, &mut member.crew, out);
        member.is_blocked =
            !member.crew.has_room_for(self.int.as_ref().map_or(BATCH, |_| IntSide::ROOM_FOR_EVENTS));
        if !member.is_blocked && !member.is_closed {
            let count = self.reports.recv(input, Some(Duration::ZERO))?;
            if count != 0 {
                self.engine.ingest_among(now, input.iter(), &mut member.crew, out);
            }
            received += count;
        }
        member.bell.wake_workers(member.crew.take_news());
        Ok(received)
    }

    /// Stops accepting reports from the network, if requested and all earlier ones are processed, time
    /// permitting.
    fn stop_accepting(&mut self, nothing_came: bool) {
        let Some(member) = &mut self.member else { return };
        let is_blocked = member.is_blocked || self.int.as_ref().is_some_and(IntSide::is_blocked);
        let over = |(until, _): &mut (Instant, _)| (nothing_came && !is_blocked) || Instant::now() >= *until;
        if let Some((_, reply)) = member.closing.take_if(over) {
            member.is_closed = true;
            let _ = reply.send(());
        }
    }

    /// Processes received Telemetry Reports and flow exports.
    fn receive_telemetry(&mut self, now: u64, out: &mut EngineOutput) -> Result<usize, PacketThreadError> {
        let Some(int) = &mut self.int else { return Ok(0) };
        let Some(member) = &mut self.member else {
            return Ok(int.receive_datagrams(now, true, &mut self.engine, None, out)?);
        };
        if member.is_blocked {
            return Ok(0);
        }
        let accepts = !member.is_closed;
        let received = int.receive_datagrams(now, accepts, &mut self.engine, Some(&mut member.crew), out)?;
        member.bell.wake_workers(member.crew.take_news() | int.take_news());
        Ok(received)
    }

    /// Writes the flow counts that are due.
    fn write_due_counts(&mut self, now: u64, room: usize, out: &mut EngineOutput) {
        if let Some(int) = &mut self.int {
            int.write_due_counts(now, room, &mut self.engine, out);
        }
    }

    /// Writes the waiting flow counts as queue pairs have room, and after the time limit even without room.
    fn flush_int(
        &mut self,
        now: &impl Fn() -> u64,
        input: &mut PacketBatch,
        out: &mut EngineOutput,
    ) -> Result<(), PacketThreadError> {
        self.int.iter_mut().for_each(|int| int.start_flush(None));
        // Reports that the program dropped count even if there is no store for their counts, and so nothing to flush.
        self.write_due_counts(now(), 0, out);
        let until = now() + LONGEST_DRAIN.as_nanos() as u64;
        while self.int.as_ref().is_some_and(IntSide::is_flushing) {
            let is_idle = self.drain_queue_pairs(now, input, out)?;
            let room = if is_idle && now() < until { self.engine.queue_headroom() } else { usize::MAX };
            self.write_due_counts(now(), room, out);
            self.send_output(out)?;
        }
        Ok(())
    }

    /// Checks whether frames can be sent; warns if they will be lost.
    fn resolve_destinations(&mut self) -> Result<bool, PacketThreadError> {
        let settled = self.roce.resolve_destinations()?;
        if settled {
            for ip in self.roce.silent_destinations() {
                warn!(collector = %ip, "nobody on the link answers for this address: frames to it count as unreachable");
            }
        }
        Ok(settled)
    }

    /// Whether there is a queue pair to send frames on.
    fn has_queue_pair(&self) -> bool {
        self.engine.installed_program().entries().any(|entry| matches!(entry, DataPlaneEntry::QueuePair(_)))
    }

    /// Waits for something to do.
    fn wait_for_work(&mut self, now: u64, taking: bool) -> Result<(), PacketThreadError> {
        self.path.settle()?;
        let due = self.engine.next_deadline().map(|at| Duration::from_nanos(at.saturating_sub(now)));
        let wait = due.map_or(IDLE, |due| due.clamp(Duration::from_micros(50), IDLE));
        let PacketThread { roce, reports, int, member, .. } = self;
        let mut sockets = [reports.as_fd(); 2 + MOST_LISTENERS];
        let mut count = 0;
        let mut wait = wait;
        if let Some(member) = member {
            member.bell.announce_sleep();
            // Nobody rings when there is room again, so poll for it.
            let exports_wait = int.as_ref().is_some_and(IntSide::is_blocked);
            wait = if member.is_blocked || exports_wait { FULL } else { wait };
            let mut is_handed_over =
                || member.crew.waiting_reports() != 0 || int.as_ref().is_some_and(IntSide::is_handed_over);
            if taking && !member.is_blocked && is_handed_over() {
                member.bell.announce_awake();
                return Ok(());
            }
        }
        if taking {
            let idle = |member: &PacketThreadMember| member.is_blocked || member.is_closed;
            let is_idle = member.as_ref().is_some_and(idle);
            let inputs = std::iter::once(reports.as_fd()).chain(int.iter().flat_map(IntSide::sockets));
            let bell = member.as_ref().map(|member| member.bell.as_fd());
            for socket in inputs.filter(|_| !is_idle).chain(bell) {
                sockets[count] = socket;
                count += 1;
            }
        }
        roce.wait_for_answers(&sockets[..count], wait)?;
        if let Some(member) = member {
            member.bell.announce_awake();
        }
        Ok(())
    }

    fn take_answers(
        &mut self,
        now: u64,
        input: &mut PacketBatch,
        out: &mut EngineOutput,
    ) -> Result<usize, PacketThreadError> {
        let completions = self.roce.take_completions(now, &mut self.engine, out);
        let answers = completions + self.roce.recv(input, Some(Duration::ZERO))?;
        self.roce.log_ended_rings();
        // Called with an empty batch too: held answers may be due.
        let arriving = self.path.arriving_answers(input);
        if !arriving.is_empty() {
            self.engine.handle_answers(now, arriving.iter(), out);
        }
        Ok(answers)
    }

    fn handle_command(&mut self, command: Command, now: u64, out: &mut EngineOutput) {
        // The caller may be gone; then nobody misses the answer.
        match command {
            Command::Apply(changes, reply) => {
                let applied = self.apply_changes(now, &changes, out);
                // A refused program changes nothing, including destinations of frames.
                if applied.is_ok() {
                    self.roce.learn_destinations(&changes);
                    if let Some(int) = &mut self.int {
                        int.resolve_stores(self.engine.installed_program());
                    }
                }
                let _ = reply.send(applied);
            }
            Command::Check(changes, reply) => {
                let _ = reply.send(self.check_changes(&changes));
            }
            Command::Reception(listed, version0_nacks, reply) => {
                self.engine.list_reporters(&listed);
                self.engine.set_version0_nacks(version0_nacks);
                let _ = reply.send(());
            }
            Command::Reporters(heard, reply) => {
                self.engine.heard_earlier(&heard);
                let _ = reply.send(());
            }
            Command::DeviceSource(collector, writes, reply) => {
                let _ = reply.send(self.roce.device_source(collector, writes));
            }
            Command::Ring(end, reply) => {
                self.roce.add_ring(*end);
                let _ = reply.send(());
            }
            Command::HasRing(nic, reply) => {
                let _ = reply.send(self.roce.has_ring(nic));
            }
            Command::Flush(reply) => match &mut self.int {
                Some(int) => int.start_flush(Some(reply)),
                None => _ = reply.send(self.engine.flush_held_reports(now, out)),
            },
            Command::Program(reply) => {
                let _ = reply.send(self.engine.installed_program().clone());
            }
            Command::Drops(reply) => {
                let first: Vec<_> = self.engine.take_offenders().collect();
                let dropped = |(reason, first)| Dropped {
                    reason,
                    total: self.engine.engine_counters().dropped_reports(reason),
                    first,
                };
                let _ = reply.send(first.into_iter().map(dropped).collect());
            }
            Command::Quiesce(reply) => match &mut self.member {
                Some(member) => member.closing = Some((Instant::now() + DRAIN, reply)),
                None => drop(reply.send(())),
            },
            Command::Snapshot(reply) | Command::Stop(reply) => {
                let _ = reply.send(Box::new(self.take_snapshot()));
            }
        }
    }

    /// Whether engine and link can hold and carry these changes.
    fn check_changes(&self, changes: &[DataPlaneChange]) -> Result<(), ProgramRefusal> {
        self.engine.check_changes(changes)?;
        let changed = apply_changes(self.engine.installed_program(), changes).map_err(SetupError::from)?;
        Ok(self.roce.check_packet_lengths(&changed)?)
    }

    fn apply_changes(
        &mut self,
        now: u64,
        changes: &[DataPlaneChange],
        out: &mut EngineOutput,
    ) -> Result<(), ProgramRefusal> {
        self.check_changes(changes)?;
        // What the device has reported, and what that releases, is about the previous PSNs; and posting it
        // may show that a queue pair has failed.
        for _ in 0..2 {
            self.roce.take_completions(now, &mut self.engine, out);
            self.roce.post_requests(out, &mut self.engine);
        }
        self.roce.connect_changed(changes, &mut self.engine, out)?;
        Ok(self.engine.apply_changes(now, changes, out)?)
    }

    fn take_snapshot(&mut self) -> Snapshot {
        let [roce_faults, nack_faults, answer_faults] = self.path.fault_counts();
        let mut queue_pairs = self.engine.queue_pairs();
        for pair in &mut queue_pairs {
            pair.down |= self.roce.is_pair_down(pair.collector, pair.purpose);
        }
        Snapshot {
            at: SystemTime::now(),
            counters: self.engine.engine_counters().clone(),
            reporters: self.engine.reporters().iter().collect(),
            evicted: self.engine.reporters().evicted_counters(),
            evictions: self.engine.reporters().evictions(),
            queue_pairs,
            former_regions: self.engine.former_regions(),
            answers_ignored: self.engine.answers_ignored(),
            int: self.int.as_mut().map(IntSide::named_counters).unwrap_or_default(),
            int_link: self.int.as_ref().map(IntSide::link_counters),
            flows_link: self.int.as_ref().and_then(IntSide::flows_link),
            reports_link: self.reports.link_counters(),
            roce_link: self.roce.link_counters(),
            ring: self.roce.ring_counters(),
            device: self.roce.device_counters(),
            roce_faults,
            nack_faults,
            answer_faults,
        }
    }

    /// Processes what has arrived, sends everything held, and waits a while for acknowledgements.
    fn stop_gracefully(
        &mut self,
        now: &impl Fn() -> u64,
        input: &mut PacketBatch,
        out: &mut EngineOutput,
    ) -> Result<(), PacketThreadError> {
        self.int.iter_mut().for_each(IntSide::stop_dropping);
        // What was sent before the stop, not what reporters keep sending.
        let taken_until = now() + DRAIN.as_nanos() as u64;
        while now() < taken_until && self.take_reports(now(), input, out)? != 0 {
            self.send_output(out)?;
        }
        while now() < taken_until && self.receive_telemetry(now(), out)? != 0 {
            self.send_output(out)?;
        }
        self.flush_int(now, input, out)?;
        self.engine.flush_held_reports(now(), out);
        self.send_output(out)?;
        self.drain_queue_pairs(now, input, out)?;
        self.engine.end_queue_pairs(out);
        self.send_output(out)?;
        self.roce.finish(&mut self.engine, out);
        self.send_output(out)?;
        self.path.close(&mut self.engine, &mut self.roce, self.reports.udp_link_mut())
    }

    /// Waits until everything on RC queue pairs is acknowledged, as long as there is progress. Returns whether it is.
    fn drain_queue_pairs(
        &mut self,
        now: &impl Fn() -> u64,
        input: &mut PacketBatch,
        out: &mut EngineOutput,
    ) -> Result<bool, PacketThreadError> {
        let start = now();
        let (mut left, mut progress) = (usize::MAX, start);
        loop {
            let working = |q: &&QueuePairStatus| !q.down;
            let pairs = self.engine.queue_pairs();
            let still = pairs.iter().filter(working).map(|q| q.outstanding as usize + q.waiting).sum();
            if still < left {
                (left, progress) = (still, now());
            }
            let waited = |since: u64, most: Duration| now() - since > most.as_nanos() as u64;
            if left == 0 || waited(progress, DRAIN) || waited(start, LONGEST_DRAIN) {
                return Ok(left == 0);
            }
            self.take_answers(now(), input, out)?;
            self.engine.run_timers(now(), out);
            self.send_output(out)?;
            let due = self.engine.next_deadline().map_or(0, |at| at.saturating_sub(now()));
            let wait = Duration::from_nanos(due).clamp(Duration::from_micros(50), Duration::from_millis(1));
            self.roce.wait_for_answers(&[], wait)?;
        }
    }

    fn send_output(&mut self, out: &mut EngineOutput) -> Result<(), PacketThreadError> {
        self.path.send_output(out, &mut self.engine, &mut self.roce, self.reports.udp_link_mut())?;
        out.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_waits_for_any_more_is_left_undone() {
        let (sender, commands) = std::sync::mpsc::channel();
        for _ in 0..1000 {
            sender.send(Command::Flush(oneshot::channel().0)).unwrap();
            sender.send(Command::Snapshot(oneshot::channel().0)).unwrap();
        }
        sender.send(Command::Stop(oneshot::channel().0)).unwrap();
        assert!(matches!(next(&commands), Ok(Command::Stop(_))));
        let (reply, _waits) = oneshot::channel();
        sender.send(Command::Flush(reply)).unwrap();
        assert!(matches!(next(&commands), Ok(Command::Flush(_))));
        assert!(matches!(next(&commands), Err(TryRecvError::Empty)));
    }
}
