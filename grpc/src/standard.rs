//! The standard services beside a daemon's own: health (`grpc.health.v1.Health`), by which load balancers
//! and supervisors ask whether a port serves, and reflection (`grpc.reflection.v1`), by which tools ask what
//! can be called. They are served on the daemon's own port, so that nobody reaches them who may not call
//! the daemon.

use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};

/// Whether a daemon serves, as its health service tells it. Begins with "no".
#[derive(Clone)]
pub struct Health {
    serving: watch::Sender<bool>,
    reporter: HealthReporter,
}

impl Health {
    /// Tells whether the daemon serves from now on.
    pub fn set(&self, serving: bool) {
        self.serving.send_if_modified(|now| std::mem::replace(now, serving) != serving);
    }

    /// What was told last.
    pub fn is_serving(&self) -> bool {
        *self.serving.borrow()
    }

    /// The service to add to a server.
    pub fn service(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.reporter.clone()))
    }
}

/// The health of a service, which is asked for by its full name (`dta.v1.Collector`) or by none. To be
/// called within a tokio runtime.
pub fn health(service: &'static str) -> Health {
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

/// Reflection of services, of which `descriptors` is the encoded `FileDescriptorSet`, and of health.
///
/// # Errors
/// The descriptors cannot be read.
pub fn reflection(descriptors: &[u8]) -> Result<ServerReflectionServer<impl ServerReflection>, String> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(descriptors)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| error.to_string())
}
