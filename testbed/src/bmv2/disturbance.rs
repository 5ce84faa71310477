//! Kills something in the middle of a run. It comes back, and so must every answer.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use dta_proto::counter::{Stage, collector};

use super::one_machine::OneMachine;
use super::run::Bed;
use super::truth::Truth;
use crate::chaos::Chaos;
use crate::check::StoreAnswers;
use crate::outcome::ChaosOutcome;
use crate::statistics::TestbedStatistics;
use crate::workload::SeenFlow;

/// How long nothing keeps the translator in step: long enough for an epoch to end. The switch goes on meanwhile.
const AWAY: Duration = Duration::from_secs(4);

/// Numbers that each list skips when the session is opened again (`docs/operating.md`).
const LEFT_OUT: u64 = 4;

pub(super) enum Disturbance {
    /// None is to come.
    None,
    Ahead(Chaos),
    /// The translator's control plane was killed.
    Away(Killed),
    Over(ChaosOutcome),
}

/// What was known when something was killed.
pub(super) struct Killed {
    at: Instant,
    flows: Vec<SeenFlow>,
    answers: StoreAnswers,
    /// Sessions that the collectors must have opened once it is back.
    opened: u64,
}

impl Disturbance {
    /// The kill that was asked for.
    pub(super) fn from_chaos(chaos: Option<Chaos>) -> Disturbance {
        chaos.map_or(Disturbance::None, Disturbance::Ahead)
    }

    /// Does what is due, between two packets.
    pub(super) async fn advance_if_due(&mut self, bed: &mut Bed, truth: &Truth) -> anyhow::Result<()> {
        *self = match std::mem::replace(self, Disturbance::None) {
            Disturbance::Ahead(chaos) => {
                let flows = truth.reported.flows.clone();
                let answers = bed.asking_about(&flows).query_stores().await?;
                let here = local_machine(bed)?;
                let opened = if chaos == Chaos::KillCollector { 0 } else { opened_sessions(here).await? };
                let killed = Killed { at: Instant::now(), flows, answers, opened };
                match chaos {
                    Chaos::KillTranslator => {
                        here.kill_watch();
                        bed.left_out = LEFT_OUT;
                        Disturbance::Away(killed)
                    }
                    // Nothing is reported meanwhile: what is lost without a NIC is counted by the software testbed instead.
                    Chaos::KillCollector => {
                        here.restart_collectors(None).await?;
                        Disturbance::Over(killed.measure_cost("collectors were killed (-9)", bed).await?)
                    }
                    Chaos::RemoveDevice | Chaos::RemoveSender => {
                        bail!(
                            "a device behind a switch cannot be removed: leave out --chaos remove-device and remove-sender"
                        )
                    }
                }
            }
            Disturbance::Away(killed) if killed.at.elapsed() >= AWAY => {
                local_machine(bed)?.start_watch().await?;
                Disturbance::Over(
                    killed.measure_cost("translator's control plane was killed (-9)", bed).await?,
                )
            }
            other => other,
        };
        Ok(())
    }

    /// Waits until it is over. Says what it cost.
    pub(super) async fn wait_for_outcome(
        mut self,
        bed: &mut Bed,
        truth: &Truth,
    ) -> anyhow::Result<Option<ChaosOutcome>> {
        loop {
            match self {
                Disturbance::None => return Ok(None),
                Disturbance::Over(outcome) => return Ok(Some(outcome)),
                Disturbance::Ahead(_) | Disturbance::Away(_) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    self.advance_if_due(bed, truth).await?;
                }
            }
        }
    }
}

impl Killed {
    /// What it cost, now that it is back.
    async fn measure_cost(self, done: &str, bed: &mut Bed) -> anyhow::Result<ChaosOutcome> {
        let seconds_down = self.at.elapsed().as_secs_f64();
        let after = bed.asking_about(&self.flows).query_stores().await?;
        let has = |of: &StoreAnswers| of.has_value().filter(|has| *has).count() as u64;
        let both = self.answers.has_value().zip(after.has_value());
        Ok(ChaosOutcome {
            done: done.into(),
            answers_before: has(&self.answers),
            answers_after: both.filter(|(before, after)| *before && *after).count() as u64,
            seconds_down,
            session_resumed: opened_sessions(local_machine(bed)?).await? == self.opened,
            ..ChaosOutcome::default()
        })
    }
}

fn local_machine(bed: &mut Bed) -> anyhow::Result<&mut OneMachine> {
    bed.place.local_machine().context("--chaos works only on one machine")
}

/// Sessions that collectors have opened since they started, without those that were there before.
async fn opened_sessions(here: &mut OneMachine) -> anyhow::Result<u64> {
    let mut all = TestbedStatistics::default();
    all.add_collectors(here.of_collectors().await?);
    Ok(all.stage_total(Stage::Collector).get(&collector::SESSION_OPENED))
}
