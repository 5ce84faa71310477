//! Lowers a reporter's settings to the tables of its program.

use super::settings::{Becomes, ReceiverKind, ReportReceiver, SwitchReportKind, SwitchReporterSettings};
use super::tables::{self as table, FLOOD_GROUP, SESSIONS};
use super::tofino;
use crate::options::SwitchOptions;
use crate::platform::Platform;
use crate::tables::{Holds, Item, Mirror, MirrorSide, Tables, Towards};
use crate::tofino::pipe_of_port;

/// A reporter's tables, for forwarding and for reporting.
pub fn lower_settings(
    settings: &SwitchReporterSettings,
    options: &SwitchOptions,
    platform: Platform,
) -> Tables {
    let mut tables = forwarding(settings, options, platform);
    for to in &settings.deflect {
        let holds = Holds::Queue { port: to.port.into(), queue: to.queue.into() };
        tables.set(Item::Deflection(pipe_of_port(to.port).into()), holds);
    }
    for (order, one) in (0..).zip(&settings.excluded) {
        let (destination, protocol) = (one.destination, one.protocol);
        let key = table::Excluded { destination, protocol, destination_port: one.port };
        tables.ordered_row(order, key, table::Exclude {});
    }
    let mut watched = Vec::new();
    for (order, one) in (0..).zip(&settings.watch) {
        let key = table::Watchlist {
            source: one.source,
            destination: one.destination,
            protocol: one.protocol,
            source_port: one.source_ports,
            destination_port: one.destination_ports,
        };
        match one.report.is_empty() {
            true => tables.ordered_row(order, key, table::Ignore {}),
            false => watched.push((order, key, SwitchReportKind::ALL.map(|what| one.report.contains(&what)))),
        }
    }
    for (order, one) in (0..).zip(&settings.thresholds) {
        let limit = table::Limit {
            trigger_ns: one.trigger_ns,
            reset_ns: one.reset_ns.unwrap_or_default(),
            reports: one.quota.unwrap_or_default(),
        };
        tables.ordered_row(order, table::QueueLimits { egress_port: one.port, queue: one.queue }, limit);
    }
    for (number, receiver) in (1..).zip(&settings.destinations) {
        destination(&mut tables, number, receiver, settings);
    }
    for (replica, made) in (1..).zip(&settings.reports) {
        add_report_row(&mut tables, replica, made.to, made.becomes);
    }
    let sessions = SESSIONS.map(|session| (session, session_copies(settings, session)));
    // Clones of a missing session are discarded.
    let sessions = sessions.into_iter().filter(|(_, copies)| !copies.is_empty());
    let SwitchReporterSettings { switch_id, interval_mask, latency_mask, every_packet, .. } = *settings;
    let time_offset = settings.time_offset_ns;
    match platform {
        Platform::Bmv2 => {
            let set = table::Set { switch_id, time_offset, interval_mask, latency_mask, every_packet };
            tables.default_action::<table::Settings>(set);
            for (order, key, [flows, queues, drops]) in watched {
                tables.ordered_row(order, key, table::Watch { flows, queues, drops });
            }
            for (session, copies) in sessions {
                tables.set(Item::Clone(session), Holds::Copies(copies));
            }
        }
        Platform::Tofino => {
            tables.default_action::<table::Settings>(tofino::Set {
                switch_id,
                time_offset_high: (time_offset >> 32) as u32,
                time_offset_low: time_offset as u32,
                // The clock has 48 bits.
                interval_mask_high: (interval_mask >> 32) as u16,
                interval_mask_low: interval_mask as u32,
                latency_mask,
                every_packet,
            });
            for (order, key, [flows, queues, drops]) in watched {
                // Only if a place for them is configured.
                let deflect = drops && !settings.deflect.is_empty();
                tables.ordered_row(order, key, tofino::Watch { flows, queues, drops, deflect });
            }
            for (session, copies) in sessions {
                let group = tofino::REPORT_GROUPS + session;
                platform.add_group(&mut tables, group, tofino::NODES, &copies);
                let at = if session == tofino::DROPS { MirrorSide::Both } else { MirrorSide::Egress };
                let longest = tofino::longest_copy(settings, &copies);
                let mirror = Mirror { to: Towards::Group(group), at, longest };
                tables.set(Item::Clone(session), Holds::Mirror(mirror));
            }
        }
    }
    tables
}

/// The forwarding tables, which stay when it stops reporting.
pub fn forwarding(settings: &SwitchReporterSettings, options: &SwitchOptions, platform: Platform) -> Tables {
    let mut tables = Tables::default();
    for port in &settings.ports {
        if port.ingress {
            tables.add_row(table::IngressPort { ingress_port: port.port }, table::Admit { hop: port.hop });
        }
        if port.egress {
            let allow = table::Allow { is_last_hop: port.is_last_hop };
            tables.add_row(table::EgressPort { egress_port: port.port }, allow);
        }
    }
    for (order, one) in (0..).zip(&settings.acl) {
        let key = table::Acl {
            ingress_port: one.ingress_port,
            source: one.source,
            destination: one.destination,
            protocol: one.protocol,
            source_port: one.source_ports,
            destination_port: one.destination_ports,
        };
        match one.permit {
            true => tables.ordered_row(order, key, table::Permit {}),
            false => tables.ordered_row(order, key, table::Deny { reason: one.reason }),
        }
    }
    for of in &settings.queues {
        tables.add_row(table::QueueOf { dscp: of.dscp }, table::UseQueue { queue: of.queue });
    }
    if !options.flood.is_empty() {
        let copies: Vec<_> = options.flood.iter().map(|port| (u32::from(*port), 0)).collect();
        platform.add_group(&mut tables, FLOOD_GROUP, tofino::NODES, &copies);
        for address in &settings.flood_macs {
            tables.add_row(table::L2 { destination: *address }, table::Flood { group: FLOOD_GROUP });
        }
    }
    for station in &options.stations {
        tables.add_row(table::L2 { destination: station.mac }, table::Forward { port: station.port });
    }
    for own in &options.router_macs {
        tables.add_row(table::L2 { destination: *own }, table::Route {});
    }
    for drop in &settings.drop_macs {
        tables.add_row(table::L2 { destination: drop.mac }, table::Drop { reason: drop.reason });
    }
    for route in &options.routes {
        let (port, source, destination) = (route.port, route.source, route.destination);
        tables.add_row(table::L3 { destination: route.prefix }, table::NextHop { port, source, destination });
    }
    for drop in &settings.drop_routes {
        tables.add_row(table::L3 { destination: drop.prefix }, table::Drop { reason: drop.reason });
    }
    tables
}

fn destination(
    tables: &mut Tables,
    number: u8,
    receiver: &ReportReceiver,
    settings: &SwitchReporterSettings,
) {
    let key = table::Destination { number };
    let (source_mac, source_ip) = settings.source;
    let (destination_mac, destination_ip) = (receiver.by.1, receiver.to.0);
    let (source_port, destination_port, tos) = (receiver.source_port, receiver.to.1, receiver.tos);
    match receiver.kind {
        ReceiverKind::Translator { reporter } => tables.add_row(
            key,
            table::Translator {
                reporter,
                source_mac,
                destination_mac,
                source_ip,
                destination_ip,
                source_port,
                destination_port,
                tos,
            },
        ),
        ReceiverKind::IntCollector { hardware, packet_bytes } => tables.add_row(
            key,
            table::IntCollector {
                hardware,
                packet_bytes,
                source_mac,
                destination_mac,
                source_ip,
                destination_ip,
                source_port,
                destination_port,
                tos,
            },
        ),
    }
}

fn add_report_row(tables: &mut Tables, replica: u32, destination: u8, becomes: Becomes) {
    let of = table::Report { replica };
    match becomes {
        Becomes::KeyWrite { store, redundancy, key, value, time: with_time } => {
            let (key_kind, value_kind) = (key as u8, value as u8);
            tables.add_row(
                of,
                table::KeyWrite { destination, store, redundancy, key_kind, value_kind, with_time },
            );
        }
        Becomes::Postcard { store, value } => {
            tables.add_row(of, table::Postcard { destination, store, value_kind: value as u8 });
        }
        Becomes::Append { store, list: list_number, entry, immediate } => {
            let entry_kind = entry as u8;
            tables.add_row(of, table::Append { destination, store, list_number, entry_kind, immediate });
        }
        Becomes::KeyIncrement { store, redundancy, key, value } => {
            let (key_kind, value_kind) = (key as u8, value as u8);
            tables.add_row(of, table::KeyIncrement { destination, store, redundancy, key_kind, value_kind });
        }
        Becomes::TelemetryReport => tables.add_row(of, table::TelemetryReport { destination }),
    }
}

/// The copies of a clone session: one for each output of the kinds of reports it is for.
fn session_copies(settings: &SwitchReporterSettings, session: u32) -> Vec<(u32, u32)> {
    let mut done: Vec<u8> = Vec::new();
    let mut copies = Vec::new();
    for (replica, made) in (1..).zip(&settings.reports) {
        if !of_session(session).iter().any(|what| made.of.contains(what)) {
            continue;
        }
        // One Telemetry Report covers a flow's packet that is also in a congested queue.
        if made.becomes == Becomes::TelemetryReport {
            if done.contains(&made.to) {
                continue;
            }
            done.push(made.to);
        }
        if let Some(receiver) = settings.destinations.get(usize::from(made.to).wrapping_sub(1)) {
            copies.push((u32::from(receiver.by.0), replica));
        }
    }
    copies
}

/// The kinds of reports of a clone session, whose number is their mask.
pub(super) fn of_session(session: u32) -> &'static [SwitchReportKind] {
    match session {
        1 => &[SwitchReportKind::Flow],
        2 => &[SwitchReportKind::Queue],
        3 => &[SwitchReportKind::Flow, SwitchReportKind::Queue],
        _ => &[SwitchReportKind::Drop],
    }
}
