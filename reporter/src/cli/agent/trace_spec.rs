//! A requested trace, parsed and checked before anything changes.

use crate::packet_trace::digest::Sampling;
use crate::packet_trace::filter;
use crate::packet_trace::matching::FilterTable;
use crate::packet_trace::point::At;
use dta_proto::control::TraceSettings;
use dta_proto::trace::HOPS;

use super::config::Config;
use crate::cli::trace::send::points_with_hops;

/// Most points at a time.
const MOST: usize = 64;

/// Which packets to trace, and where.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TraceSpec {
    /// Each place once, in the order requested.
    pub(super) at: Vec<At>,
    pub(super) filter: String,
    pub(super) table: FilterTable,
    pub(super) one_in: u32,
    pub(super) first_hop: u8,
}

impl TraceSpec {
    pub(super) fn empty() -> Self {
        Self {
            at: Vec::new(),
            filter: String::new(),
            table: FilterTable::match_all(),
            one_in: 1,
            first_hop: 0,
        }
    }

    /// The configured trace; or the key at fault, and why.
    pub(super) fn of_config(config: &Config) -> Result<Self, (&'static str, String)> {
        let at = parse_point_list(&config.trace.at).map_err(|why| ("trace.at", why))?;
        if let (Some(at), false) = (at.iter().find(|at| at.is_in_other_namespace()), config.agent.namespaces)
        {
            return Err((
                "trace.at",
                format!("{at} is in another network namespace: that needs namespaces = true in [agent]"),
            ));
        }
        let one_in =
            Sampling::read_share(&config.trace.sample).map_err(|why| ("trace.sample", why.to_owned()))?;
        let (filter, table) = compile_filter(&config.trace.filter).map_err(|why| ("trace.filter", why))?;
        let first_hop = config.agent.first_hop;
        points_with_hops(&at, first_hop).map_err(|error| ("trace.at", error.to_string()))?;
        Ok(Self { at, filter, table, one_in, first_hop })
    }

    /// The trace that a message asks for; `first_hop` is the default.
    pub(super) fn of_message(message: &TraceSettings, first_hop: u8) -> Result<Self, String> {
        let at = parse_point_list(&message.at)?;
        let (filter, table) = compile_filter(&message.filter)?;
        let first_hop = match message.first_hop {
            None => first_hop,
            Some(hop) => u8::try_from(hop).ok().filter(|hop| *hop < HOPS).ok_or("hops are 0 to 13")?,
        };
        points_with_hops(&at, first_hop).map_err(|error| error.to_string())?;
        Ok(Self { at, filter, table, one_in: message.one_in.max(1), first_hop })
    }

    /// The message for this trace.
    pub(super) fn to_message(&self) -> TraceSettings {
        TraceSettings {
            at: self.at.iter().map(At::to_string).collect(),
            filter: self.filter.clone(),
            one_in: self.one_in,
            first_hop: Some(self.first_hop.into()),
        }
    }
}

fn parse_point_list(texts: &[String]) -> Result<Vec<At>, String> {
    let mut places = Vec::new();
    let too_many = || Err(format!("there are more than {MOST} points"));
    if texts.len() > MOST {
        return too_many();
    }
    for text in texts {
        for at in At::parse_points(text).map_err(|error| error.to_string())? {
            if !at.sees_packets() {
                return Err(format!(
                    "{at} sees calls rather than packets: `dta-reporter trace --print` prints them"
                ));
            }
            if !places.contains(&at) {
                places.push(at);
            }
        }
        if places.len() > MOST {
            return too_many();
        }
    }
    Ok(places)
}

fn compile_filter(text: &str) -> Result<(String, FilterTable), String> {
    // The message names the offending word, because the whole filter may be long.
    let table = filter::compile_filter(text).map_err(|error| format!("this is not a filter: {error}"))?;
    Ok((text.to_owned(), table))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(at: &[&str]) -> TraceSettings {
        TraceSettings { at: at.iter().map(ToString::to_string).collect(), ..TraceSettings::default() }
    }

    #[test]
    fn a_message_is_read_and_written_alike() {
        let wanted =
            TraceSpec::of_message(&asked(&["iface:e0", "tp:kfree_skb", "iface:e0/egress"]), 3).unwrap();
        let message = wanted.to_message();
        assert_eq!(message.at, ["iface:e0/ingress", "iface:e0/egress", "tp:kfree_skb"]);
        assert_eq!((message.one_in, message.first_hop), (1, Some(3)));
        assert_eq!(TraceSpec::of_message(&message, 0), Ok(wanted));
    }

    #[test]
    fn what_cannot_be_traced_is_refused() {
        let refused = |message: TraceSettings| TraceSpec::of_message(&message, 0).unwrap_err();
        assert!(refused(asked(&["usb:1"])).contains("is not a point"));
        // Long filters are neither walked by recursion nor quoted.
        for filter in
            ["ip or ".repeat(30_000), "ip and ip6 or ".repeat(500), "(".repeat(8_000), "x".repeat(1 << 20)]
        {
            let error = refused(TraceSettings { filter, ..asked(&[]) });
            assert!(error.contains("is not a filter") && error.len() < 200, "{}", &error[..200]);
        }
        let long = "e".repeat(1 << 20);
        for at in [
            format!("iface:{long}"),
            format!("{long}:e0"),
            format!("netns:{long}/iface:e0"),
            format!("netns:a/{long}"),
        ] {
            let error = refused(asked(&[&at]));
            assert!(error.contains("is longer than") && error.len() < 600, "{}", &error[..600]);
        }
        assert!(refused(asked(&["iface:e0/ingress"; 65])).contains("more than 64 points"));
        assert!(refused(asked(&["netns:../../tmp/a/iface:e0"])).contains("without `..`"));
        assert!(refused(TraceSettings { filter: "arp".into(), ..asked(&[]) }).contains("is not a filter"));
        assert!(refused(TraceSettings { first_hop: Some(14), ..asked(&[]) }).contains("0 to 13"));
        let many: Vec<String> = (0..40).map(|n| format!("iface:e{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(refused(asked(&many)).contains("more than 64 points"));
        assert!(refused(asked(&many[..8])).contains("hops 0 to 13"));
    }
}
