//! Converts between protobuf messages and this program's types. Input is checked here.

use std::time::Duration;

use dta_proto::control::{self, MAX_NODES};
use dta_proto::endpoint::Endpoint;
use dta_proto::program::MAX_COLLECTORS;
use dta_proto::queue_pair::has_24_bits;
use tonic::Status;

use crate::session::sharing::{Share, Sharing};
use crate::session::{NodeCounters, OpenRequest, RequesterQueuePair, SessionCaller};

pub(super) fn open_request(
    request: control::OpenSessionRequest,
    caller: SessionCaller,
) -> Result<OpenRequest, Status> {
    let translator = request.translator.as_ref().ok_or_else(|| {
        Status::invalid_argument("`translator` is missing: say where this session's frames come from")
    })?;
    let sharing = parse_sharing(request.shares, request.own_share)?;
    Ok(OpenRequest {
        name: request.name,
        translator: parse_endpoint(translator)?,
        queue_pairs: request.queue_pairs.iter().map(queue_pair).collect::<Result<_, _>>()?,
        lease: (request.lease_seconds != 0).then(|| Duration::from_secs(request.lease_seconds.into())),
        stores: request.stores,
        lists: request.lists.into_iter().map(Into::into).collect(),
        fresh: request.fresh,
        sharing,
        caller,
    })
}

fn parse_sharing(shares: Vec<control::CollectorShare>, own: u32) -> Result<Option<Sharing>, Status> {
    if shares.is_empty() {
        return Ok(None);
    }
    let (count, own) = (shares.len(), own as usize);
    if count > usize::from(MAX_COLLECTORS) || own >= count {
        return Err(Status::invalid_argument(format!(
            "`own_share` is {own} of {count} `shares`, but there may be {MAX_COLLECTORS} at most, and it must be one of them"
        )));
    }
    let share = |share: control::CollectorShare| {
        let buckets = control::copies_from_ranges(&share.buckets)
            .map_err(|error| Status::invalid_argument(format!("`shares.buckets`: {error}")))?;
        let lists = share.lists.into_iter().map(Into::into).collect();
        Ok(Share { address: share.address, stores: share.stores, buckets, lists })
    };
    let all = shares.into_iter().map(share).collect::<Result<_, Status>>()?;
    Ok(Some(Sharing { all, own }))
}

fn parse_endpoint(message: &control::Endpoint) -> Result<Endpoint, Status> {
    Endpoint::try_from(message)
        .map(Endpoint::with_usual_port)
        .map_err(|error| Status::invalid_argument(format!("`translator`: {error}")))
}

fn queue_pair(pair: &control::RequesterQueuePair) -> Result<RequesterQueuePair, Status> {
    for (field, value) in [("qpn", pair.qpn), ("start_psn", pair.start_psn)] {
        if !has_24_bits(value) {
            return Err(Status::invalid_argument(format!(
                "`queue_pairs`: {field} is {value:#x}, but must have 24 bits"
            )));
        }
    }
    let purpose = control::parse_purpose(pair.purpose)
        .map_err(|unknown| Status::invalid_argument(format!("`queue_pairs`: {unknown}")))?;
    Ok(RequesterQueuePair { purpose, qpn: pair.qpn, start_psn: pair.start_psn })
}

/// Counters of nodes, at most [`MAX_NODES`].
pub(super) fn node_counters(nodes: Vec<control::NodeStatistics>) -> Result<Vec<NodeCounters>, Status> {
    if nodes.len() > MAX_NODES {
        return Err(Status::invalid_argument(format!(
            "counters of {} nodes in one call, but at most {} are accepted; renew in several calls",
            nodes.len(),
            MAX_NODES
        )));
    }
    Ok(nodes
        .into_iter()
        .map(|n| NodeCounters {
            node: n.node,
            life: n.life,
            time_us: n.time_us,
            counters: n.counters.into_iter().map(|c| (c.name, c.value)).collect(),
        })
        .collect())
}

pub(super) fn counter_messages(counters: Vec<(String, u64)>) -> Vec<control::Counter> {
    counters.into_iter().map(|(name, value)| control::Counter { name, value }).collect()
}
