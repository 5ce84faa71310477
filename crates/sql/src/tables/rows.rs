//! `dta_rows('STORE', 'KEY')`: the rows of a key in all epochs, with the number of the copy; for postcarding also with the path as text.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::datasource::{ViewTable, provider_as_source};
use datafusion::logical_expr::{Case, Expr, LogicalPlanBuilder, col, lit};
use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::store::{StoreKind, StoreSpec};

use super::columns::{CHECKSUM, SLOT};
use crate::functions;

/// The function, and the tables that it can read by their SQL names.
pub(crate) struct RowsOfKey(pub(crate) BTreeMap<String, (StoreSpec, Arc<dyn TableProvider>)>);

const USAGE: &str =
    "write dta_rows('STORE', 'KEY'), where KEY is a flow such as 10.0.0.1:5000->10.0.0.2:5000/udp, or hex";

impl std::fmt::Debug for RowsOfKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("dta_rows")
    }
}

fn literal_text(argument: &Expr) -> Option<&str> {
    match argument {
        Expr::Literal(ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)), _) => Some(text),
        _ => None,
    }
}

impl TableFunctionImpl for RowsOfKey {
    fn call_with_args(&self, arguments: TableFunctionArgs<'_, '_>) -> Result<Arc<dyn TableProvider>> {
        let [store, key] = arguments.exprs() else { return plan_err!("{USAGE}") };
        let (Some(store), Some(key)) = (literal_text(store), literal_text(key)) else {
            return plan_err!("{USAGE}");
        };
        let Some((spec, table)) = self.0.get(store) else {
            let names: Vec<&str> = self.0.keys().map(String::as_str).collect();
            return plan_err!("no store {store:?}; there are: {}", names.join(", "));
        };
        let key: Key = match key.parse() {
            Ok(key) => key,
            Err(error) => return plan_err!("{error}"),
        };
        let Some(of_key) = spec.slots_per_key() else {
            return plan_err!("store {store:?} has no rows of keys");
        };
        let slots = hash::key_slots(&key, of_key, spec.element_count());
        let scan = LogicalPlanBuilder::scan("rows", provider_as_source(table.clone()), None)?;
        let in_slots = col(SLOT).in_list(slots.iter().map(|slot| lit(slot.cast_signed())).collect(), false);
        let mut plan = scan.filter(in_slots)?;
        let schema = table.schema();
        // Several keys may share a slot: the checksum says whose contents it has. Counters have none.
        let checksum = schema.column_with_name(CHECKSUM).map(|(place, _)| place);
        let of_table = |from: usize| schema.fields()[from..].iter().map(|field| col(field.name()));
        if let Some(checksum) = checksum {
            let key = lit(ScalarValue::Binary(Some(key.0.to_vec())));
            plan = plan.filter(
                functions::matches_function().call([key].into_iter().chain(of_table(checksum)).collect()),
            )?;
        }
        // If two copies share a slot, it counts as the first.
        let mut copies = BTreeMap::new();
        for (copy, slot) in slots.iter().enumerate() {
            copies.entry(*slot).or_insert(copy as i64);
        }
        let literal = |number: i64| Box::new(lit(number));
        let whens = copies.into_iter().map(|(slot, copy)| (literal(slot.cast_signed()), literal(copy)));
        let copy = Expr::Case(Case::new(Some(Box::new(col(SLOT))), whens.collect(), None));
        let mut columns: Vec<Expr> = of_table(0).chain([copy.alias("copy")]).collect();
        if let (StoreKind::Postcarding { .. }, Some(checksum)) = (&spec.kind, checksum) {
            columns.push(functions::path_function().call(of_table(checksum + 1).collect()).alias("path"));
        }
        Ok(Arc::new(ViewTable::new(plan.project(columns)?.build()?, None)))
    }
}
