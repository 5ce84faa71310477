//! Queries and changes the agents of many hosts (`dta-reporter agent`) at once.

mod file;

use std::collections::BTreeMap;
use std::future::Future;

use anyhow::{Result, ensure};
use dta_cli::table::{Cell, Colour, OutputStyle, TextTable};
use dta_proto::control::{AgentStatus, TraceSettings};
use dta_proto::trace::HOPS;
use dta_reporter::packet_trace::filter;
use dta_reporter::packet_trace::point::At;
use dta_rpc::ClientError;
use dta_rpc::agent::RemoteAgent;
use serde::Serialize;

pub use file::{AgentEntry, AgentsFile};

/// A change of settings; `None` keeps each agent's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceChange {
    /// Points for all agents, after their own in the file; `None` = each keeps its current ones.
    pub at: Option<Vec<At>>,
    pub filter: Option<String>,
    /// One packet in this many.
    pub one_in: Option<u32>,
}

#[derive(Clone, Debug, Serialize)]
pub struct AgentAnswer {
    /// Its address, as the file has it.
    pub address: String,
    /// Why it refused or did not answer; then the rest is missing.
    pub error: Option<String>,
    pub agent: Option<AgentTraces>,
}

#[derive(Clone, Debug, Serialize)]
pub struct AgentTraces {
    pub name: String,
    pub reporter_id: u32,
    pub version: String,
    /// The destination of its reports.
    pub translator: String,
    pub configured: bool,
    /// The packet filter; empty = all packets.
    pub filter: String,
    /// One packet in this many.
    pub one_in: u32,
    pub points: Vec<AgentTracePoint>,
    pub counters: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct AgentTracePoint {
    pub at: String,
    /// Its hop number; `None` where a path ends.
    pub hop: Option<u32>,
    pub attached: bool,
    pub why_not: Option<String>,
    /// Packets that it saw, and their fates.
    pub seen: u64,
    pub reported: u64,
    /// Not matched by the filter.
    pub filtered: u64,
    pub sampled_out: u64,
    /// Left out because they carry reports to the translator.
    pub own: u64,
    /// Lost because the ring was full.
    pub ring_full: u64,
    /// Not IP, or unreadable.
    pub refused: u64,
    /// Missed because the kernel did not run the program.
    pub missed: u64,
}

impl From<AgentStatus> for AgentTraces {
    fn from(status: AgentStatus) -> Self {
        let trace = status.trace.unwrap_or_default();
        Self {
            name: status.name,
            reporter_id: status.reporter_id,
            version: status.version,
            translator: status.translator,
            configured: status.configured,
            filter: trace.filter,
            one_in: trace.one_in,
            points: status
                .points
                .into_iter()
                .map(|point| AgentTracePoint {
                    at: point.at,
                    hop: point.hop,
                    attached: point.attached,
                    why_not: (!point.attached).then_some(point.why_not),
                    seen: point.seen,
                    reported: point.reported,
                    filtered: point.filtered,
                    sampled_out: point.sampled_out,
                    own: point.own,
                    ring_full: point.ring_full,
                    refused: point.refused,
                    missed: point.missed,
                })
                .collect(),
            counters: status.counters.into_iter().map(|counter| (counter.name, counter.value)).collect(),
        }
    }
}

type Answer = Result<AgentStatus, ClientError>;

/// Queries what all agents trace.
pub async fn query_agents(file: &AgentsFile) -> Vec<AgentAnswer> {
    with_addresses(file, fetch_statuses(file).await)
}

pub async fn reset_agents(file: &AgentsFile) -> Vec<AgentAnswer> {
    let calls = file.agent.iter().map(|agent| {
        let options = file.client_options(agent);
        async move { RemoteAgent::connect(&options).await?.set_trace(None).await }
    });
    with_addresses(file, call_all_agents(calls).await)
}

/// Changes all agents that answer. Their points are numbered in the order of the file.
///
/// # Errors
/// The change is not valid, or there are more points than a path has hops. Then nothing was changed.
pub async fn set(file: &AgentsFile, change: &TraceChange) -> Result<Vec<AgentAnswer>> {
    if let Some(text) = &change.filter {
        filter::compile_filter(text)?;
    }
    let answers = fetch_statuses(file).await;
    let wanted = settings_per_agent(file, change, &answers)?;
    let calls = file.agent.iter().zip(answers).zip(wanted).map(|((agent, answer), wanted)| {
        let options = file.client_options(agent);
        async move {
            answer?;
            RemoteAgent::connect(&options).await?.set_trace(Some(wanted)).await
        }
    });
    Ok(with_addresses(file, call_all_agents(calls).await))
}

fn settings_per_agent(
    file: &AgentsFile,
    change: &TraceChange,
    answers: &[Answer],
) -> Result<Vec<TraceSettings>> {
    let mut next = 0;
    let mut all = Vec::new();
    for (agent, answer) in file.agent.iter().zip(answers) {
        let has = answer.as_ref().ok().and_then(|status| status.trace.clone()).unwrap_or_default();
        let at: Vec<String> = match &change.at {
            Some(of_all) => agent.at.iter().cloned().chain(of_all.iter().map(At::to_string)).collect(),
            None => has.at,
        };
        let first = agent.first_hop.map_or(next, u32::from);
        let mut hops: Vec<At> = Vec::new();
        for place in at.iter().flat_map(|text| At::parse_points(text).unwrap_or_default()) {
            if place.is_on_way() && !hops.contains(&place) {
                hops.push(place);
            }
        }
        next = first + hops.len() as u32;
        ensure!(
            next <= u32::from(HOPS),
            "the points of {} would be hops {first} to {}, and a path has hops 0 to 13 over all hosts: ask for fewer points",
            agent.address,
            next.saturating_sub(1)
        );
        all.push(TraceSettings {
            at,
            filter: change.filter.clone().unwrap_or(has.filter),
            one_in: change.one_in.unwrap_or(has.one_in),
            first_hop: Some(first.min(u32::from(HOPS) - 1)),
        });
    }
    Ok(all)
}

async fn fetch_statuses(file: &AgentsFile) -> Vec<Answer> {
    call_all_agents(file.agent.iter().map(|agent| {
        let options = file.client_options(agent);
        async move { RemoteAgent::connect(&options).await?.fetch_status().await }
    }))
    .await
}

/// Calls all agents at once; the answers are in their order.
async fn call_all_agents<F>(calls: impl Iterator<Item = F>) -> Vec<Answer>
where
    F: Future<Output = Answer> + Send + 'static,
{
    let tasks: Vec<_> = calls.map(tokio::spawn).collect();
    let mut answers = Vec::with_capacity(tasks.len());
    for task in tasks {
        answers.push(task.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())));
    }
    answers
}

fn with_addresses(file: &AgentsFile, answers: Vec<Answer>) -> Vec<AgentAnswer> {
    let each = file.agent.iter().zip(answers);
    each.map(|(agent, answer)| {
        let address = agent.address.clone();
        match answer {
            Ok(status) => AgentAnswer { address, error: None, agent: Some(status.into()) },
            Err(error) => AgentAnswer { address, error: Some(error.to_string()), agent: None },
        }
    })
    .collect()
}

/// Whether all agents answered, and whether all their points are attached.
pub fn answered_and_attached(answers: &[AgentAnswer]) -> (bool, bool) {
    let answered = answers.iter().all(|answer| answer.error.is_none());
    let mut points =
        answers.iter().filter_map(|answer| answer.agent.as_ref()).flat_map(|agent| &agent.points);
    (answered, points.all(|point| point.attached))
}

pub fn agents_table(answers: &[AgentAnswer], look: OutputStyle) -> String {
    let header = [
        "AGENT",
        "TRACES",
        "POINT",
        "HOP",
        "ATTACHED",
        "SEEN",
        "REPORTED",
        "FILTERED",
        "SAMPLED OUT",
        "OWN",
        "LOST",
    ];
    let mut table = TextTable::new(&header, &[3, 5, 6, 7, 8, 9, 10]);
    for answer in answers {
        let Some(agent) = &answer.agent else {
            let why = answer.error.clone().unwrap_or_default();
            let mut row = vec![
                Cell::from(answer.address.clone()),
                Cell::with_colour(format!("no: {why}"), Colour::Red),
            ];
            row.extend((2..header.len()).map(|_| Cell::from("")));
            table.add_row(row);
            continue;
        };
        let filter = if agent.filter.is_empty() { "all" } else { agent.filter.as_str() };
        let share = if agent.one_in > 1 { format!(", 1/{}", agent.one_in) } else { String::new() };
        let host = format!("{} ({})", agent.name, answer.address);
        let what = format!("{filter}{share}");
        if agent.points.is_empty() {
            let mut row = vec![Cell::from(host.clone()), Cell::from("nothing")];
            row.extend((2..header.len()).map(|_| Cell::from("")));
            table.add_row(row);
        }
        for point in &agent.points {
            let attached = match &point.why_not {
                None => Cell::with_colour("yes", Colour::Green),
                Some(why) => Cell::with_colour(format!("no: {why}"), Colour::Yellow),
            };
            table.add_row([
                host.clone().into(),
                what.clone().into(),
                point.at.clone().into(),
                point.hop.map_or_else(|| "-".into(), |hop| Cell::from(hop.to_string())),
                attached,
                point.seen.to_string().into(),
                point.reported.to_string().into(),
                point.filtered.to_string().into(),
                point.sampled_out.to_string().into(),
                point.own.to_string().into(),
                (point.ring_full + point.refused + point.missed).to_string().into(),
            ]);
        }
    }
    table.render_for(look)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(at: &[&[&str]]) -> AgentsFile {
        let agents = at
            .iter()
            .enumerate()
            .map(|(n, at)| format!("[[agent]]\naddress = \"h:{}\"\nat = {at:?}\n", n + 1));
        toml::from_str(&agents.collect::<String>()).unwrap()
    }

    fn has(at: &[&str], filter: &str) -> Answer {
        let trace = TraceSettings {
            at: at.iter().map(ToString::to_string).collect(),
            filter: filter.into(),
            one_in: 8,
            first_hop: Some(0),
        };
        Ok(AgentStatus { trace: Some(trace), ..AgentStatus::default() })
    }

    #[test]
    fn hops_go_on_from_agent_to_agent_and_what_is_left_out_stays() {
        let file = file(&[&["iface:e0", "tp:kfree_skb"], &[], &["iface:e1/ingress"]]);
        let answers = [has(&[], "tcp"), has(&["tp:net_dev_queue"], ""), has(&["iface:e0"], "udp")];
        let one_in = Some(4);
        let settings = |change: &TraceChange| -> Vec<(usize, u32, String, u32)> {
            let all = settings_per_agent(&file, change, &answers).unwrap();
            all.into_iter().map(|of| (of.at.len(), of.first_hop.unwrap(), of.filter, of.one_in)).collect()
        };
        let is = |points, hop, filter: &str, one_in| (points, hop, filter.to_owned(), one_in);
        let kept = [is(0, 0, "tcp", 4), is(1, 0, "", 4), is(1, 1, "udp", 4)];
        assert_eq!(settings(&TraceChange { one_in, ..TraceChange::default() }), kept);
        let of_file = [is(2, 0, "tcp", 8), is(0, 2, "", 8), is(1, 2, "udp", 8)];
        assert_eq!(settings(&TraceChange { at: Some(vec![]), ..TraceChange::default() }), of_file);
        // Common points follow those in the file.
        let change =
            TraceChange { at: At::parse_points("iface:e9").ok(), filter: Some("icmp".into()), one_in: None };
        assert_eq!(settings(&change), [is(4, 0, "icmp", 8), is(2, 4, "icmp", 8), is(3, 6, "icmp", 8)]);
    }

    #[test]
    fn more_points_than_hops_are_refused_before_anything_changes() {
        let many: Vec<String> = (0..5).map(|n| format!("iface:e{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let file = file(&[&many, &many]);
        let error = settings_per_agent(
            &file,
            &TraceChange { at: Some(vec![]), ..TraceChange::default() },
            &[has(&[], ""), has(&[], "")],
        )
        .unwrap_err();
        assert!(error.to_string().contains("h:2 would be hops 10 to 19"), "{error}");
    }
}
