//! A place in object storage, whose objects can be put, read, listed and removed.

use std::fs::File;
use std::future::Future;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::AmazonS3;
use object_store::path::Path;
use object_store::{
    BackoffConfig, Error, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload,
    RetryConfig,
};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::http::Http;
use super::{S3Error, Variables, credentials};
use crate::temporary::random_number;

/// Files up to this size are sent in one request, longer ones in parts, of which one is in memory at a time.
const PART: u64 = 16 << 20;
/// Most parts that S3 accepts.
const PARTS: u64 = 10_000;
/// A failed request is retried twice, within this time.
const AGAIN: Duration = Duration::from_secs(60);

/// A place in object storage. Its settings and credentials are those of Amazon's tools: `AWS_ACCESS_KEY_ID`,
/// `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_CA_BUNDLE`, `AWS_PROFILE`, the files in
/// `~/.aws`, tokens of Kubernetes and of containers, and the instance metadata.
#[derive(Debug)]
pub struct StorageBucket {
    url: String,
    prefix: Path,
    store: AmazonS3,
    http: Http,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    stop: watch::Receiver<bool>,
}

impl StorageBucket {
    /// Opens a place by its URL, `s3://BUCKET/PREFIX`, and the environment's variables. Reads the files that they name; makes no
    /// connection. Calls end once `stop` is true.
    ///
    /// # Errors
    /// The URL is invalid; a variable or a file makes no sense.
    pub fn open(
        url: &str,
        variables: &Variables,
        stop: watch::Receiver<bool>,
    ) -> Result<StorageBucket, S3Error> {
        let (bucket, prefix) = StorageBucket::split_url(url)?;
        let http = Http::new(variables)?;
        let again = RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(1),
                base: 2.0,
            },
            max_retries: 2,
            retry_timeout: AGAIN,
        };
        let store = credentials::storage_builder(variables)?
            .with_bucket_name(bucket)
            .with_http_connector(http.clone())
            .with_retry(again)
            .build()
            .map_err(|error| S3Error::Refused { url: url.to_owned(), problem: error.to_string() })?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().max_blocking_threads(2).build();
        let runtime =
            runtime.map_err(|error| S3Error::Away { url: url.to_owned(), problem: error.to_string() })?;
        let url = url.trim_end_matches('/').to_owned();
        Ok(StorageBucket { url, prefix, store, http, runtime: Some(runtime), stop })
    }

    /// The bucket and the prefix that a URL names.
    pub fn split_url(url: &str) -> Result<(&str, Path), S3Error> {
        let is_none = || S3Error::Url(url.to_owned());
        let (bucket, prefix) =
            url.strip_prefix("s3://").ok_or_else(is_none)?.split_once('/').unwrap_or_default();
        let bucket = if prefix.is_empty() { url["s3://".len()..].trim_end_matches('/') } else { bucket };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if bucket.is_empty() || !bucket.bytes().all(is_plain) {
            return Err(is_none());
        }
        Ok((bucket, Path::parse(prefix).map_err(|_| is_none())?))
    }

    /// Checks that objects can be put there, and that the server can be told not to replace an existing one; leaves nothing
    /// behind.
    ///
    /// # Errors
    /// The server refuses, does not answer `within` that time, or replaces objects.
    pub fn check_access(&self, within: Duration) -> Result<(), S3Error> {
        let path = self.object_path(&[&format!(".dta-check-{:016x}", random_number())]);
        let check = async {
            // A put that failed but took effect is retried and then refused.
            self.try_put_new(&path, Bytes::from_static(b"first")).await?;
            let is_replaced = self.try_put_new(&path, Bytes::from_static(b"second")).await;
            self.store.delete(&path).await.map_err(|error| self.classify_error(error))?;
            is_replaced
        };
        let checked = self.run(async {
            tokio::time::timeout(within, check).await.unwrap_or_else(|_| {
                let problem = format!("no answer within {} s", within.as_secs());
                Err(S3Error::Away { url: self.url.clone(), problem })
            })
        });
        match checked {
            Ok(false) => Ok(()),
            Ok(true) => Err(S3Error::Unconditional(self.url.clone())),
            Err(_) if self.http.last_status() == 501 => Err(S3Error::Unconditional(self.url.clone())),
            Err(error) => Err(error),
        }
    }

    pub fn bucket_url(&self) -> &str {
        &self.url
    }

    /// The path of an object, from its names below the place.
    pub(super) fn object_path(&self, names: &[&str]) -> Path {
        names.iter().fold(self.prefix.clone(), |path, name| path.join(*name))
    }

    /// Puts an object, replacing what is there.
    pub(super) fn put_object(&self, path: &Path, bytes: Bytes) -> Result<(), S3Error> {
        let put = self.run(async {
            self.store.put(path, bytes.into()).await.map_err(|error| self.classify_error(error))
        });
        put.map(|_| ())
    }

    /// Puts an object unless it exists. `false`: it exists, perhaps because the answer to an earlier attempt was lost.
    pub(super) fn put_if_absent(&self, path: &Path, bytes: Bytes) -> Result<bool, S3Error> {
        self.run(self.try_put_new(path, bytes))
    }

    async fn try_put_new(&self, path: &Path, bytes: Bytes) -> Result<bool, S3Error> {
        match self.store.put_opts(path, bytes.into(), PutMode::Create.into()).await {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(self.classify_error(error)),
        }
    }

    /// Uploads a file. The object appears only once all of it is there.
    pub(super) fn upload_file(
        &self,
        path: &Path,
        local: &std::path::Path,
        file: &File,
        len: u64,
    ) -> Result<(), S3Error> {
        let part = PART.max(len.div_ceil(PARTS));
        let read = |at: u64| {
            let mut bytes = vec![0; part.min(len - at) as usize];
            file.read_exact_at(&mut bytes, at).map_err(|error| S3Error::file_error(local, error))?;
            Ok::<_, S3Error>(Bytes::from(bytes))
        };
        if len <= part {
            return self.put_object(path, read(0)?);
        }
        let failed = |error| self.classify_error(error);
        self.run(async {
            let mut upload = self.store.put_multipart(path).await.map_err(failed)?;
            let put = async |upload: &mut Box<dyn MultipartUpload>| {
                for at in (0..len).step_by(part as usize) {
                    upload.put_part(PutPayload::from(read(at)?)).await.map_err(failed)?;
                }
                upload.complete().await.map_err(failed)
            };
            let put = put(&mut upload).await;
            if put.is_err() {
                // Its parts would be kept and billed. What a killed program leaves, a rule of the bucket must remove.
                let _ = upload.abort().await;
            }
            put.map(|_| ())
        })
    }

    /// The bytes of an object; `None` if there is none.
    pub(super) fn get(&self, path: &Path) -> Result<Option<Bytes>, S3Error> {
        let get = async { self.store.get(path).await?.bytes().await };
        self.run(async {
            match get.await {
                Ok(bytes) => Ok(Some(bytes)),
                // A missing bucket is an error, though.
                Err(Error::NotFound { source, .. }) if !source.to_string().contains("NoSuchBucket") => {
                    Ok(None)
                }
                Err(error) => Err(self.classify_error(error)),
            }
        })
    }

    /// The objects in a folder, without subfolders.
    pub(super) fn list_folder(&self, folder: &Path) -> Result<Vec<ObjectMeta>, S3Error> {
        let list = self.store.list_with_delimiter(Some(folder));
        self.run(async {
            list.await.map(|listed| listed.objects).map_err(|error| self.classify_error(error))
        })
    }

    /// Removes objects; missing ones are no error.
    pub(super) fn delete_objects(&self, paths: Vec<Path>) -> Result<(), S3Error> {
        let paths = futures_util::stream::iter(paths.into_iter().map(Ok));
        let deleted = self.store.delete_stream(Box::pin(paths));
        self.run(async {
            let missing = |error| match error {
                Error::NotFound { .. } => Ok(()),
                error => Err(self.classify_error(error)),
            };
            deleted.map_ok(|_| ()).or_else(|error| async { missing(error) }).try_collect::<()>().await
        })
    }

    /// Runs a call until it ends or the program stops.
    fn run<T>(&self, call: impl Future<Output = Result<T, S3Error>>) -> Result<T, S3Error> {
        let mut stop = self.stop.clone();
        let runtime = self.runtime.as_ref().expect("there until it is dropped");
        runtime.block_on(async {
            tokio::select! {
                biased;
                // A dropped sender counts as a stop, too.
                _ = stop.wait_for(|stops| *stops) => Err(S3Error::Stopped),
                done = call => done,
            }
        })
    }

    /// Classifies an error by the status of the last answer.
    fn classify_error(&self, error: Error) -> S3Error {
        let (url, problem) = (self.url.clone(), error_line(&error));
        match self.http.last_status() {
            // With a good status, the rest did not arrive or made no sense.
            0 | 200..=299 | 408 | 429 | 500.. => S3Error::Away { url, problem },
            _ => S3Error::Refused { url, problem },
        }
    }
}

impl Drop for StorageBucket {
    fn drop(&mut self) {
        // Does not wait for a request that hangs.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// An error with all its causes, in one line.
fn error_line(error: &Error) -> String {
    let text = error.to_string();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_bucket_and_a_prefix() {
        let parts = |url| {
            StorageBucket::split_url(url).map(|(bucket, prefix)| (bucket.to_owned(), prefix.to_string()))
        };
        let are = |bucket: &str, prefix: &str| (bucket.to_owned(), prefix.to_owned());
        assert_eq!(parts("s3://b").unwrap(), are("b", ""));
        assert_eq!(parts("s3://b/").unwrap(), are("b", ""));
        assert_eq!(parts("s3://my.bucket-1/a/b").unwrap(), are("my.bucket-1", "a/b"));
        assert_eq!(parts("s3://my.bucket-1/a/b/").unwrap(), are("my.bucket-1", "a/b"));
        for bad in ["", "b", "s3://", "s3:///a", "s3://b/a//c", "http://b/a", "s3://b?x/a", "s3://b/../c"] {
            assert!(parts(bad).is_err(), "{bad}: {:?}", parts(bad));
        }
    }
}
