//! One statement: parsed, checked to be read-only, planned and run within limits. Each has its own session, so none affects what the next one sees.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use datafusion::arrow::datatypes::Schema;
use datafusion::catalog::memory::{MemoryCatalogProvider, MemorySchemaProvider};
use datafusion::catalog::{CatalogProvider, SchemaProvider, TableProvider};
use datafusion::common::DataFusionError;
use datafusion::datasource::object_store::ObjectStoreUrl;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::object_store::local::LocalFileSystem;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion::sql::parser::{DFParser, Statement};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::functions;
use crate::live::{LiveCollector, LiveMemory};
use crate::source::SourceFlags;
use crate::tables::{EPOCHS, GAPS, HistoryFolder, LOSSES, LogTable, RowSource, RowsOfKey, StoreTable};

/// The names under which tables are found: `flows` is `dta.history.flows`, `live.flows` is `dta.live.flows`.
pub(crate) const CATALOG: &str = "dta";
const HISTORY: &str = "history";
const LIVE: &str = "live";

/// Disk space for what does not fit into a statement's memory, as a multiple of that memory.
const SPILL: u64 = 8;

/// The least memory of a statement, in MiB, for each core that it uses: each core sorts and groups a part of the rows in its share of the memory, and
/// cannot even spill if that is too small.
const MIB_OF_CORE: u32 = 64;

/// What a statement may take.
#[derive(clap::Args, Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct StatementLimits {
    /// Memory of a statement, in MiB, which uses a core for each 64; sorts and groups that need more go to files in the system's temporary folder
    #[arg(long, env, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(i64::from(MIB_OF_CORE)..))]
    pub(crate) memory_mib: u32,
}

impl StatementLimits {
    fn cores(self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        cores.min((self.memory_mib / MIB_OF_CORE) as usize)
    }
}

pub(crate) struct Engine {
    folder: PathBuf,
    history: HistoryFolder,
    collector: Option<Arc<LiveCollector>>,
    limits: StatementLimits,
    /// What statements share: the cached indexes of the files.
    shared: RuntimeEnv,
    at: ObjectStoreUrl,
}

/// The rows of an answer, produced as they are read.
pub(crate) struct StatementAnswer {
    pub(crate) rows: SendableRecordBatchStream,
    /// Holds the copies of live memory that the rows are read from.
    _context: SessionContext,
}

impl Engine {
    pub(crate) fn new(source: &SourceFlags, limits: StatementLimits) -> anyhow::Result<Engine> {
        let folder = source.directory()?;
        let at = ObjectStoreUrl::parse("history://tables/")?;
        let collector =
            source.collector().map(|options| LiveCollector::new(&options).map(Arc::new)).transpose()?;
        let engine = Engine {
            history: HistoryFolder::new(folder.clone(), at.clone()),
            folder,
            collector,
            limits,
            shared: RuntimeEnvBuilder::new().build()?,
            at,
        };
        // A wrong folder must be an error before the first statement.
        engine.history.open_tables().map_err(dta_cli::misuse_error)?;
        Ok(engine)
    }

    /// Sets the memory that a statement may use, and lets it read only the folder of the history.
    fn build_runtime(&self) -> anyhow::Result<Arc<RuntimeEnv>> {
        let memory = usize::try_from(self.limits.memory_mib)? << 20;
        let disk = DiskManagerBuilder::default()
            .with_mode(DiskManagerMode::OsTmpDirectory)
            .with_max_temp_directory_size(SPILL * memory as u64);
        let places = DefaultObjectStoreRegistry::new();
        places.deregister_store(ObjectStoreUrl::local_filesystem().as_ref())?;
        places.register_store(self.at.as_ref(), Arc::new(LocalFileSystem::new_with_prefix(&self.folder)?));
        let runtime = RuntimeEnvBuilder::from_runtime_env(&self.shared)
            .with_memory_pool(Arc::new(FairSpillPool::new(memory)))
            .with_disk_manager_builder(disk)
            .with_object_store_registry(Arc::new(places));
        Ok(runtime.build_arc()?)
    }

    /// Opens a session with all tables as they are now.
    pub(crate) async fn open_sql_session(&self) -> anyhow::Result<SessionContext> {
        let config = SessionConfig::new()
            .with_target_partitions(self.limits.cores())
            .with_information_schema(true)
            .with_create_default_catalog_and_schema(false)
            .with_default_catalog_and_schema(CATALOG, HISTORY)
            // Many clients do not know string views.
            .set_bool("datafusion.sql_parser.map_string_types_to_utf8view", false);
        let context = SessionContext::new_with_config_rt(config, self.build_runtime()?);
        let catalog = MemoryCatalogProvider::new();
        let mut of_keys = BTreeMap::new();

        let mut tables = self.history.open_tables()?;
        let history = MemorySchemaProvider::new();
        for (name, kept) in &tables {
            let table: Arc<dyn TableProvider> = Arc::new(StoreTable::new(RowSource::Kept(kept.clone()))?);
            if kept.is_of_slots() {
                of_keys.insert(name.clone(), (kept.table.store_spec().clone(), table.clone()));
            }
            history.register_table(name.clone(), table)?;
        }
        tables.retain(|_, table| table.is_of_slots());
        history.register_table(EPOCHS.to_owned(), Arc::new(LogTable::for_epochs(tables.clone())))?;
        history.register_table(LOSSES.to_owned(), Arc::new(LogTable::for_losses(tables.clone())))?;
        history.register_table(GAPS.to_owned(), Arc::new(LogTable::for_gaps(tables)))?;
        catalog.register_schema(HISTORY, Arc::new(history))?;

        if let Some(collector) = &self.collector {
            let live = MemorySchemaProvider::new();
            // The history is there even without the collector.
            let stores = collector.slot_stores().await.unwrap_or_else(|error| {
                self.history.warn_once(&format!("{}: no live.STORE", dta_cli::error_line(&error)));
                Vec::new()
            });
            for spec in stores {
                let name = spec.name.clone();
                let memory = Box::new(LiveMemory::new(collector.clone(), spec.clone()));
                let table: Arc<dyn TableProvider> = Arc::new(StoreTable::new(RowSource::Live(memory))?);
                of_keys.insert(format!("{LIVE}.{name}"), (spec, table.clone()));
                live.register_table(name, table)?;
            }
            catalog.register_schema(LIVE, Arc::new(live))?;
        }
        context.register_catalog(CATALOG, Arc::new(catalog));
        let slots = of_keys.iter().map(|(name, (spec, _))| (name.clone(), spec.clone())).collect();
        functions::register_functions(&context, slots);
        context.register_udtf("dta_rows", Arc::new(RowsOfKey(of_keys)));
        Ok(context)
    }

    /// Begins a statement.
    ///
    /// # Errors
    /// It is not a statement that only reads, or it cannot be planned.
    pub(crate) async fn begin_statement(&self, statement: Statement) -> anyhow::Result<StatementAnswer> {
        let (context, plan) = self.plan_statement(statement).await?;
        let rows = context.execute_logical_plan(plan).await?.execute_stream().await?;
        Ok(StatementAnswer { rows, _context: context })
    }

    /// The columns of a statement's answer.
    pub(crate) async fn answer_columns(&self, statement: Statement) -> anyhow::Result<Schema> {
        let (_, plan) = self.plan_statement(statement).await?;
        Ok(plan.schema().as_arrow().clone())
    }

    async fn plan_statement(&self, statement: Statement) -> anyhow::Result<(SessionContext, LogicalPlan)> {
        let context = self.open_sql_session().await?;
        let plan = context.state().statement_to_plan(statement).await?;
        let reads =
            SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        reads.verify_plan(&plan).map_err(|error| match error {
            DataFusionError::Plan(what) => anyhow::anyhow!("this program only reads: {what}"),
            other => other.into(),
        })?;
        Ok((context, plan))
    }
}

/// The statements in a text, separated by `;`.
///
/// # Errors
/// It is not valid SQL, and the error says where; or it is nested too deeply.
pub(crate) fn statements(text: &str) -> anyhow::Result<VecDeque<Statement>> {
    check_depth(text)?;
    DFParser::parse_sql(text).context("not understood")
}

/// The longest text of a statement from a client, in bytes.
const LONGEST: usize = 16 << 10;
/// Most nested operators and brackets: each takes stack when a statement is planned and run.
const DEEPEST: usize = 500;
/// Stack of a thread that plans statements; only the part in use takes memory. Frames are several times as large without optimization.
pub(crate) const STACK: usize = if cfg!(debug_assertions) { 256 << 20 } else { 64 << 20 };
/// Stack of the other threads, which run the plans.
const RUNNING_STACK: usize = STACK / 4;
/// Threads that read files.
const READERS: usize = 4;

/// The threads that run statements.
pub(crate) fn statement_runtime(limits: StatementLimits) -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(limits.cores())
        .max_blocking_threads(READERS)
        .thread_name("statement")
        .thread_stack_size(RUNNING_STACK)
        .enable_all()
        .build()
}

/// The total stack of the threads of [`statement_runtime`], and of the thread that waits for it.
pub(crate) fn stack_bytes(limits: StatementLimits) -> usize {
    STACK + (limits.cores() + READERS) * RUNNING_STACK
}

/// Checks a client's text before it is parsed, as parsing takes stack and time.
///
/// # Errors
/// It is too long, or nested too deeply.
pub(crate) fn check_statement_size(text: &str) -> anyhow::Result<()> {
    anyhow::ensure!(
        text.len() <= LONGEST,
        "the statement has {} bytes, but may have at most {LONGEST}",
        text.len()
    );
    check_depth(text)
}

pub(crate) fn statement(text: &str) -> anyhow::Result<Statement> {
    check_statement_size(text)?;
    let mut all = statements(text)?;
    match (all.pop_front(), all.is_empty()) {
        (Some(only), true) => Ok(only),
        (None, _) => anyhow::bail!("there is no statement"),
        (Some(_), false) => anyhow::bail!("there are several statements: send one at a time"),
    }
}

/// Bounds the depth of a statement's tree: open brackets, plus the operators so far in each of them, as the last one may have all others below it.
/// Takes time proportional to the text, and no stack.
fn check_depth(text: &str) -> anyhow::Result<()> {
    let tokens = Tokenizer::new(&GenericDialect {}, text).tokenize().context("not understood")?;
    // For the whole text and each open bracket: operators within an expression, and those between queries.
    let (mut open, mut depth) = (vec![(0, 0)], 0);
    for token in tokens {
        let is_inside = open.len() > 1;
        let Some((operators, between)) = open.last_mut() else { break };
        match token {
            Token::LParen | Token::LBracket | Token::LBrace => {
                open.push((0, 0));
                depth += 1;
            }
            Token::RParen | Token::RBracket | Token::RBrace if is_inside => {
                let (operators, between) = open.pop().unwrap_or_default();
                depth -= 1 + operators + between;
            }
            Token::Comma | Token::SemiColon => depth -= std::mem::take(operators),
            Token::Word(word) => match word.keyword {
                Keyword::UNION | Keyword::INTERSECT | Keyword::EXCEPT | Keyword::JOIN => {
                    *between += 1;
                    depth += 1;
                }
                Keyword::AND
                | Keyword::OR
                | Keyword::NOT
                | Keyword::IS
                | Keyword::LIKE
                | Keyword::BETWEEN
                | Keyword::CASE => {
                    *operators += 1;
                    depth += 1;
                }
                _ => {}
            },
            Token::Number(..) | Token::SingleQuotedString(_) | Token::Period | Token::Whitespace(_) => {}
            _ => {
                *operators += 1;
                depth += 1;
            }
        }
        anyhow::ensure!(
            depth <= DEEPEST,
            "the statement has more than {DEEPEST} operators and brackets inside one another: nest less, or combine fewer terms"
        );
    }
    Ok(())
}

/// An error in words; if memory ran out, with how to allow more.
pub(crate) fn describe_error(error: &anyhow::Error) -> String {
    let text = dta_cli::error_line(error);
    let root = error.downcast_ref::<DataFusionError>().map(DataFusionError::find_root);
    match root {
        Some(DataFusionError::ResourcesExhausted(_)) => {
            format!(
                "the statement needs more than it may take (--memory-mib allows more, and so does asking for less): {text}"
            )
        }
        _ => text,
    }
}
