//! Answers questions about flow records from the rings of their lists and, for what these no longer hold, from the history.

use std::collections::BTreeMap;
use std::sync::Arc;

use dta_memory::reader::flow_scan::{FlowRings, holds_flow_records, scan_threads};
use dta_memory::store::Store;
use dta_proto::control::{FlowsRequest, FlowsResponse};
use dta_proto::flow_query::{FlowQuestion, FlowTally, ScanCounts};
use dta_proto::flow_record;
use dta_proto::wire::dta::Primitive;
use dta_rpc::flows::{answer_request, parse_request};
use dta_rpc::{ClientError, Span};

use super::{AskError, Memory};

/// Milliseconds within which a received record is in an epoch: it waits for its batch, and for the epoch to
/// read it.
const MAX_EPOCH_DELAY_MS: u64 = 60_000;

impl Memory {
    /// [`Ask::fetch_flows`](dta_rpc::Ask::fetch_flows): runs a few scans at a time.
    pub(super) async fn answer_flows(&self, request: FlowsRequest) -> Result<FlowsResponse, ClientError> {
        let question = parse_request(&request)?;
        let place = self.flow_scans.clone().acquire_owned().await;
        let (store, per_flow) = (request.store.clone(), request.per_flow);
        // Ranking takes as long as the scan, so both run where they may block.
        self.run_blocking(move |memory| {
            let _place = place;
            let store = memory.find_flow_records(&store)?;
            let (tally, scanned) = memory.tally_flows(&store, &question, per_flow)?;
            Ok(answer_request(&request, tally, scanned))
        })
        .await?
    }

    fn find_flow_records(&self, name: &str) -> Result<Arc<Store>, AskError> {
        let name = if name.is_empty() { flow_record::STORE } else { name };
        let store = self.find_store(name, Primitive::Append)?;
        match holds_flow_records(&store) {
            true => Ok(store),
            false => Err(AskError::NoFlowRecords(store.spec.name.clone())),
        }
    }

    fn tally_flows(
        &self,
        store: &Store,
        question: &FlowQuestion,
        per_flow: bool,
    ) -> Result<(FlowTally, ScanCounts), AskError> {
        let outside = |source| store.outside_region(source);
        let rings = FlowRings::open(store, scan_threads()).map_err(outside)?;
        // Without a first moment, the question is about what memory holds.
        if self.epochs.is_none()
            || question.since == 0
            || rings.reaches_back_to(question.since).map_err(outside)?
        {
            return Ok(rings.tally_flows(question, per_flow).map_err(outside)?);
        }
        let found = self.tally_with_history(store, question, per_flow)?;
        if found.0.needs_flows() { self.tally_with_history(store, question, true) } else { Ok(found) }
    }

    /// Combines what the history has of the time with what memory has after it.
    fn tally_with_history(
        &self,
        store: &Store,
        question: &FlowQuestion,
        per_flow: bool,
    ) -> Result<(FlowTally, ScanCounts), AskError> {
        let mut kept = FlowTally::new(question.clone(), per_flow);
        let until = if question.until == 0 { 0 } else { question.until / 1_000_000 + MAX_EPOCH_DELAY_MS };
        let span = Span { since: question.since / 1_000_000, until };
        let behind = match &self.epochs {
            Some(epochs) => epochs.tally_kept_flows(&store.spec.name, span, &mut kept)?,
            None => None,
        };
        let behind = behind.unwrap_or_else(BTreeMap::new);
        // Read after the history, so that no batch is missed by both.
        let rings = FlowRings::open(store, scan_threads());
        let scanned = rings.and_then(|rings| rings.scan_lists(question, per_flow, &behind));
        let (mut tally, scanned) = scanned.map_err(|source| store.outside_region(source))?;
        tally.merge(&[kept]);
        Ok((tally, scanned))
    }
}
