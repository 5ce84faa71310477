//! Logs dropped reports: one line per reason and [`EVERY`], with the first offender and the number since the
//! last line.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use dta_dataplane::Offender;
use dta_dataplane::counters::Reason;
use dta_proto::counter::Reason as R;
use dta_proto::fit::check_report_fit;
use dta_proto::program::{DataPlaneEntry, Program, Store};
use dta_proto::wire::dta::{DtaReport, Version};
use dta_proto::wire::{ipv4, udp};

use crate::packets::Dropped;

/// Minimum interval between lines for one reason.
pub(super) const EVERY: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct DropLog {
    of: Vec<DropReasonState>,
}

#[derive(Clone, Copy, Default)]
struct DropReasonState {
    /// When it was last logged, and the count then.
    logged_at: Option<Instant>,
    before: u64,
    /// The first since then, and the count now.
    first: Option<Offender>,
    total: u64,
}

/// A line that is due.
pub(super) struct Due {
    reason: Reason,
    reports: u64,
    first: Offender,
}

impl DropLog {
    /// Adds what was dropped since the last call. Returns the lines to log now.
    pub(super) fn due_lines(&mut self, dropped: &[Dropped], now: Instant) -> Vec<Due> {
        self.of.resize(Reason::ALL.len(), DropReasonState::default());
        for dropped in dropped {
            let known = &mut self.of[dropped.reason as usize];
            known.first.get_or_insert(dropped.first);
            known.total = dropped.total;
        }
        let mut due = Vec::new();
        for (reason, known) in Reason::ALL.iter().zip(&mut self.of) {
            if known.logged_at.is_some_and(|logged_at| now.saturating_duration_since(logged_at) < EVERY) {
                continue;
            }
            if let Some(first) = known.first.take() {
                let reports = known.total.saturating_sub(known.before);
                (known.logged_at, known.before) = (Some(now), known.total);
                due.push(Due { reason: *reason, reports, first });
            }
        }
        due
    }
}

impl Due {
    pub(super) fn log_drops(&self, program: &Program) {
        let About { reporter, store, misfit } = describe_offender(&self.first, program);
        let (reason, reports) = (self.reason.name(), self.reports);
        let meaning = Reason::VALUES[self.reason as usize].meaning;
        let detail = misfit.map(|misfit| format!(" ({misfit})")).unwrap_or_default();
        let advice = self.reason.advice();
        // Lossy or duplicating networks cause these without anybody's fault.
        if matches!(self.reason, R::Duplicate | R::LatePostcard) {
            tracing::info!(reason, reports, %reporter, %store, "reports are dropped: {meaning}{detail}; {advice}");
        } else {
            tracing::warn!(reason, reports, %reporter, %store, "reports are dropped: {meaning}{detail}; {advice}");
        }
    }
}

/// A description of a dropped report.
struct About {
    reporter: String,
    store: String,
    /// How it does not fit its store.
    misfit: Option<String>,
}

fn describe_offender(offender: &Offender, program: &Program) -> About {
    if let Some((reporter, store)) = offender.reporter_and_store() {
        // Reports made from INT arrive parsed and have no reporter, as do those handed over by another
        // worker.
        let reporter = match reporter {
            0 => "none: it was made from an INT Telemetry Report".into(),
            reporter => reporter.to_string(),
        };
        return About { reporter, store: store_name(store, program), misfit: None };
    }
    let packet = offender.offending_packet();
    let nobody = || About { reporter: "unknown".into(), store: "unknown".into(), misfit: None };
    let Some(ip) = ipv4::Ipv4Header::from_first_bytes(packet) else { return nobody() };
    let behind = packet.get(ip.header_len()..).unwrap_or_default();
    let Some(udp) = udp::UdpHeader::from_first_bytes(behind) else {
        return About { reporter: format!("at {}", ip.source_address()), ..nobody() };
    };
    let at = format_address(ip.source_address(), udp.source_port());
    let payload = behind.get(udp::HEADER_LEN..).unwrap_or_default();
    let report = match DtaReport::parse_payload(payload) {
        Ok(report) => report,
        Err(error) => {
            return About { reporter: format!("at {at}"), misfit: Some(error.to_string()), ..nobody() };
        }
    };
    let store = match report.version {
        Version::V1 => Some(report.store),
        Version::V0 => program.entries().find_map(|entry| match entry {
            DataPlaneEntry::Version0(entry) if entry.primitive == report.body.primitive() => {
                Some(entry.store)
            }
            _ => None,
        }),
    };
    let misfit = store
        .and_then(|id| program_stores(program).find(|store| store.spec.id == id))
        .and_then(|store| check_report_fit(&store.spec, &report.body).err())
        .map(|misfit| misfit.to_string());
    About {
        reporter: match report.version {
            Version::V1 => format!("{} at {at}", report.reporter),
            Version::V0 => format!("version 0, at {at}"),
        },
        store: match store {
            Some(id) => store_name(id, program),
            None => format!("none for version-0 {}", report.body.primitive()),
        },
        misfit,
    }
}

fn format_address(ip: Ipv4Addr, port: u16) -> String {
    format!("{ip}:{port}")
}

fn program_stores(program: &Program) -> impl Iterator<Item = &Store> {
    program.entries().filter_map(|entry| match entry {
        DataPlaneEntry::Store(store) => Some(store),
        _ => None,
    })
}

/// `1 (flows, key-write)`, or the existing ones.
fn store_name(id: u16, program: &Program) -> String {
    if let Some(store) = program_stores(program).find(|store| store.spec.id == id) {
        return format!("{id} ({}, {})", store.spec.name, store.spec.primitive());
    }
    let there: Vec<String> = program_stores(program)
        .take(8)
        .map(|store| format!("{} {}", store.spec.id, store.spec.name))
        .collect();
    match (there.is_empty(), program_stores(program).count() - there.len()) {
        (true, _) => format!("{id} (no store known yet)"),
        (false, 0) => format!("{id} (there are {})", there.join(", ")),
        (false, more) => format!("{id} (there are {} and {more} more)", there.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;

    use dta_dataplane::{Engine, EngineLimits, EngineOutput};
    use dta_proto::buckets::Copies;
    use dta_proto::key::Key;
    use dta_proto::program::{Purpose, Rkey};
    use dta_proto::store::{StoreKind, StoreSpec};
    use dta_proto::wire::datagram;
    use dta_proto::wire::dta::DtaBody;

    use super::*;

    fn packet(payload: &[u8]) -> Vec<u8> {
        let from: SocketAddrV4 = "10.0.0.7:5000".parse().unwrap();
        let to: SocketAddrV4 = "10.0.0.1:40040".parse().unwrap();
        let mut packet = datagram::encode_header(from, to, payload.len()).to_vec();
        packet.extend_from_slice(payload);
        packet
    }

    fn report(sequence: u32, store: u16, value: &[u8]) -> Vec<u8> {
        let report = DtaReport {
            sequence,
            reporter: 7,
            ..DtaReport::new(store, DtaBody::KeyWrite { redundancy: 0, key: Key([1; 16]), value })
        };
        let mut payload = [0; 256];
        let len = report.encode_into(&mut payload).unwrap();
        packet(&payload[..len])
    }

    fn program() -> Program {
        let spec = StoreSpec {
            id: 1,
            name: "flows".into(),
            kind: StoreKind::KeyWrite { slots: 8, value_len: 12, redundancy: 2, keys: Default::default() },
        };
        let store = Store {
            collector: 0,
            length: spec.region_len(),
            spec,
            buckets: Copies::default(),
            address: 1 << 32,
            rkey: Rkey(1),
            generation: 1,
            queue_pair: Purpose::Write,
        };
        Program::from(vec![DataPlaneEntry::Store(store)])
    }

    fn dropped(engine: &mut Engine) -> Vec<Dropped> {
        let first: Vec<_> = engine.take_offenders().collect();
        first
            .into_iter()
            .map(|(reason, first)| Dropped {
                reason,
                total: engine.engine_counters().dropped_reports(reason),
                first,
            })
            .collect()
    }

    #[test]
    fn a_flood_is_one_line_for_each_reason_and_interval() {
        let mut engine = Engine::new(EngineLimits::default());
        let (mut out, mut drops, start) = (EngineOutput::default(), DropLog::default(), Instant::now());
        let mut sequence = 0;
        let mut flood = |engine: &mut Engine, count: u32| {
            for _ in 0..count {
                sequence += 1;
                let packets = [report(sequence, 99, &[0; 12]), packet(b"no report")];
                engine.ingest_packets(
                    u64::from(sequence),
                    packets.iter().map(|packet| &packet[..]),
                    &mut out,
                );
            }
        };
        flood(&mut engine, 1000);
        let due = drops.due_lines(&dropped(&mut engine), start);
        let counts = |due: &[Due]| due.iter().map(|due| (due.reason.name(), due.reports)).collect::<Vec<_>>();
        assert_eq!(counts(&due), [("opcode", 1000), ("unknown_store", 1000)]);
        for second in 1..10 {
            flood(&mut engine, 5);
            assert!(drops.due_lines(&dropped(&mut engine), start + Duration::from_secs(second)).is_empty());
        }
        // Nothing came since, and earlier drops were logged.
        assert_eq!(counts(&drops.due_lines(&[], start + EVERY)), [("opcode", 45), ("unknown_store", 45)]);
        assert!(drops.due_lines(&dropped(&mut engine), start + 5 * EVERY).is_empty());
    }

    #[test]
    fn reporter_store_and_misfit_are_described() {
        let about_of = |packet: &[u8]| {
            let mut engine = Engine::new(EngineLimits::default());
            engine.ingest_packets(0, [packet], &mut EngineOutput::default());
            let first = engine.take_offenders().next().expect("a drop").1;
            describe_offender(&first, &program())
        };
        let unknown = about_of(&report(1, 99, &[0; 12]));
        assert_eq!((&*unknown.reporter, &*unknown.store), ("7 at 10.0.0.7:5000", "99 (there are 1 flows)"));
        let long = about_of(&report(1, 1, &[0; 16]));
        assert_eq!(long.store, "1 (flows, key-write)");
        let misfit = long.misfit.unwrap();
        assert_eq!(misfit, "the length of the value is 16, but store `flows` takes at most 12 bytes");
        let foreign = about_of(&packet(b"no report"));
        assert_eq!((&*foreign.reporter, &*foreign.store), ("at 10.0.0.7:5000", "unknown"));
        assert!(foreign.misfit.is_some());
        // Longer than what is kept of it, and shorter than a header.
        assert_eq!(about_of(&packet(&[0xff; 1000])).reporter, "at 10.0.0.7:5000");
        assert_eq!(about_of(&[0x45; 3]).reporter, "unknown");

        let mut engine = Engine::new(EngineLimits::default());
        let body = DtaBody::KeyWrite { redundancy: 0, key: Key([1; 16]), value: &[0; 12] };
        engine.execute_unnumbered(0, [(99, body)], &mut EngineOutput::default());
        let made = describe_offender(&engine.take_offenders().next().expect("a drop").1, &program());
        assert_eq!((made.reporter.contains("INT"), &*made.store), (true, "99 (there are 1 flows)"));
    }
}
