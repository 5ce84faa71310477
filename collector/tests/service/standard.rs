//! The standard services: health and reflection, asked by a raw client.

use std::time::{Duration, Instant};

use dta_collector::server::RunningCollector;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::common::config;

async fn channel(server: &RunningCollector) -> Channel {
    Channel::from_shared(format!("http://{}", server.listen)).unwrap().connect().await.unwrap()
}

async fn health(channel: &Channel, service: &str) -> ServingStatus {
    let request = HealthCheckRequest { service: service.into() };
    HealthClient::new(channel.clone()).check(request).await.unwrap().into_inner().status()
}

async fn becomes(channel: &Channel, service: &str, status: ServingStatus) {
    let until = Instant::now() + Duration::from_secs(60);
    while health(channel, service).await != status {
        assert!(Instant::now() < until, "{service:?} is not {status:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_true_to_life() {
    let server = RunningCollector::start(&config()).await.unwrap();
    let channel = channel(&server).await;
    for service in ["", "dta.v1.Collector"] {
        becomes(&channel, service, ServingStatus::Serving).await;
    }
    let unknown = HealthCheckRequest { service: "dta.v1.Nobody".into() };
    let refused = HealthClient::new(channel.clone()).check(unknown).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound);
    server.set_serving(false);
    for service in ["", "dta.v1.Collector"] {
        becomes(&channel, service, ServingStatus::NotServing).await;
    }
    // Watchers are notified of the end.
    server.set_serving(true);
    becomes(&channel, "", ServingStatus::Serving).await;
    let request = HealthCheckRequest { service: String::new() };
    let mut watched = HealthClient::new(channel.clone()).watch(request).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let (message, stopped) = tokio::join!(watched.message(), server.shut_down());
    stopped.unwrap();
    assert_eq!(message.unwrap().unwrap().status(), ServingStatus::NotServing);
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_lists_services_and_their_messages() {
    let server = RunningCollector::start(&config()).await.unwrap();
    let mut client = ServerReflectionClient::new(channel(&server).await);
    let ask = |message: MessageRequest| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message),
    };
    let requests = tokio_stream::iter([
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("dta.v1.Collector".into())),
    ]);
    let mut answers = client.server_reflection_info(requests).await.unwrap().into_inner();
    let Some(MessageResponse::ListServicesResponse(list)) =
        answers.message().await.unwrap().unwrap().message_response
    else {
        panic!("no list of services")
    };
    let names: Vec<_> = list.service.iter().map(|service| &*service.name).collect();
    assert!(names.contains(&"dta.v1.Collector") && names.contains(&"grpc.health.v1.Health"), "{names:?}");
    let Some(MessageResponse::FileDescriptorResponse(file)) =
        answers.message().await.unwrap().unwrap().message_response
    else {
        panic!("no file")
    };
    let text = String::from_utf8_lossy(&file.file_descriptor_proto[0]).into_owned();
    assert!(text.contains("QuerySeries"), "{text:?}");
    server.shut_down().await.unwrap();
}
