//! Do reports reach the translator, and do frames leave it?

use std::collections::BTreeMap;

use dta_cli::number::{format_count, format_grouped};
use dta_proto::counter::{
    CounterNode, Definition, LinkLoss, ParsedCounter, Reason, between, reporter, translator,
};
use dta_proto::name;

use super::{Evidence, Nodes};
use crate::doctor::Finding;

const CHECK: &str = "translator";

/// Seconds after which a running translator should have renewed its lease and handed in new counters.
const SILENT: f64 = 60.0;

pub(super) fn check_translators(e: &Evidence) -> Vec<Finding> {
    // A translator's first worker reports the counters of all.
    e.sessions
        .iter()
        .filter(|session| name::translator_of(&session.name) == session.name)
        .flat_map(|session| [Some(check_translator(e, &session.name)), check_totals(e, &session.name)])
        .flatten()
        .collect()
}

/// What the translator received but did not turn into operations, or lost, since it started to count: possibly long
/// before this check.
fn check_totals(e: &Evidence, session: &str) -> Option<Finding> {
    let (_, counters) = e.after.translator(session)?;
    let before = e.before.translator(session).map(|(_, counters)| counters);
    let count = |counter: &Definition| counters.get(counter.name).copied().unwrap_or(0);
    let (received, emitted) = (count(&translator::RECEIVED), count(&translator::EMITTED));
    let mut reasons: Vec<(u64, String)> = counters
        .iter()
        .filter(|(_, value)| **value > 0)
        .filter_map(|(name, value)| {
            let found = CounterNode::Translator.find_counter(name)?;
            let is_drop = found.definition == &translator::DROPPED;
            // A repeat is no loss.
            let is_repeat = is_drop && found.last_value() == Reason::Duplicate.name();
            let counts =
                is_drop || [&translator::DISCARDED, &translator::LOST_BY].contains(&found.definition);
            if !counts || is_repeat {
                return None;
            }
            let new = value.saturating_sub(before.and_then(|before| before.get(name)).copied().unwrap_or(0));
            let when = if new == 0 { "none of them now".into() } else { format!("{new} {}", e.in_window()) };
            Some((*value, format!("{value} {name} ({when})")))
        })
        .collect();
    let missing = |nodes: &Nodes| {
        let sum = |counter: &Definition| nodes.of_reporters(session, counter.name);
        sum(&reporter::GAPS).saturating_sub(sum(&reporter::GAPS_FILLED))
    };
    let (gone, new) = (missing(&e.after), missing(&e.after).saturating_sub(missing(&e.before)));
    if gone > 0 {
        let when = if new == 0 { "none of them now".into() } else { format!("{new} {}", e.in_window()) };
        reasons.push((gone, format!("{gone} {} ({when})", between::REPORTER_TRANSLATOR.name)));
    }
    reasons.sort_by(|a, b| b.cmp(a));
    if reasons.is_empty() {
        return None;
    }
    let largest =
        reasons[0].1.split(' ').nth(1).and_then(|name| Reason::from_name(name.strip_prefix("dropped.")?));
    let advice = match largest {
        Some(reason) => format!("of the first: {}", reason.advice()),
        None => "docs/counters.md explains each of them".to_owned(),
    };
    let all = reasons.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(", ");
    let found = format!(
        "{session}: {} received and {} emitted since it started to count: {all}",
        format_count(received, "report", "reports"),
        format_grouped(emitted)
    );
    Some(Finding::new_note(
        CHECK,
        found,
        format!("{advice}; the translator's log names the first reporter for each reason"),
    ))
}

fn check_translator(e: &Evidence, session: &str) -> Finding {
    let Some((age, counters)) = e.after.translator(session) else {
        return Finding::new_note(
            CHECK,
            format!("{session}: its translator has not reported any counters"),
            "a running one does so when it renews its lease; a switch that was set up does not: look at the switch's own",
        );
    };
    let count = |counter: &Definition| counters.get(counter.name).copied().unwrap_or(0);
    let (received, accepted) = (count(&translator::RECEIVED), count(&translator::ACCEPTED));
    if received == 0 {
        return Finding::new_problem(
            CHECK,
            format!("{session}: no report has reached the translator"),
            "send reports to the address of its --listen (UDP 40040), which must not be loopback if reporters are elsewhere; see its firewall \
             (`nft list ruleset`); `dta-translator stats` has newer numbers",
        );
    }
    if let Some((found, dropped)) =
        largest_counter(counters, |found| found.definition == &translator::DROPPED)
        && dropped >= accepted
    {
        let reason = found.last_value();
        let found = format!(
            "{session}: of {} it dropped {} as `{reason}`, and accepted {}",
            format_count(received, "report", "reports"),
            format_grouped(dropped),
            format_grouped(accepted)
        );
        let advice =
            format!("docs/counters.md explains `{reason}`; the reporter, or the store it names, is wrong");
        return Finding::problem_or_note(accepted == 0, CHECK, found, advice);
    }
    let frames_unsent = |found: &ParsedCounter<'_>| {
        found.definition == &translator::LINK_DROPPED
            && found.values[0] == translator::ROCE
            && LinkLoss::unsent_reason(found.last_value()).is_some()
    };
    if let Some((found, _)) = largest_counter(counters, frames_unsent)
        && let (loss, Some(reason)) =
            (LinkLoss::from_name(found.last_value()), LinkLoss::unsent_reason(found.last_value()))
        && loss != Some(LinkLoss::UnsentUnreachable)
        && let Some((unsent, matters)) = e.unsent_frames(session, found.last_value())
    {
        let found = format!(
            "{session}: the translator could not send {}: {}",
            format_count(unsent, "frame", "frames"),
            reason.replace('-', " ")
        );
        let advice = match loss {
            Some(LinkLoss::UnsentForbidden) => "a firewall rule on output refuses them: nft list ruleset",
            Some(LinkLoss::UnsentTooLong) => {
                "the MTU of the translator's interface is too small: ip link set dev IFACE mtu 1500"
            }
            Some(LinkLoss::UnsentNoSource) => {
                "the translator's --source is not an address of its host, or another program has the port"
            }
            _ => {
                "the translator's interface sends frames more slowly than they arrive: is it up, and fast enough?"
            }
        };
        return Finding::problem_or_note(matters, CHECK, found, advice);
    }
    if count(&translator::EMITTED) == 0 && count(&translator::HELD) > 0 {
        return Finding::new_note(
            CHECK,
            format!(
                "{session}: {} in the translator for the rest of their batch, path or column",
                format_count(count(&translator::HELD), "report waits", "reports wait")
            ),
            "they leave after the flush time ([translator.flush]), or now: dta-translator flush",
        );
    }
    let found = format!(
        "{session}: {} received, {} emitted in {}, reported {age:.0} s ago",
        format_count(received, "report", "reports"),
        format_grouped(count(&translator::EMITTED)),
        format_count(count(&translator::FRAMES), "frame", "frames")
    );
    if age > SILENT {
        let advice = "it has not renewed since: is it still running? Try `dta-translator stats`";
        return Finding::new_note(CHECK, found, advice);
    }
    Finding::new_ok(CHECK, found)
}

/// The largest of these counters, if any is not 0.
fn largest_counter<'a>(
    counters: &'a BTreeMap<String, u64>,
    of: impl Fn(&ParsedCounter<'_>) -> bool,
) -> Option<(ParsedCounter<'a>, u64)> {
    counters
        .iter()
        .filter(|(_, value)| **value > 0)
        .filter_map(|(name, value)| Some((CounterNode::Translator.find_counter(name).filter(&of)?, *value)))
        .max_by_key(|(_, value)| *value)
}
