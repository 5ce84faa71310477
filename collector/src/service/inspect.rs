//! Statistics: what operators look at.

use dta_proto::control::{NodeStatistics, StatisticsResponse};

use super::{Service, convert};

impl Service {
    pub(super) fn statistics(&self) -> StatisticsResponse {
        let own = |node: String, counters| NodeStatistics {
            node,
            counters: convert::counters(counters),
            ..NodeStatistics::default()
        };
        // Before the NIC's: what a translator has sent by then has arrived or is lost, and frames on the way are not taken for lost.
        let handed_in = self.sessions.statistics();
        let mut nodes = vec![
            own(format!("nic/{}", self.nic.device().name), self.nic.counters()),
            own("collector".into(), self.own_counters()),
        ];
        nodes.extend(handed_in.into_iter().map(|n| NodeStatistics {
            node: n.node,
            counters: convert::counters(n.counters),
            age_seconds: n.age.as_secs_f64(),
            session: n.session,
            life: 0,
        }));
        StatisticsResponse { nodes }
    }

    fn own_counters(&self) -> Vec<(String, u64)> {
        let s = self.sessions.counters();
        let mut all: Vec<(String, u64)> = [
            ("session.opened", s.opened),
            ("session.resumed", s.resumed),
            ("session.renewed", s.renewed),
            ("session.expired", s.expired),
            ("session.ended", s.ended),
            ("session.refused", s.refused),
            ("session.queue_pairs_rebuilt", s.queue_pairs_rebuilt),
            ("session.rebuilds_held_back", s.rebuilds_held_back),
            ("session.statistics_left_out", s.statistics_left_out),
            ("session.statistics_no_room", s.statistics_no_room),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        all.extend(self.memory.counters());
        all.extend(self.connections.named());
        all
    }
}
