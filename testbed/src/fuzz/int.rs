use dta_telemetry::int::{Dialect, IntSettings, Mark, parse_reports};

/// Byte 0 says how the rest is read.
pub(crate) fn check(bytes: &[u8]) -> bool {
    let Some((how, payload)) = bytes.split_first() else { return false };
    let dialect = Dialect::ALL[usize::from(how & 7)];
    let mark = [Mark::ByDialect, Mark::Guess, Mark::Always, Mark::Never][usize::from(how >> 3 & 3)];
    let settings = IntSettings { dialect, mark, source_only_words: how >> 5 };
    let Ok(reports) = parse_reports(payload, &settings) else { return false };
    let mut taken = false;
    for report in reports.flatten() {
        taken |= report.packet.is_ok();
        for (switch, hop) in report.hops_with_switches() {
            // Every hop lies in the packet, so there cannot be more than it has words.
            assert!(switch != Some(u32::MAX) || report.switch == switch);
            let fills = [hop.queue_fill(), hop.congestion(), hop.buffer_fill()];
            assert!(fills.iter().all(|fill| fill.id.is_none_or(|id| id < 0xffff)));
            assert_ne!(hop.ingress_port(), Some(u32::MAX));
            assert_ne!(hop.egress_port(), Some(u32::MAX));
            let _ = (hop.node_latency(), hop.utilization(), hop.drop_reason(), hop.drop_queue());
        }
        if let Some(stack) = report.packet_stack() {
            assert!(stack.len() * 4 <= payload.len());
        }
    }
    taken
}
