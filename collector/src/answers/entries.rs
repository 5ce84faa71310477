//! The entries of a list in past epochs and in the open one, as a stream.

use std::ops::ControlFlow;

use dta_proto::control::{EntriesRequest, TailResponse};
use dta_proto::wire::dta::Primitive;
use dta_rpc::{ClientError, Span, TailMessages};
use tokio::sync::mpsc::{self, Sender};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::tail::{ListTail, QUEUE, store_lists, stream_list, tail_response};
use super::{AskError, Memory};
use crate::epochs::{ListThen, OpenList};

impl Memory {
    /// The entries of a list in the epochs of a span. `place` is dropped once all work for it is done.
    ///
    /// # Errors
    /// As [`Ask::stream_entries`](dta_rpc::Ask::stream_entries).
    pub async fn entries_of(
        &self,
        request: EntriesRequest,
        place: impl Send + 'static,
    ) -> Result<TailMessages, ClientError> {
        let begin = move |memory: &Self| Ok((memory.list_then(&request)?, place));
        let ((then, open), place) = self.run_blocking(begin).await?;
        let (memory, (sender, receiver)) = (self.clone(), mpsc::channel(QUEUE));
        tokio::spawn(async move {
            let turn = tokio::select! {
                turn = memory.reads.clone().acquire_owned() => turn,
                () = sender.closed() => return,
            };
            let to = sender.clone();
            let send = move || {
                let sent = send_kept(&memory, &then, &to);
                drop(turn);
                sent
            };
            match tokio::task::spawn_blocking(send).await {
                Ok(ControlFlow::Continue(())) => {
                    if let Some((epoch, tail)) = open
                        && sender.send(Ok(epoch)).await.is_ok()
                    {
                        stream_list(tail, sender).await;
                    }
                }
                Ok(ControlFlow::Break(())) => {}
                Err(error) => drop(sender.send(Err(AskError::Ended(error.to_string()))).await),
            }
            drop(place);
        });
        Ok(TailMessages::new(ReceiverStream::new(receiver).map(|news| news.map_err(ClientError::from))))
    }

    /// The list in past epochs; and the open epoch with its reader, if the span includes it.
    fn list_then(
        &self,
        request: &EntriesRequest,
    ) -> Result<(ListThen, Option<(TailResponse, ListTail)>), AskError> {
        let EntriesRequest { store, list, since, until } = request;
        let store = self.find_store(store, Primitive::Append)?;
        let (name, last) = (&store.spec.name, store_lists(&store)?.list_count() - 1);
        if *list > last {
            return Err(AskError::List { store: name.clone(), list: *list, last });
        }
        let span = Span { since: *since, until: *until };
        let mut then = self.epochs_of(name)?.list_in_span(name, *list, span)?;
        let open = match then.open.take() {
            Some(OpenList { epoch, store, start }) => {
                let epoch = TailResponse { epoch: Some(epoch), ..TailResponse::default() };
                Some((epoch, ListTail::with_start(self, store, *list, start, true)?))
            }
            None => None,
        };
        Ok((then, open))
    }
}

/// Sends what the history has. Breaks if no more is wanted or can be sent.
fn send_kept(
    memory: &Memory,
    then: &ListThen,
    to: &Sender<Result<TailResponse, AskError>>,
) -> ControlFlow<()> {
    let sent = then.visit_kept(|epoch, news| {
        let stops = memory.stop.as_ref().is_some_and(|stop| *stop.borrow());
        let next = if stops {
            Err(AskError::Stopping)
        } else {
            memory.counters.add_tail_progress(&news.progress);
            Ok(TailResponse { epoch, ..tail_response(news) })
        };
        match to.blocking_send(next) {
            Ok(()) if !stops => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    });
    sent.unwrap_or_else(|error| {
        let _ = to.blocking_send(Err(AskError::Moment(error.into())));
        ControlFlow::Break(())
    })
}
