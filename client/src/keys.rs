//! Queries of any number of keys, of one collector or of several that share stores.

use dta_proto::control::{
    CounterAnswer, KeyWriteAnswer, MAX_KEYS, PathAnswer, Policy, QueryCounterRequest, QueryKeyWriteRequest,
    QueryPathRequest, QuerySketchRequest, SketchAnswer,
};
use dta_proto::key::Key;

use crate::collector::Client;
use crate::{Ask, ClientError, Spread};

macro_rules! queries {
    ($of:ty) => {
        impl $of {
            /// Values of keys, in the order of the keys; any number of them. An empty store name stands for
            /// the only key-write store. `at_least` is for [`Policy::AtLeast`].
            pub async fn key_write(
                &mut self,
                store: &str,
                keys: &[Key],
                policy: Policy,
                at_least: u32,
            ) -> Result<Vec<KeyWriteAnswer>, ClientError> {
                let mut answers = Vec::with_capacity(keys.len());
                for keys in keys.chunks(MAX_KEYS) {
                    let (store, keys) = (store.to_owned(), bytes(keys));
                    let request = QueryKeyWriteRequest { store, keys, policy: policy.into(), at_least };
                    answers.extend(self.query_key_write(request).await?.answers);
                }
                Ok(answers)
            }

            /// Paths of keys, like `key_write`.
            pub async fn path(&mut self, store: &str, keys: &[Key]) -> Result<Vec<PathAnswer>, ClientError> {
                let mut answers = Vec::with_capacity(keys.len());
                for keys in keys.chunks(MAX_KEYS) {
                    let request = QueryPathRequest { store: store.to_owned(), keys: bytes(keys) };
                    answers.extend(self.query_path(request).await?.answers);
                }
                Ok(answers)
            }

            /// Counters of keys, like `key_write`.
            pub async fn counter(
                &mut self,
                store: &str,
                keys: &[Key],
            ) -> Result<Vec<CounterAnswer>, ClientError> {
                let mut answers = Vec::with_capacity(keys.len());
                for keys in keys.chunks(MAX_KEYS) {
                    let request = QueryCounterRequest { store: store.to_owned(), keys: bytes(keys) };
                    answers.extend(self.query_counter(request).await?.answers);
                }
                Ok(answers)
            }

            /// Estimates of keys in one epoch, like `key_write`.
            pub async fn sketch(
                &mut self,
                store: &str,
                keys: &[Key],
                epoch: u32,
            ) -> Result<Vec<SketchAnswer>, ClientError> {
                let mut answers = Vec::with_capacity(keys.len());
                for keys in keys.chunks(MAX_KEYS) {
                    let request = QuerySketchRequest { store: store.to_owned(), keys: bytes(keys), epoch };
                    answers.extend(self.query_sketch(request).await?.answers);
                }
                Ok(answers)
            }
        }
    };
}

queries!(Client);
queries!(Spread);

fn bytes(keys: &[Key]) -> Vec<Vec<u8>> {
    keys.iter().map(|k| k.0.to_vec()).collect()
}
