//! What a reporter is to do, as the tables of its program.

use dta_proto::prefix::Prefix;
use dta_proto::program::Mac;

use super::tables::{FLOOD_GROUP, SESSIONS};
use crate::config::reporter::What;
use crate::config::settings::{Becomes, Settings, Target, TargetKind};
use crate::config::{Masked, P4, PortRange, pipe_of};
use crate::switches::p4::tables::{Holds, Item, Match, Tables};

/// The tables of a reporter: those by which it forwards, and those by which it reports.
pub fn lower(settings: &Settings, p4: &P4) -> Tables {
    let mut tables = forwarding(settings, p4);
    let does = Holds::Action {
        name: "set".into(),
        params: vec![
            settings.switch_id.into(),
            settings.time_offset_ns.into(),
            settings.interval_mask.into(),
            settings.latency_mask.into(),
            settings.every_packet.into(),
        ],
    };
    tables.set(Item::Default { table: "settings".into() }, does);
    for to in &settings.deflect {
        let holds = Holds::Queue { port: to.port.into(), queue: to.queue.into() };
        tables.set(Item::Deflection(pipe_of(to.port).into()), holds);
    }
    for (order, one) in (0..).zip(&settings.excluded) {
        let port = one.port.map_or(any(), |port| bits(port.into(), 0xffff));
        let key = vec![masked(one.destination), Match::Exact(one.protocol.0.into()), port];
        tables.ordered_row("excluded", order, key, "exclude", vec![]);
    }
    for (order, one) in (0..).zip(&settings.watch) {
        let key = vec![
            masked(one.source),
            masked(one.destination),
            one.protocol.map_or(any(), |protocol| bits(protocol.0.into(), 0xff)),
            range(one.source_ports),
            range(one.destination_ports),
        ];
        let flags = What::ALL.map(|what| u128::from(one.report.contains(&what)));
        match one.report.is_empty() {
            true => tables.ordered_row("watchlist", order, key, "ignore", vec![]),
            false => tables.ordered_row("watchlist", order, key, "watch", flags.to_vec()),
        }
    }
    for (order, one) in (0..).zip(&settings.thresholds) {
        let port = one.port.map_or(any(), |port| bits(port.into(), 0x1ff));
        let key = vec![port, Match::Exact(one.queue.into())];
        let reset = one.reset_ns.unwrap_or_default();
        let params = vec![one.trigger_ns.into(), reset.into(), one.quota.unwrap_or_default().into()];
        tables.ordered_row("queue_limits", order, key, "limit", params);
    }
    for (number, target) in (1..).zip(&settings.destinations) {
        destination(&mut tables, number, target, settings);
    }
    for (replica, made) in (1..).zip(&settings.reports) {
        let (action, params) = report(made.to, made.becomes);
        tables.row("report", vec![Match::Exact(replica)], action, params);
    }
    for session in SESSIONS {
        // Clones of a session that is not there are thrown away.
        let copies = copies(settings, session);
        if !copies.is_empty() {
            tables.set(Item::Clone(session), Holds::Copies(copies));
        }
    }
    tables
}

/// The tables by which a reporter forwards: they stay when it is to report no more.
pub fn forwarding(settings: &Settings, p4: &P4) -> Tables {
    let mut tables = Tables::default();
    for port in &settings.ports {
        let key = || vec![Match::Exact(port.port.into())];
        if port.ingress {
            tables.row("ingress_port", key(), "admit", vec![port.hop.into()]);
        }
        if port.egress {
            tables.row("egress_port", key(), "allow", vec![port.is_last_hop.into()]);
        }
    }
    for (order, one) in (0..).zip(&settings.acl) {
        let key = vec![
            one.ingress_port.map_or(any(), |port| bits(port.into(), 0x1ff)),
            masked(one.source),
            masked(one.destination),
            one.protocol.map_or(any(), |protocol| bits(protocol.0.into(), 0xff)),
            range(one.source_ports),
            range(one.destination_ports),
        ];
        match one.permit {
            true => tables.ordered_row("acl", order, key, "permit", vec![]),
            false => tables.ordered_row("acl", order, key, "deny", vec![one.reason.into()]),
        }
    }
    for of in &settings.queues {
        tables.row("queue_of", vec![Match::Exact(of.dscp.into())], "use_queue", vec![of.queue.into()]);
    }
    if !p4.flood.is_empty() {
        let copies = p4.flood.iter().map(|port| (u32::from(*port), 0)).collect();
        tables.set(Item::Group(FLOOD_GROUP), Holds::Copies(copies));
        for address in &settings.flood_macs {
            tables.row("l2", vec![Match::Exact(mac(*address))], "flood", vec![FLOOD_GROUP.into()]);
        }
    }
    for station in &p4.stations {
        tables.row("l2", vec![Match::Exact(mac(station.mac))], "forward", vec![station.port.into()]);
    }
    for own in &p4.router_macs {
        tables.row("l2", vec![Match::Exact(mac(*own))], "route", vec![]);
    }
    for drop in &settings.drop_macs {
        tables.row("l2", vec![Match::Exact(mac(drop.mac))], "drop", vec![drop.reason.into()]);
    }
    for route in &p4.routes {
        let params = vec![route.port.into(), mac(route.source), mac(route.destination)];
        tables.row("l3", vec![prefix(route.prefix)], "next_hop", params);
    }
    for drop in &settings.drop_routes {
        tables.row("l3", vec![prefix(drop.prefix)], "drop", vec![drop.reason.into()]);
    }
    tables
}

fn destination(tables: &mut Tables, number: u8, target: &Target, settings: &Settings) {
    let (source_mac, source_ip) = settings.source;
    let (action, mut params): (_, Vec<u128>) = match target.kind {
        TargetKind::Translator { reporter } => ("translator", vec![reporter.into()]),
        TargetKind::IntCollector { hardware, packet_bytes } => {
            ("int_collector", vec![hardware.into(), packet_bytes.into()])
        }
    };
    params.extend([
        mac(source_mac),
        mac(target.by.1),
        source_ip.to_bits().into(),
        target.to.0.to_bits().into(),
        target.source_port.into(),
        target.to.1.into(),
        target.tos.into(),
    ]);
    tables.row("destination", vec![Match::Exact(number.into())], action, params);
}

fn report(to: u8, becomes: Becomes) -> (&'static str, Vec<u128>) {
    let to = u128::from(to);
    match becomes {
        Becomes::KeyWrite { store, redundancy, key, value, time } => {
            let (key, value) = (key as u128, value as u128);
            ("key_write", vec![to, store.into(), redundancy.into(), key, value, time.into()])
        }
        Becomes::Postcard { store, value } => ("postcard", vec![to, store.into(), value as u128]),
        Becomes::Append { store, list, entry, immediate } => {
            ("append", vec![to, store.into(), list.into(), entry as u128, immediate.into()])
        }
        Becomes::KeyIncrement { store, redundancy, key, value } => {
            ("key_increment", vec![to, store.into(), redundancy.into(), key as u128, value as u128])
        }
        Becomes::TelemetryReport => ("telemetry_report", vec![to]),
    }
}

/// The copies of a clone session: one for each report that the kinds of packets become which it is of.
fn copies(settings: &Settings, session: u32) -> Vec<(u32, u32)> {
    let mut told: Vec<u8> = Vec::new();
    let mut copies = Vec::new();
    for (replica, made) in (1..).zip(&settings.reports) {
        if !of_session(session).iter().any(|what| made.of.contains(what)) {
            continue;
        }
        // One Telemetry Report says of a packet that it is of a flow and in a congested queue.
        if made.becomes == Becomes::TelemetryReport {
            if told.contains(&made.to) {
                continue;
            }
            told.push(made.to);
        }
        if let Some(target) = settings.destinations.get(usize::from(made.to).wrapping_sub(1)) {
            copies.push((u32::from(target.by.0), replica));
        }
    }
    copies
}

/// The kinds of reports of a clone session, whose number is the mask of them.
pub(super) fn of_session(session: u32) -> &'static [What] {
    match session {
        1 => &[What::Flow],
        2 => &[What::Queue],
        3 => &[What::Flow, What::Queue],
        _ => &[What::Drop],
    }
}

fn any() -> Match {
    Match::Masked { value: 0, mask: 0 }
}

fn bits(value: u128, mask: u128) -> Match {
    Match::Masked { value, mask }
}

fn masked(of: Masked) -> Match {
    bits(of.value.into(), of.mask.into())
}

fn range(of: PortRange) -> Match {
    Match::Range { low: of.low.into(), high: of.high.into() }
}

fn prefix(of: Prefix) -> Match {
    let Masked { value, mask } = of.into();
    Match::Prefix { value: value.into(), len: u16::try_from(mask.leading_ones()).unwrap_or(0) }
}

fn mac(Mac(bytes): Mac) -> u128 {
    bytes.iter().fold(0, |value, byte| value << 8 | u128::from(*byte))
}
