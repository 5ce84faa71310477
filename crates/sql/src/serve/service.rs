//! The read-only methods of Flight SQL. A statement's handle is its text, so the server keeps nothing between calls.

use std::pin::Pin;
use std::sync::Arc;

use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::sql::metadata::SqlInfoData;
use arrow_flight::sql::server::FlightSqlService;
use arrow_flight::sql::{
    ActionClosePreparedStatementRequest, ActionCreatePreparedStatementRequest,
    ActionCreatePreparedStatementResult, CommandGetCatalogs, CommandGetDbSchemas, CommandGetSqlInfo,
    CommandGetTableTypes, CommandGetTables, CommandPreparedStatementQuery, CommandStatementQuery,
    ProstMessageExt, SqlInfo, TicketStatementQuery,
};
use arrow_flight::{
    Action, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, IpcMessage, SchemaAsIpc, Ticket,
};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::Schema;
use datafusion::arrow::ipc::writer::IpcWriteOptions;
use dta_rpc::transport::Peer;
use futures_util::{StreamExt, TryStreamExt};
use prost::Message;
use prost::bytes::Bytes;
use tonic::{Request, Response, Status};

use super::answer::StatementRunner;
use super::metadata;
use super::protocol::WorkerRequest;

pub(super) struct HistoryFlightService {
    answers: StatementRunner,
    info: SqlInfoData,
}

type DoGet = Pin<Box<dyn futures_util::Stream<Item = Result<FlightData, Status>> + Send>>;

impl HistoryFlightService {
    pub(super) fn new(answers: StatementRunner) -> anyhow::Result<HistoryFlightService> {
        Ok(HistoryFlightService { answers, info: metadata::server_info()? })
    }

    /// The columns of a statement's answer, as an IPC message.
    async fn answer_columns<T>(&self, request: &Request<T>, text: String) -> Result<Bytes, Status> {
        let columns = self.answers.answer(caller_name(request)?, WorkerRequest::Columns(text)).await?;
        let mut columns = std::pin::pin!(columns);
        columns.next().await.ok_or_else(|| Status::internal("a statement without columns"))?
    }

    /// Has a request answered with Flight messages.
    async fn stream_answer<T>(
        &self,
        request: &Request<T>,
        asked: WorkerRequest,
    ) -> Result<Response<DoGet>, Status> {
        let parts = self.answers.answer(caller_name(request)?, asked).await?;
        let messages =
            parts.map(|part| FlightData::decode(part?).map_err(|error| Status::internal(error.to_string())));
        Ok(Response::new(Box::pin(messages)))
    }
}

/// The caller whose share of the places a call takes.
fn caller_name<T>(request: &Request<T>) -> Result<Arc<str>, Status> {
    let peer = request.extensions().get::<Peer>();
    peer.map(|peer| peer.caller_name().clone()).ok_or_else(|| Status::internal("a call without a connection"))
}

fn parse_handle(handle: &[u8]) -> Result<String, Status> {
    String::from_utf8(handle.to_vec()).map_err(|_| Status::invalid_argument("unknown statement handle"))
}

/// Says where to get an answer with these columns: from this server, with this ticket.
fn flight_info(
    columns: Bytes,
    ticket: impl ProstMessageExt,
    of: FlightDescriptor,
) -> Result<Response<FlightInfo>, Status> {
    let ticket = Ticket::new(ticket.as_any().encode_to_vec());
    let info = FlightInfo::new().with_endpoint(FlightEndpoint::new().with_ticket(ticket)).with_descriptor(of);
    Ok(Response::new(FlightInfo { schema: columns, ..info }))
}

fn whole_response(batch: Result<RecordBatch, FlightError>) -> Result<Response<DoGet>, Status> {
    let batch = batch?;
    let stream = FlightDataEncoderBuilder::new()
        .with_schema(batch.schema())
        .build(futures_util::stream::iter([Ok(batch)]));
    Ok(Response::new(Box::pin(stream.map_err(Status::from))))
}

fn in_message(schema: &Schema) -> Result<Bytes, Status> {
    let message = IpcMessage::try_from(SchemaAsIpc::new(schema, &IpcWriteOptions::default()));
    Ok(message.map_err(|error| Status::internal(error.to_string()))?.0)
}

#[tonic::async_trait]
impl FlightSqlService for HistoryFlightService {
    type FlightService = HistoryFlightService;

    async fn get_flight_info_statement(
        &self,
        query: CommandStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let columns = self.answer_columns(&request, query.query.clone()).await?;
        let ticket = TicketStatementQuery { statement_handle: query.query.into() };
        flight_info(columns, ticket, request.into_inner())
    }

    async fn do_get_statement(
        &self,
        ticket: TicketStatementQuery,
        request: Request<Ticket>,
    ) -> Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        let statement = parse_handle(&ticket.statement_handle)?;
        self.stream_answer(&request, WorkerRequest::Rows(statement)).await
    }

    async fn do_action_create_prepared_statement(
        &self,
        query: ActionCreatePreparedStatementRequest,
        request: Request<Action>,
    ) -> Result<ActionCreatePreparedStatementResult, Status> {
        let columns = self.answer_columns(&request, query.query.clone()).await?;
        Ok(ActionCreatePreparedStatementResult {
            prepared_statement_handle: query.query.into(),
            dataset_schema: columns,
            parameter_schema: in_message(&Schema::empty())?,
        })
    }

    async fn do_action_close_prepared_statement(
        &self,
        _: ActionClosePreparedStatementRequest,
        _: Request<Action>,
    ) -> Result<(), Status> {
        Ok(())
    }

    async fn get_flight_info_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let statement = parse_handle(&query.prepared_statement_handle)?;
        let columns = self.answer_columns(&request, statement).await?;
        flight_info(columns, query, request.into_inner())
    }

    async fn do_get_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<Ticket>,
    ) -> Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        let statement = parse_handle(&query.prepared_statement_handle)?;
        self.stream_answer(&request, WorkerRequest::Rows(statement)).await
    }

    async fn get_flight_info_catalogs(
        &self,
        query: CommandGetCatalogs,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        flight_info(in_message(&query.into_builder().schema())?, query, request.into_inner())
    }

    async fn do_get_catalogs(
        &self,
        query: CommandGetCatalogs,
        _: Request<Ticket>,
    ) -> Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        whole_response(metadata::catalog_batch(query))
    }

    async fn get_flight_info_schemas(
        &self,
        query: CommandGetDbSchemas,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        flight_info(in_message(&query.clone().into_builder().schema())?, query, request.into_inner())
    }

    async fn do_get_schemas(
        &self,
        query: CommandGetDbSchemas,
        request: Request<Ticket>,
    ) -> Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        self.stream_answer(&request, WorkerRequest::ListSchemas(query.encode_to_vec())).await
    }

    async fn get_flight_info_tables(
        &self,
        query: CommandGetTables,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        flight_info(in_message(&query.clone().into_builder().schema())?, query, request.into_inner())
    }

    async fn do_get_tables(
        &self,
        query: CommandGetTables,
        request: Request<Ticket>,
    ) -> Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        self.stream_answer(&request, WorkerRequest::ListTables(query.encode_to_vec())).await
    }

    async fn get_flight_info_table_types(
        &self,
        query: CommandGetTableTypes,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        flight_info(in_message(&query.into_builder().schema())?, query, request.into_inner())
    }

    async fn do_get_table_types(
        &self,
        query: CommandGetTableTypes,
        _: Request<Ticket>,
    ) -> Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        whole_response(metadata::table_type_batch(query))
    }

    async fn get_flight_info_sql_info(
        &self,
        query: CommandGetSqlInfo,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        flight_info(
            in_message(&query.clone().into_builder(&self.info).schema())?,
            query,
            request.into_inner(),
        )
    }

    async fn do_get_sql_info(
        &self,
        query: CommandGetSqlInfo,
        _: Request<Ticket>,
    ) -> Result<Response<<Self as FlightService>::DoGetStream>, Status> {
        whole_response(query.into_builder(&self.info).build())
    }

    async fn register_sql_info(&self, _: i32, _: &SqlInfo) {}
}
