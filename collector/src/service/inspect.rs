//! Statistics for operators.

use std::time::{SystemTime, UNIX_EPOCH};

use dta_proto::control::{NodeStatistics, StatisticsResponse};

use super::agents;
use super::{CollectorService, convert};

impl CollectorService {
    pub(super) fn statistics(&self) -> StatisticsResponse {
        let own = |node: String, counters| NodeStatistics {
            node,
            counters: convert::counter_messages(counters),
            time_us: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64),
            ..NodeStatistics::default()
        };
        // Before the NIC's counters: whatever a translator has sent by then has arrived or is lost, so frames
        // on the way do not count as lost.
        let handed_in = self.sessions.statistics();
        let mut nodes = vec![
            own(format!("nic/{}", self.nic.describe_device().name), self.nic.named_counters()),
            own("collector".into(), self.own_counters()),
        ];
        nodes.extend(handed_in.into_iter().map(|n| NodeStatistics {
            node: n.node,
            counters: convert::counter_messages(n.counters),
            age_seconds: n.age.as_secs_f64(),
            session: n.session,
            life: 0,
            time_us: n.time_us,
        }));
        nodes.extend(agents::agent_nodes(&self.stores));
        StatisticsResponse { nodes }
    }

    fn own_counters(&self) -> Vec<(String, u64)> {
        let mut all = self.sessions.session_counters().named_counters();
        all.extend(self.memory.named_counters());
        all.extend(self.connections.named_counters());
        all.extend(self.alerts.counters().named_counters());
        #[cfg(feature = "web")]
        all.extend(self.web.named_counters());
        for (sink, counters) in self.exporters.get().into_iter().flatten() {
            all.extend(counters.named_counters(sink));
        }
        all
    }
}
