//! The layer in front of a service: who may call at all, and how many calls are worked on at a time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::peer::{Identity, Peer};

/// A tower layer over all connections of a server. Calls beyond the limits wait; what a waiting
/// call sends is bounded by HTTP/2's window.
#[derive(Clone, Debug)]
pub struct Admission {
    calls: Arc<Semaphore>,
}

impl Admission {
    /// At most `calls` are worked on at a time.
    pub fn new(calls: usize) -> Self {
        Self { calls: Arc::new(Semaphore::new(calls)) }
    }
}

impl<S> Layer<S> for Admission {
    type Service = Admitted<S>;

    fn layer(&self, inner: S) -> Admitted<S> {
        Admitted { inner, calls: self.calls.clone() }
    }
}

/// A service behind [`Admission`].
#[derive(Clone, Debug)]
pub struct Admitted<S> {
    inner: S,
    calls: Arc<Semaphore>,
}

impl<S> Service<Request<Body>> for Admitted<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The one that said it was ready is the one to be called.
        let next = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, next);
        let calls = self.calls.clone();
        Box::pin(async move {
            let peer = request.extensions().get::<Peer>();
            if let Some(Identity::Nameless(why)) = peer.map(Peer::identity) {
                return Ok(nameless(why).into_http());
            }
            let own = peer.map(|peer| peer.share.calls.clone());
            // Semaphores are closed by nobody: an error cannot be, and would only lift the limit.
            let _own = match own {
                Some(own) => own.acquire_owned().await.ok(),
                None => None,
            };
            let _all = calls.acquire_owned().await.ok();
            ready.call(request).await
        })
    }
}

fn nameless(why: &str) -> Status {
    Status::permission_denied(format!(
        "this client's certificate gives no DNS or URI name to know it by ({why}): issue it one with such a subject alternative name"
    ))
}
