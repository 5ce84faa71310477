//! The HTTP interface: one table of routes both answers requests and produces `/api/openapi.json`.

mod answers;
mod routes;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dta_export::names::Names;
use dta_rpc::{Ask, Spread};
use dta_views::stores::{StoreRow, fetch_store_rows};
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use tokio::sync::Semaphore;

pub(crate) use answers::{WATERFALL_STORE_AGE, read_waterfall};
pub(crate) use routes::{
    AnswerSchema, CSV, DownloadFormat, PARQUET, REFERRED_SCHEMAS, ROUTES, Route, SchemaFile,
};

use crate::counters::{WebCounters, count};
use crate::live::{EventStream, LiveFeeds};
use crate::openapi;
use crate::parameters::Parameters;
use crate::problem::Problem;
use crate::{Access, OwnNotices, WebOptions};

/// Requests answered at a time. Others wait, so that neither gRPC nor the NIC notices the page.
const TURNS: usize = 4;
/// How long a request waits for its turn.
const WAIT: Duration = Duration::from_secs(5);
/// Where the description of the interface is found.
const DESCRIPTION: &str = "/api/openapi.json";

pub(crate) struct WebServer {
    /// The same as `spread`, for views that take any.
    pub(crate) ask: Arc<dyn Ask>,
    pub(crate) spread: Spread,
    pub(crate) names: Arc<Names>,
    pub(crate) title: String,
    pub(crate) version: &'static str,
    pub(crate) access: RwLock<Access>,
    pub(crate) counters: Arc<WebCounters>,
    pub(crate) own_notices: OwnNotices,
    pub(crate) feeds: LiveFeeds,
    turns: Semaphore,
    description: Bytes,
    /// When the stores were last measured, and the result.
    stores: tokio::sync::Mutex<Option<(Instant, Arc<[StoreRow]>)>>,
}

/// A complete answer, or one that goes on.
pub(crate) enum WebAnswer {
    Json(Bytes),
    Download(Download),
    Events(EventStream),
}

/// A file to save.
pub(crate) struct Download {
    pub(crate) format: &'static DownloadFormat,
    pub(crate) content: Bytes,
}

/// An answer in the making.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Result<WebAnswer, Problem>> + Send>>;

impl WebServer {
    pub(crate) fn new(options: WebOptions) -> Self {
        let WebOptions { ask: spread, names, title, version, access, counters, own_notices } = options;
        let description = to_json(&openapi::describe_interface(version)).unwrap_or_default();
        Self {
            ask: Arc::new(spread.clone()),
            spread,
            names,
            title,
            version,
            access: RwLock::new(access),
            counters,
            own_notices,
            feeds: LiveFeeds::default(),
            turns: Semaphore::new(TURNS),
            description: description.into(),
            stores: Default::default(),
        }
    }

    /// Refuses a request, judged by its headers, if the caller may not ask.
    pub(crate) fn check_access(&self, headers: &HeaderMap) -> Result<(), Problem> {
        self.access.read().unwrap_or_else(PoisonError::into_inner).check_request(headers)
    }

    /// The stores, measured at most this long ago: measuring them reads a sample of all memory, which pages
    /// open at the same time share.
    pub(crate) async fn stores_younger_than(&self, age: Duration) -> Result<Arc<[StoreRow]>, Problem> {
        let mut last = self.stores.lock().await;
        match &*last {
            Some((measured, rows)) if measured.elapsed() < age => Ok(rows.clone()),
            _ => {
                let rows: Arc<[StoreRow]> = fetch_store_rows(&self.spread).await?.into();
                *last = Some((Instant::now(), rows.clone()));
                Ok(rows)
            }
        }
    }

    pub(crate) async fn answer(self: &Arc<Self>, path: &str, query: &str) -> Result<WebAnswer, Problem> {
        if path == DESCRIPTION {
            return Ok(WebAnswer::Json(self.description.clone()));
        }
        let Some(route) = ROUTES.iter().find(|route| route.path == path) else {
            let detail = format!("there is nothing at {path:?}: {DESCRIPTION} lists what there is");
            return Err(Problem::new(StatusCode::NOT_FOUND, detail));
        };
        let parameters = Parameters::parse(query, route.parameters)?;
        let _turn = tokio::time::timeout(WAIT, self.turns.acquire()).await.map_err(|_| {
            count(&self.counters.busy);
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many requests are being answered: ask again")
        })?;
        (route.answer)(self.clone(), parameters).await
    }
}

pub(crate) fn to_json(document: &(impl Serialize + ?Sized)) -> Result<Vec<u8>, Problem> {
    serde_json::to_vec(document).map_err(|error| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot encode JSON: {error}"))
    })
}
