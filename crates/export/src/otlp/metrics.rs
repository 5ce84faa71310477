//! Pages of metrics.

use crate::metrics::{Labels, MetricKind, MetricsPage, Number};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum,
    number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use tonic::Status;
use tonic::transport::Channel;

use super::{attribute, collector_resource, instrumentation_scope, signal};
use crate::encode::EncodePages;
use crate::run::RECORD;

pub(super) type Request = ExportMetricsServiceRequest;

impl signal::Request for Request {
    type Item = Metric;
    type Response = ExportMetricsServiceResponse;
    const PATH: &str = "/v1/metrics";

    fn items_mut(&mut self) -> Option<&mut Vec<Metric>> {
        Some(&mut self.resource_metrics.first_mut()?.scope_metrics.first_mut()?.metrics)
    }

    fn count_points(metric: &Metric) -> u64 {
        match &metric.data {
            Some(Data::Gauge(Gauge { data_points }) | Data::Sum(Sum { data_points, .. })) => {
                data_points.len() as u64
            }
            _ => 0,
        }
    }

    async fn call(
        channel: Channel,
        request: tonic::Request<Request>,
    ) -> Result<ExportMetricsServiceResponse, Status> {
        Ok(MetricsServiceClient::new(channel).export(request).await?.into_inner())
    }

    fn rejected_parts(response: ExportMetricsServiceResponse) -> Option<(i64, String)> {
        response.partial_success.map(|part| (part.rejected_data_points, part.error_message))
    }
}

pub(super) struct MetricsEncoder {
    resource: Resource,
}

impl MetricsEncoder {
    pub(super) fn new(name: &str) -> Self {
        Self { resource: collector_resource(name) }
    }

    fn encode_request(&self, metrics: Vec<Metric>) -> Vec<u8> {
        let scope_metrics =
            ScopeMetrics { scope: Some(instrumentation_scope()), metrics, ..ScopeMetrics::default() };
        let resource_metrics = ResourceMetrics {
            resource: Some(self.resource.clone()),
            scope_metrics: vec![scope_metrics],
            ..ResourceMetrics::default()
        };
        Request { resource_metrics: vec![resource_metrics] }.encode_to_vec()
    }
}

impl EncodePages for MetricsEncoder {
    fn encode_page(&mut self, page: MetricsPage, time: u64) -> Vec<(Vec<u8>, u64)> {
        let (mut records, mut metrics, mut points) = (Vec::new(), Vec::new(), 0);
        for (name, family) in page.into_families() {
            let mut series = family.series.into_iter().peekable();
            while series.peek().is_some() {
                let room = (RECORD - points) as usize;
                let data_points: Vec<_> = series
                    .by_ref()
                    .take(room)
                    .map(|(labels, number)| data_point(labels, number, time))
                    .collect();
                points += data_points.len() as u64;
                let data = match family.kind {
                    MetricKind::Gauge => Data::Gauge(Gauge { data_points }),
                    MetricKind::Counter => Data::Sum(Sum {
                        data_points,
                        aggregation_temporality: AggregationTemporality::Cumulative.into(),
                        is_monotonic: true,
                    }),
                };
                metrics.push(Metric {
                    name: name.clone(),
                    description: family.help.clone().into_owned(),
                    data: Some(data),
                    ..Metric::default()
                });
                if points == RECORD {
                    records.push((self.encode_request(std::mem::take(&mut metrics)), points));
                    points = 0;
                }
            }
        }
        if points > 0 {
            records.push((self.encode_request(metrics), points));
        }
        records
    }
}

/// A point. It has no start time, because other nodes keep counting when this program restarts.
fn data_point(labels: Labels, number: Number, time: u64) -> NumberDataPoint {
    let value = match number {
        Number::Whole(whole) => match i64::try_from(whole) {
            Ok(whole) => number_data_point::Value::AsInt(whole),
            Err(_) => number_data_point::Value::AsDouble(whole as f64),
        },
        Number::Real(real) => number_data_point::Value::AsDouble(real),
    };
    let attributes = labels.into_iter().map(|(name, value)| attribute(name, Value::StringValue(value)));
    NumberDataPoint {
        attributes: attributes.collect(),
        time_unix_nano: time,
        value: Some(value),
        ..NumberDataPoint::default()
    }
}
