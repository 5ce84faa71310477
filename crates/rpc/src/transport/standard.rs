//! The standard services of a daemon: health (`grpc.health.v1.Health`), with which load balancers and supervisors
//! check whether a port serves, and reflection (`grpc.reflection.v1`), with which tools list its methods. They are on
//! the daemon's own port, so only those who may call the daemon can reach them.

use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};

/// Whether a daemon serves, as its health service reports it. Initially "no".
#[derive(Clone)]
pub struct Health {
    serving: watch::Sender<bool>,
    reporter: HealthReporter,
}

impl Health {
    /// Sets whether the daemon serves from now on.
    pub fn set(&self, serving: bool) {
        self.serving.send_if_modified(|now| std::mem::replace(now, serving) != serving);
    }

    /// The last value set.
    pub fn is_serving(&self) -> bool {
        *self.serving.borrow()
    }

    /// The health service to add to a server.
    pub fn health_service(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.reporter.clone()))
    }
}

/// Starts the health of a service, under its full name (`dta.v1.Collector`) and under no name. Must be called within
/// a tokio runtime.
pub fn start_health(service: &'static str) -> Health {
    let reporter = HealthReporter::new();
    let (serving, mut now) = watch::channel(false);
    let health = Health { serving, reporter: reporter.clone() };
    tokio::spawn(async move {
        loop {
            let status =
                if *now.borrow_and_update() { ServingStatus::Serving } else { ServingStatus::NotServing };
            for name in ["", service] {
                reporter.set_service_status(name, status).await;
            }
            if now.changed().await.is_err() {
                return;
            }
        }
    });
    health
}

/// Reflection for services whose encoded `FileDescriptorSet` is `descriptors`, and for health.
///
/// # Errors
/// The descriptors cannot be decoded.
pub fn reflection(descriptors: &[u8]) -> Result<ServerReflectionServer<impl ServerReflection>, String> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(descriptors)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| error.to_string())
}
