//! Messages for questions about flow records, and merging the answers of several collectors.

use dta_proto::control::{self, FlowsRequest, FlowsResponse};
use dta_proto::flow_query::{
    FlowAnswer, FlowFilter, FlowQuestion, FlowRow, FlowSum, FlowSums, FlowTally, FlowTallyParts, ScanCounts,
};
use tonic::Status;

use crate::ClientError;

/// How many groups an answer has if the request does not say.
const DEFAULT_GROUPS: usize = 10;
/// Most bytes of mergeable sums in one answer.
const MAX_PARTS: usize = 48 << 20;

fn request(store: &str, question: &FlowQuestion) -> FlowsRequest {
    FlowsRequest {
        store: store.to_owned(),
        condition: question.filter.to_string(),
        group: question.group.iter().map(|column| column.name.to_owned()).collect(),
        since: question.since,
        until: question.until,
        per: question.per,
        ..FlowsRequest::default()
    }
}

/// Asks for the largest groups.
pub(crate) fn ranked_request(store: &str, question: &FlowQuestion, by: FlowSum, most: usize) -> FlowsRequest {
    FlowsRequest {
        by: by.name().to_owned(),
        most: most.try_into().unwrap_or(u32::MAX),
        ..request(store, question)
    }
}

/// The question in a request.
///
/// # Errors
/// A condition, a column or a sum does not exist.
pub fn parse_request(request: &FlowsRequest) -> Result<FlowQuestion, ClientError> {
    let invalid = |error: String| ClientError::from(Status::invalid_argument(error));
    Ok(FlowQuestion {
        filter: FlowFilter::parse(&request.condition, &|_| None).map_err(|e| invalid(e.to_string()))?,
        group: FlowQuestion::parse_group(&request.group.join(",")).map_err(|e| invalid(e.to_string()))?,
        since: request.since,
        until: request.until,
        per: request.per,
    })
}

/// The answer to a request: the largest groups, or sums to merge.
///
/// # Errors
/// A sum does not exist.
pub fn answer_request(
    request: &FlowsRequest,
    tally: FlowTally,
    scanned: ScanCounts,
) -> Result<FlowsResponse, ClientError> {
    let ScanCounts { batches, overwritten, missing, torn } = scanned;
    let counts = FlowsResponse { batches, overwritten, missing, torn, ..FlowsResponse::default() };
    let by = match &request.by[..] {
        "" => FlowSum::default(),
        name => FlowSum::from_name(name).ok_or_else(|| {
            let names = FlowSum::NAMES.join(", ");
            ClientError::from(Status::invalid_argument(format!(
                "flows are ranked by {names}, not by `{name}`"
            )))
        })?,
    };
    if request.parts {
        return Ok(FlowsResponse { parts: Some(parts_message(tally.to_parts(by, MAX_PARTS))), ..counts });
    }
    let most = if request.most == 0 { DEFAULT_GROUPS } else { request.most as usize };
    let answer = tally.rank_groups(by, most);
    Ok(FlowsResponse {
        groups: answer.rows.iter().map(group_message).collect(),
        total: Some(sums_message(answer.total)),
        group_count: answer.groups,
        beyond: Some(sums_message(answer.beyond)),
        ..counts
    })
}

/// Reads the response to a ranked request.
pub(crate) fn read_answer(
    question: &FlowQuestion,
    response: FlowsResponse,
) -> Result<(FlowAnswer, ScanCounts), ClientError> {
    let columns = question.group.len();
    let row = |group: control::FlowGroup| {
        let values: Vec<u128> = group.values.iter().map(|bytes| read_value(bytes)).collect::<Option<_>>()?;
        let series = group.series.into_iter().map(|bucket| (bucket.start, read_sums(bucket.sums))).collect();
        (values.len() == columns).then(|| FlowRow { values, sums: read_sums(group.sums), series })
    };
    let scanned = read_counts(&response);
    let rows: Option<Vec<FlowRow>> = response.groups.into_iter().map(row).collect();
    let answer = FlowAnswer {
        group: question.group.clone(),
        rows: rows.ok_or_else(wrong_answer)?,
        total: read_sums(response.total),
        groups: response.group_count,
        beyond: read_sums(response.beyond),
        unreachable: response.unreachable,
    };
    Ok((answer, scanned))
}

/// Merges the sums of several collectors. `fetch` passes a request to each of them; it returns the answers, and the
/// addresses of those that did not answer.
pub(crate) async fn merge_answers<F>(
    asked: &FlowsRequest,
    fetch: impl Fn(FlowsRequest) -> F,
) -> Result<FlowsResponse, ClientError>
where
    F: Future<Output = Result<(Vec<FlowsResponse>, Vec<String>), ClientError>>,
{
    let question = parse_request(asked)?;
    let mut per_flow = asked.per_flow;
    loop {
        let parts = FlowsRequest { parts: true, per_flow, ..asked.clone() };
        let (responses, unreachable) = fetch(parts).await?;
        // A collector that has several exporters answers per flow, and then all others must, too.
        let is_per_flow =
            |response: &FlowsResponse| response.parts.as_ref().is_some_and(|parts| parts.per_flow);
        let mut needs_flows = !per_flow && responses.iter().any(is_per_flow);
        let mut tally = FlowTally::new(question.clone(), per_flow);
        let mut scanned = ScanCounts::default();
        for response in responses.into_iter().filter(|_| !needs_flows) {
            scanned.add(read_counts(&response));
            let parts = response.parts.and_then(read_parts).ok_or_else(wrong_answer)?;
            if !tally.add_parts(&parts) {
                return Err(wrong_answer());
            }
        }
        needs_flows |= tally.needs_flows();
        if !needs_flows {
            return Ok(FlowsResponse { unreachable, ..answer_request(asked, tally, scanned)? });
        }
        per_flow = true;
    }
}

fn wrong_answer() -> ClientError {
    Status::internal("a collector's answer about flows does not match the question").into()
}

fn read_counts(response: &FlowsResponse) -> ScanCounts {
    let FlowsResponse { batches, overwritten, missing, torn, .. } = *response;
    ScanCounts { batches, overwritten, missing, torn }
}

fn sums_message(sums: FlowSums) -> control::FlowSums {
    let FlowSums { bytes, packets, flows } = sums;
    control::FlowSums { bytes, packets, flows }
}

fn read_sums(message: Option<control::FlowSums>) -> FlowSums {
    let control::FlowSums { bytes, packets, flows } = message.unwrap_or_default();
    FlowSums { bytes, packets, flows }
}

fn group_message(row: &FlowRow) -> control::FlowGroup {
    let bytes = |value: &u128| value.to_be_bytes()[value.leading_zeros() as usize / 8..].to_vec();
    let bucket = |(start, sums): &(u64, FlowSums)| control::FlowBucket {
        start: *start,
        sums: Some(sums_message(*sums)),
    };
    control::FlowGroup {
        values: row.values.iter().map(bytes).collect(),
        sums: Some(sums_message(row.sums)),
        series: row.series.iter().map(bucket).collect(),
    }
}

fn read_value(bytes: &[u8]) -> Option<u128> {
    (bytes.len() <= 16).then(|| bytes.iter().fold(0, |value, byte| value << 8 | u128::from(*byte)))
}

fn parts_message(parts: FlowTallyParts) -> control::FlowParts {
    let observer = |(exporter, direction): (u128, u8)| [&exporter.to_be_bytes()[..], &[direction]].concat();
    control::FlowParts {
        per_flow: parts.per_flow,
        keys: parts.keys,
        sums: parts.sums.into_iter().map(sums_message).collect(),
        beyond: Some(sums_message(parts.beyond)),
        observer: parts.observer.map(observer).unwrap_or_default(),
        has_exporters: parts.has_exporters,
        has_directions: parts.has_directions,
    }
}

fn read_parts(message: control::FlowParts) -> Option<FlowTallyParts> {
    let observer = match message.observer.split_last() {
        None => None,
        Some((direction, exporter)) if exporter.len() == 16 => Some((read_value(exporter)?, *direction)),
        Some(_) => return None,
    };
    Some(FlowTallyParts {
        per_flow: message.per_flow,
        keys: message.keys,
        sums: message.sums.into_iter().map(|sums| read_sums(Some(sums))).collect(),
        beyond: read_sums(message.beyond),
        observer,
        has_exporters: message.has_exporters,
        has_directions: message.has_directions,
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use dta_proto::flow_record::FlowRecord;

    use super::*;

    fn record(exporter: u128, flow: u16, bytes: u64) -> FlowRecord {
        FlowRecord {
            exporter: std::net::Ipv6Addr::from_bits(exporter),
            src_port: flow,
            bytes,
            received: 5,
            ..FlowRecord::EMPTY
        }
    }

    /// The answer of a collector with these records.
    fn respond(request: &FlowsRequest, records: &[FlowRecord]) -> FlowsResponse {
        let question = parse_request(request).unwrap();
        let tally = |per_flow| {
            let mut tally = FlowTally::new(question.clone(), per_flow);
            records.iter().for_each(|record| tally.add_entries([&record.to_entry()[..]]));
            tally
        };
        let first = tally(request.per_flow);
        let tally = if first.needs_flows() { tally(true) } else { first };
        answer_request(request, tally, ScanCounts { batches: 1, ..ScanCounts::default() }).unwrap()
    }

    async fn merged(question: &FlowQuestion, collectors: &[&[FlowRecord]]) -> (Vec<u64>, ScanCounts, usize) {
        let rounds = RefCell::new(0);
        let asked = ranked_request("", question, FlowSum::Bytes, 5);
        let fetch = |request: FlowsRequest| {
            *rounds.borrow_mut() += 1;
            let responses = collectors.iter().map(|records| respond(&request, records)).collect();
            async move { Ok((responses, Vec::new())) }
        };
        let response = merge_answers(&asked, fetch).await.unwrap();
        let (answer, scanned) = read_answer(question, response).unwrap();
        (answer.rows.iter().map(|row| row.sums.bytes).collect(), scanned, rounds.take())
    }

    #[tokio::test]
    async fn answers_of_several_collectors_merge_and_no_flow_counts_twice() {
        let question = FlowQuestion {
            group: FlowQuestion::parse_group("src-port").unwrap(),
            filter: FlowFilter::parse("bytes > 1 and not src-port = 9", &|_| None).unwrap(),
            since: 5,
            per: 10,
            ..FlowQuestion::default()
        };
        let (a, b) =
            ([record(1, 1, 10), record(1, 2, 7), record(1, 9, 99)], [record(1, 1, 5), record(1, 2, 1)]);
        let (bytes, scanned, rounds) = merged(&question, &[&a, &b]).await;
        assert_eq!((bytes, scanned.batches, rounds), (vec![15, 7], 2, 1));
        // Two exporters, at different collectors: the sums are requested again, per flow.
        let c = [record(2, 1, 12), record(2, 3, 2)];
        assert_eq!(
            merged(&question, &[&a, &b, &c]).await,
            (vec![15, 7, 2], ScanCounts { batches: 3, ..scanned }, 2)
        );
        // Two exporters at one collector.
        let d = [a[0], c[0]];
        assert_eq!(merged(&question, &[&d, &b]).await.0, vec![15]);
        assert_eq!(merged(&question, &[&[], &[]]).await.0, Vec::<u64>::new());
    }

    #[test]
    fn what_cannot_be_asked_is_refused() {
        let request = |condition: &str, group: &str, by: &str| FlowsRequest {
            condition: condition.into(),
            group: vec![group.into()],
            by: by.into(),
            ..FlowsRequest::default()
        };
        assert!(parse_request(&request("bytes >", "", "")).is_err());
        assert!(parse_request(&request("", "dst-sa", "")).is_err());
        let bad = request("", "", "octets");
        let tally = FlowTally::new(parse_request(&bad).unwrap(), false);
        let error = answer_request(&bad, tally, ScanCounts::default()).unwrap_err();
        assert!(error.to_string().contains("bytes, packets, flows"), "{error}");
    }
}
