//! Do reports come in at the translator, and do frames go out?

use std::collections::BTreeMap;

use super::Evidence;
use crate::doctor::Finding;

const CHECK: &str = "translator";

/// Seconds after which a running translator should have renewed its lease and told its counters again.
const SILENT: f64 = 60.0;

pub(super) fn check(e: &Evidence) -> Vec<Finding> {
    e.sessions.iter().map(|session| one(e, &session.name)).collect()
}

fn one(e: &Evidence, session: &str) -> Finding {
    let Some((age, counters)) = e.after.translator(session) else {
        return Finding::note(
            CHECK,
            format!("{session}: its translator has told no counters"),
            "one that runs tells them when it renews its lease; a switch that was set up tells none: look at its own",
        );
    };
    let count = |name: &str| counters.get(name).copied().unwrap_or(0);
    let (received, accepted) = (count("received"), count("accepted"));
    if received == 0 {
        return Finding::problem(
            CHECK,
            format!("{session}: no report has reached the translator"),
            "send reports to the address of its --listen (UDP 40040), which must not be loopback if reporters are elsewhere; see its firewall \
             (`nft list ruleset`); `dta-translator stats` is newer than these numbers",
        );
    }
    if let Some((reason, dropped)) = largest(counters, "dropped.")
        && dropped >= accepted
    {
        let found = format!(
            "{session}: of {received} reports it dropped {dropped} as `{reason}`, and accepted {accepted}"
        );
        let advice = format!(
            "docs/counters.md says what `{reason}` means; the reporter, or the store it names, is wrong"
        );
        return if accepted == 0 {
            Finding::problem(CHECK, found, advice)
        } else {
            Finding::note(CHECK, found, advice)
        };
    }
    if let Some((reason, _)) = largest(counters, "link.roce.dropped.unsent-")
        && reason != "unreachable"
        && let Some((unsent, matters)) = e.unsent(session, reason)
    {
        let found = format!(
            "{session}: {unsent} frames could not leave the translator: {}",
            reason.replace('-', " ")
        );
        let advice = match reason {
            "forbidden" => "a firewall rule on output refuses them: nft list ruleset",
            "too-long" => {
                "the MTU of the translator's interface is too small: ip link set dev IFACE mtu 1500"
            }
            "no-source" => {
                "the translator's --source is no address of its host, or another program has the port"
            }
            _ => "the translator's interface takes frames slower than they come: is it up, and fast enough?",
        };
        return if matters {
            Finding::problem(CHECK, found, advice)
        } else {
            Finding::note(CHECK, found, advice)
        };
    }
    if count("emitted") == 0 && count("held") > 0 {
        return Finding::note(
            CHECK,
            format!(
                "{session}: {} reports wait in the translator for the rest of their batch, path or column",
                count("held")
            ),
            "they leave after the flush time ([translator.flush]), or now: dta-translator flush",
        );
    }
    let found = format!(
        "{session}: {received} reports received, {} emitted in {} frames, told {age:.0} s ago",
        count("emitted"),
        count("frames")
    );
    if age > SILENT {
        let advice = "it has not renewed since: is it still running? `dta-translator stats` asks it";
        return Finding::note(CHECK, found, advice);
    }
    Finding::ok(CHECK, found)
}

/// The largest counter that begins so, without that beginning, if any is not 0.
fn largest<'a>(counters: &'a BTreeMap<String, u64>, prefix: &str) -> Option<(&'a str, u64)> {
    counters
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(prefix)?, *value)))
        .filter(|(_, value)| *value > 0)
        .max_by_key(|(_, value)| *value)
}
