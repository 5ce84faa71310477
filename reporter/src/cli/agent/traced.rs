//! What an agent traces: brings the kernel's points and the reports in line with the wanted trace.

use std::time::{Duration, Instant};

use crate::packet_trace::digest::Sampling;
use crate::packet_trace::kernel::{self, Tracer};
use crate::packet_trace::point::At;
use anyhow::Result;
use dta_proto::control::{AgentPoint, AgentStatus, Counter};

use super::trace_spec::TraceSpec;
use crate::cli::trace::send::{Sender, points_with_hops};
use crate::trace::HostPoint;

/// Interval between attempts to attach missing interfaces.
const AGAIN: Duration = Duration::from_secs(2);

pub(super) struct AgentHost {
    /// The host's name for people.
    pub(super) name: String,
    pub(super) reporter_id: u16,
    pub(super) translator: String,
    /// Whether points may be in other network namespaces.
    pub(super) namespaces: bool,
}

pub(super) struct Traced {
    pub(super) tracer: Tracer,
    sender: Sender,
    host: AgentHost,
    wanted: TraceSpec,
    configured: bool,
    /// Points that are wanted but not attached, and why.
    refused: Vec<(At, String)>,
    tried: Instant,
}

impl Traced {
    pub(super) fn new(tracer: Tracer, sender: Sender, host: AgentHost) -> Self {
        Self {
            tracer,
            sender,
            host,
            wanted: TraceSpec::empty(),
            configured: true,
            refused: Vec::new(),
            tried: Instant::now(),
        }
    }

    /// Traces `wanted` from now on. The status shows what could not be attached.
    ///
    /// # Errors
    /// The kernel's programs or the reports fail permanently: the agent ends.
    pub(super) fn set(&mut self, wanted: TraceSpec, configured: bool) -> Result<()> {
        let gone: Vec<At> = self
            .tracer
            .points()
            .iter()
            .filter(|point| point.is_wanted())
            .map(|point| point.at.clone())
            .filter(|at| !wanted.at.contains(at))
            .collect();
        gone.iter().for_each(|at| self.tracer.detach(at));
        // Records of the old points are reported under their old names.
        self.read()?;
        self.sender.report_counts(&mut self.tracer)?;
        self.sender.set_points(self.numbered_points())?;
        self.tracer.forget_flows_of_gone_points()?;
        // New points see no packets that the new filter excludes.
        self.tracer.set_filter(&wanted.table)?;
        self.tracer.set_sampling(Sampling::one_in(wanted.one_in))?;
        self.wanted = wanted;
        self.configured = configured;
        self.refused.clear();
        for at in self.wanted.at.clone() {
            self.try_attach(&at);
        }
        self.sender.set_points(self.numbered_points())?;
        for (at, why) in &self.refused {
            tracing::warn!(%at, why, "point not attached");
        }
        tracing::info!(
            points = self.wanted.at.len() - self.refused.len(),
            refused = self.refused.len(),
            filter = self.wanted.filter,
            one_in = self.wanted.one_in,
            "tracing"
        );
        Ok(())
    }

    fn try_attach(&mut self, at: &At) {
        let why = if at.is_in_other_namespace() && !self.host.namespaces {
            "points in other network namespaces need namespaces = true in the agent's configuration".into()
        } else {
            match self.tracer.attach(at) {
                Ok(_) => return,
                Err(kernel::Error::Attach { why, .. }) => why,
                Err(error) => error.to_string(),
            }
        };
        self.refused.push((at.clone(), why));
    }

    /// The points by their numbers in records.
    fn numbered_points(&self) -> Vec<HostPoint> {
        // Checked before: all of them have a hop.
        let hops = points_with_hops(&self.wanted.at, self.wanted.first_hop).unwrap_or_default();
        let hop = |point: &kernel::TracerPoint| {
            let place = self.wanted.at.iter().position(|at| point.is_wanted() && *at == point.at)?;
            hops.get(place).cloned()
        };
        self.tracer.points().iter().map(|point| hop(point).unwrap_or_else(HostPoint::without_hop)).collect()
    }

    /// Reads what has arrived, sends what is due, and retries points that are not attached. Must be called
    /// several times a second.
    pub(super) fn read_and_send(&mut self) -> Result<()> {
        self.read()?;
        self.sender.send_due(&mut self.tracer)?;
        if !self.refused.is_empty() && self.tried.elapsed() >= AGAIN {
            self.tried = Instant::now();
            let before = std::mem::take(&mut self.refused);
            let tried = before.len();
            for (at, why) in before {
                match at {
                    At::Interface { .. } => self.try_attach(&at),
                    // The kernel will not change, so there is no point in retrying.
                    _ => self.refused.push((at, why)),
                }
            }
            if self.refused.len() < tried {
                self.sender.set_points(self.numbered_points())?;
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let mut taken = Ok(());
        let Self { tracer, sender, .. } = self;
        sender.follow_clock(tracer);
        tracer.read(|record| {
            let this = sender.process_record(&record);
            if taken.is_ok() {
                taken = this;
            }
        });
        taken
    }

    /// Reports everything held, and the final counts.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.read()?;
        self.sender.finish(&mut self.tracer)
    }

    pub(super) fn agent_status(&self) -> Result<AgentStatus> {
        let books = self.tracer.read_books()?;
        let hops = points_with_hops(&self.wanted.at, self.wanted.first_hop)?;
        let points = self.wanted.at.iter().zip(hops).map(|(at, hop)| {
            let point = self.tracer.points().iter().find(|point| point.is_wanted() && point.at == *at);
            let of = point.and_then(|point| books.get(usize::from(point.number))).map(|books| books.total);
            let of = of.unwrap_or_default();
            let refused = self.refused.iter().find(|(refused, _)| refused == at).map(|(_, why)| why.clone());
            let attached = point.is_some_and(kernel::TracerPoint::is_attached);
            AgentPoint {
                at: at.to_string(),
                hop: at.is_on_way().then_some(hop.hop.into()),
                attached,
                why_not: match refused {
                    Some(why) => why,
                    None if attached => String::new(),
                    None => "its interface is gone; it is attached again when it returns".into(),
                },
                seen: of.seen,
                reported: of.reported,
                filtered: of.filtered,
                sampled_out: of.sampled_out,
                own: of.own,
                ring_full: of.ring_full,
                refused: of.unparsed_packets(),
                missed: of.missed,
            }
        });
        let counters = self.sender.named_counters().into_iter().map(|(name, value)| Counter { name, value });
        Ok(AgentStatus {
            name: self.host.name.clone(),
            reporter_id: self.host.reporter_id.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            translator: self.host.translator.clone(),
            trace: Some(self.wanted.to_message()),
            configured: self.configured,
            points: points.collect(),
            counters: counters.collect(),
        })
    }
}
