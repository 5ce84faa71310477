//! The software data plane as a target: this process's, or a running translator's.
//!
//! Its rows have all fields: it has names, sends sketch columns when they are complete, and wakes readers. It
//! checks all changes before the first, so it applies either all or none.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::mpsc::Sender;

use dta_link::shared_ring::{self, RingUse};
use dta_proto::control::NodeStatistics;
use dta_proto::program::{DataPlaneChange, DataPlaneEntry, Program, RowFields, Transport};
use dta_rpc::ClientError;
use dta_rpc::translator::RemoteTranslator;
use dta_rpc::transport::dial::UNIX;
use tokio::sync::oneshot;
use tonic::Code;
use tracing::{info, warn};

use crate::config::TranslatorConfig;
use crate::packets::{Command, ProgramRefusal, Snapshot, node_statistics};
use dta_switch::{After, ApplyError, ApplyProgress, DeviceSource, RingAt, Target, TargetError, TargetStatus};

const FIELDS: RowFields = RowFields::ALL;

/// This process's data plane, over the channel of the thread that processes reports. Cheap to clone.
#[derive(Clone)]
pub struct InProcess {
    name: String,
    life: u64,
    commands: Sender<Command>,
    /// The channels of the other workers; empty except for the first.
    others: Vec<Sender<Command>>,
    /// Whether its session sends the counters of all workers.
    sends_counters: bool,
    /// Frames not sent for lack of a UDP port, at the last warning.
    without_source: u64,
    /// The RDMA device that sends, if any.
    device: Option<String>,
    /// Why there are no rings at all, if so.
    ring: Option<&'static str>,
    /// By collector, the state of its ring.
    rings: BTreeMap<u8, Joined>,
}

/// The result of a ring offer.
#[derive(Clone)]
struct Joined {
    /// Name of the door; empty if there was none.
    name: String,
    nic: Option<SocketAddrV4>,
    /// Why it was not joined.
    result: Result<(), String>,
}

impl InProcess {
    /// The data plane of the thread that `commands` goes to. `name` is the translator's, and `life` a number
    /// chosen when counting started.
    pub fn new(name: String, life: u64, commands: Sender<Command>) -> Self {
        InProcess {
            name,
            life,
            commands,
            others: Vec::new(),
            sends_counters: true,
            without_source: 0,
            device: None,
            ring: None,
            rings: BTreeMap::new(),
        }
    }

    /// Makes it the first of several workers: requests to the whole translator go to the others, too.
    pub fn with_others(self, others: Vec<Sender<Command>>) -> Self {
        InProcess { others, ..self }
    }

    /// Makes it a worker other than the first: the first worker's session sends its counters.
    pub fn without_counters(self) -> Self {
        InProcess { sends_counters: false, ..self }
    }

    /// Uses rings as configured.
    pub fn with_rings(self, config: &TranslatorConfig) -> Self {
        let ring = match (&config.link, config.ring) {
            _ if config.device.is_some() => Some("an RDMA device sends (`device`)"),
            (Some(_), _) => Some("frames leave whole on an interface (`link`)"),
            (None, RingUse::Off) => Some("the translator's configuration says so (`ring`)"),
            (None, RingUse::Auto) => None,
        };
        InProcess { ring, device: config.device.clone(), ..self }
    }

    async fn frames_by(&self, joined: &Joined) -> Result<String, TargetError> {
        if let Some(device) = &self.device {
            return Ok(format!("device {device}"));
        }
        Ok(match (&joined.result, joined.nic) {
            (Ok(()), Some(nic)) if self.send_command(|reply| Command::HasRing(nic, reply)).await? => {
                "ring".into()
            }
            (Ok(()), _) => "udp: the ring is over".into(),
            (Err(reason), _) => format!("udp: {reason}"),
        })
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// [`TargetError::Stopped`].
    pub async fn send_command<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, TargetError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).map_err(|_| TargetError::Stopped)?;
        answer.await.map_err(|_| TargetError::Stopped)
    }

    /// Sends a command to each worker and waits for all answers, in the order of workers.
    ///
    /// # Errors
    /// [`TargetError::Stopped`].
    pub async fn send_to_workers<T>(
        &self,
        command: impl Fn(oneshot::Sender<T>) -> Command,
    ) -> Result<Vec<T>, TargetError> {
        let mut waited = Vec::new();
        for commands in std::iter::once(&self.commands).chain(&self.others) {
            let (reply, answer) = oneshot::channel();
            commands.send(command(reply)).map_err(|_| TargetError::Stopped)?;
            waited.push(answer);
        }
        let mut answers = Vec::new();
        for answer in waited {
            answers.push(answer.await.map_err(|_| TargetError::Stopped)?);
        }
        Ok(answers)
    }

    /// The counters of all workers, combined. `command` is [`Command::Snapshot`] or
    /// [`Command::Stop`].
    ///
    /// # Errors
    /// [`TargetError::Stopped`].
    pub async fn combined_snapshot(
        &self,
        command: impl Fn(oneshot::Sender<Box<Snapshot>>) -> Command,
    ) -> Result<Box<Snapshot>, TargetError> {
        let mut all = self.send_to_workers(command).await?.into_iter();
        let mut sum = all.next().ok_or(TargetError::Stopped)?;
        all.for_each(|worker| sum.add(*worker));
        Ok(sum)
    }

    /// Counters of a moment under their names.
    pub fn node_statistics(&self, snapshot: &Snapshot) -> Vec<NodeStatistics> {
        node_statistics(&self.name, self.life, snapshot)
    }

    /// Warns when more frames than before were not sent because their UDP port is taken.
    fn warn_without_source(&mut self, snapshot: &Snapshot) {
        let unsent = snapshot.roce_link.unsent_no_source;
        if unsent > self.without_source {
            warn!(
                frames = unsent - self.without_source,
                "frames not sent: another program is using the UDP port of a queue pair (0xc000 + the low 14 bits of its number; \
                 `ss -uanp` names it); retrying every second"
            );
            self.without_source = unsent;
        }
    }
}

#[tonic::async_trait]
impl Target for InProcess {
    async fn held_program(&mut self) -> Result<Program, TargetError> {
        self.send_command(Command::Program).await
    }

    async fn required_changes(
        &mut self,
        want: &Program,
        after: After,
    ) -> Result<Vec<DataPlaneChange>, TargetError> {
        Ok(after.changes_between(FIELDS, &self.held_program().await?, want))
    }

    async fn apply_program(
        &mut self,
        want: &Program,
        after: After,
    ) -> Result<Vec<DataPlaneChange>, ApplyError> {
        let changes = self.required_changes(want, after).await.map_err(ApplyError::before_first_change)?;
        if !changes.is_empty() {
            info!(changes = changes.len(), "programming the data plane");
            let made = changes.clone();
            let applied = self.send_command(|reply| Command::Apply(made, reply)).await;
            let applied = applied.map_err(|error| ApplyError { progress: ApplyProgress::Unknown, error })?;
            applied.map_err(|error| {
                ApplyError::before_first_change(match error {
                    ProgramRefusal::Device(error) => TargetError::Failed(error.to_string()),
                    error => TargetError::Refused(error.to_string()),
                })
            })?;
        }
        Ok(changes)
    }

    async fn could_hold(&mut self, want: &Program) -> Result<(), TargetError> {
        let changes = self.required_changes(want, After::Renewal).await?;
        let checked = self.send_command(|reply| Command::Check(changes, reply)).await?;
        checked.map_err(|error| TargetError::Refused(error.to_string()))
    }

    async fn heard_earlier(&mut self, reporters: &[(u16, u32)]) -> Result<(), TargetError> {
        // Only the first worker's session knows reporters, and it knows those of all workers.
        self.send_to_workers(|reply| Command::Reporters(reporters.to_vec(), reply)).await.map(drop)
    }

    async fn device_source(
        &mut self,
        collector: u8,
        writes: Transport,
    ) -> Result<Option<DeviceSource>, TargetError> {
        let source = self.send_command(|reply| Command::DeviceSource(collector, writes, reply)).await?;
        source.map_err(|error| TargetError::Failed(error.to_string()))
    }

    async fn join_ring(&mut self, collector: u8, ring: Option<&RingAt>) -> Result<(), TargetError> {
        let known = self.rings.get(&collector);
        let Some(RingAt { offer, nic }) = ring.filter(|_| self.ring.is_none()) else {
            let why = self.ring.unwrap_or("the collector offers no ring to this address");
            if known.is_none_or(|joined| joined.result != Err(why.to_owned())) {
                self.rings
                    .insert(collector, Joined { name: String::new(), nic: None, result: Err(why.into()) });
            }
            return Ok(());
        };
        // One attempt per door: it was joined, or has refused.
        if known.is_some_and(|joined| joined.name == offer.name && joined.nic == Some(*nic)) {
            return Ok(());
        }
        let (asked, at) = (offer.clone(), *nic);
        let joined = tokio::task::spawn_blocking(move || shared_ring::join_ring(&asked, at)).await;
        let result = match joined {
            Ok(Ok(end)) => {
                self.send_command(|reply| Command::Ring(Box::new(end), reply)).await?;
                info!(collector = %nic, "frames go through a ring in shared memory");
                Ok(())
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(reason) = &result {
            warn!(collector = %nic, reason, "frames go by UDP instead of through the ring that the collector offers");
        }
        self.rings.insert(collector, Joined { name: offer.name.clone(), nic: Some(*nic), result });
        Ok(())
    }

    async fn read_status(&mut self) -> Result<TargetStatus, TargetError> {
        let snapshot = self.send_command(Command::Snapshot).await?;
        self.warn_without_source(&snapshot);
        let silent =
            snapshot.queue_pairs.iter().filter(|pair| pair.down).map(|pair| pair.collector).collect();
        let mut frames_by = BTreeMap::new();
        for (collector, joined) in self.rings.clone() {
            frames_by.insert(collector, self.frames_by(&joined).await?);
        }
        let nodes = match (self.sends_counters, self.others.is_empty()) {
            (false, _) => Vec::new(),
            (true, true) => self.node_statistics(&snapshot),
            (true, false) => self.node_statistics(&*self.combined_snapshot(Command::Snapshot).await?),
        };
        Ok(TargetStatus { nodes, silent, former_regions: Some(snapshot.former_regions), frames_by })
    }

    async fn statistics(&mut self) -> Result<Vec<NodeStatistics>, TargetError> {
        Ok(self.node_statistics(&*self.combined_snapshot(Command::Snapshot).await?))
    }

    async fn flush_all(&mut self) -> Result<u64, TargetError> {
        Ok(self.send_to_workers(Command::Flush).await?.iter().sum())
    }

    fn looks_after_itself(&self) -> bool {
        true
    }
}

/// A running translator's data plane, over its own gRPC service. It does its own comparison, because it
/// reveals no rkeys.
pub struct Remote {
    client: RemoteTranslator,
    /// Where others could read rkeys that came over TLS.
    exposed: Option<String>,
}

impl Remote {
    /// The translator at `control`, for a program of the session that `config` describes.
    ///
    /// # Errors
    /// An invalid address.
    pub fn new(config: &TranslatorConfig, control: &str) -> Result<Remote, TargetError> {
        // Any program on this host may have taken a TCP port.
        let is_exposed = config.tls.is_some() && !control.starts_with(UNIX);
        let exposed = is_exposed.then(|| control.to_owned());
        Ok(Remote { client: RemoteTranslator::connect_lazy(control)?, exposed })
    }

    /// The translator, if rkeys may be sent to it.
    fn with_keys(&mut self) -> Result<&mut RemoteTranslator, TargetError> {
        match self.exposed.clone() {
            Some(control) => Err(TargetError::Exposed { control }),
            None => Ok(&mut self.client),
        }
    }
}

#[tonic::async_trait]
impl Target for Remote {
    async fn held_program(&mut self) -> Result<Program, TargetError> {
        // To hold nothing, it would have to delete everything it holds.
        let deletions = self.required_changes(&Program::default(), After::Open).await?;
        let held = |change| match change {
            DataPlaneChange::Delete { entry } => Some(entry),
            DataPlaneChange::Insert { .. }
            | DataPlaneChange::Modify { .. }
            | DataPlaneChange::Forget { .. } => None,
        };
        Ok(Program::from(deletions.into_iter().filter_map(held).collect::<Vec<DataPlaneEntry>>()))
    }

    /// It treats every program as one of a newly opened session. After a renewal that may discard more than
    /// needed, but never less.
    async fn required_changes(
        &mut self,
        want: &Program,
        _: After,
    ) -> Result<Vec<DataPlaneChange>, TargetError> {
        Ok(with_keys(self.with_keys()?.compare_program(want).await?, want))
    }

    async fn apply_program(&mut self, want: &Program, _: After) -> Result<Vec<DataPlaneChange>, ApplyError> {
        let client = self.with_keys().map_err(ApplyError::before_first_change)?;
        let changes = client.apply_program(want).await.map_err(|error| {
            let refused = error.status().is_none_or(|status| {
                matches!(status.code(), Code::InvalidArgument | Code::PermissionDenied | Code::Unimplemented)
            });
            // An invalid answer comes from one that has applied the changes.
            let unread = matches!(error, ClientError::Answer { .. });
            let progress = if refused && !unread { ApplyProgress::Nothing } else { ApplyProgress::Unknown };
            ApplyError { progress, error: error.into() }
        })?;
        Ok(with_keys(changes, want))
    }

    /// A running translator tracks its reporters itself.
    async fn heard_earlier(&mut self, _: &[(u16, u32)]) -> Result<(), TargetError> {
        Ok(())
    }

    /// It does not report whether its queue pairs answer.
    async fn read_status(&mut self) -> Result<TargetStatus, TargetError> {
        Ok(TargetStatus { nodes: self.client.statistics().await?, ..TargetStatus::default() })
    }

    async fn flush_all(&mut self) -> Result<u64, TargetError> {
        Ok(self.client.flush_reports().await?)
    }

    fn looks_after_itself(&self) -> bool {
        true
    }
}

/// Changes as a translator returns them, with the wanted rkeys restored.
fn with_keys(mut changes: Vec<DataPlaneChange>, want: &Program) -> Vec<DataPlaneChange> {
    for change in &mut changes {
        if let DataPlaneChange::Insert { entry } | DataPlaneChange::Modify { to: entry, .. } = change
            && let Some(wanted) = want.get(&entry.entry_key())
        {
            *entry = wanted.clone();
        }
    }
    changes
}
