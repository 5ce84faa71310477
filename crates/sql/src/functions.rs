//! SQL functions for keys, slots and elements. The arithmetic is `dta_proto`'s.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, BooleanBuilder, Int64Builder, StringBuilder, UInt64Builder,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::SessionContext;
use dta_proto::key::{Flow, Key};
use dta_proto::layout::{hash, key_write, postcarding};
use dta_proto::store::StoreSpec;

pub(crate) type Stores = BTreeMap<String, StoreSpec>;

/// Registers the functions in a session with these stores.
pub(crate) fn register_functions(context: &SessionContext, stores: Stores) {
    for function in [
        fixed_function("dta_flow", &[DataType::Utf8], DataType::Binary, flow_keys),
        fixed_function("dta_key", &[DataType::Utf8], DataType::Binary, keys_from_text),
        fixed_function("dta_key_text", &[DataType::Binary], DataType::Utf8, format_keys),
        fixed_function(
            "dta_slot",
            &[DataType::Utf8, DataType::Binary, DataType::Int64],
            DataType::Int64,
            move |columns| key_slots(&stores, columns),
        ),
        fixed_function(
            "dta_uint",
            &[DataType::Binary, DataType::Int64, DataType::Int64],
            DataType::UInt64,
            read_uints,
        ),
        matches_function(),
        path_function(),
    ] {
        context.register_udf(function);
    }
}

/// Whether a row belongs to the key: `(key, checksum, value)` of a key-write store, or `(key, checksum, bitmap, length, hop_0, …)` of a
/// postcarding store.
pub(crate) fn matches_function() -> ScalarUDF {
    variadic_function("dta_match", DataType::Boolean, is_of_key)
}

/// The path of a row of `(bitmap, length, hop_0, …)`, as text.
pub(crate) fn path_function() -> ScalarUDF {
    variadic_function("dta_path", DataType::Utf8, path_text)
}

/// A function of whole columns, all of the same length.
type Work = Box<dyn Fn(&[ArrayRef]) -> Result<ArrayRef> + Send + Sync>;

/// A function whose result depends only on its arguments.
struct Function {
    name: &'static str,
    signature: Signature,
    returns: DataType,
    work: Work,
}

fn fixed_function(
    name: &'static str,
    takes: &[DataType],
    returns: DataType,
    work: impl Fn(&[ArrayRef]) -> Result<ArrayRef> + Send + Sync + 'static,
) -> ScalarUDF {
    let signature = Signature::exact(takes.to_vec(), Volatility::Immutable);
    Function { name, signature, returns, work: Box::new(work) }.into()
}

fn variadic_function(
    name: &'static str,
    returns: DataType,
    work: fn(&[ArrayRef]) -> Result<ArrayRef>,
) -> ScalarUDF {
    let signature = Signature::variadic_any(Volatility::Immutable);
    Function { name, signature, returns, work: Box::new(work) }.into()
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

// Functions are equal if their names are.
impl PartialEq for Function {
    fn eq(&self, other: &Function) -> bool {
        self.name == other.name
    }
}

impl Eq for Function {}

impl Hash for Function {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.returns.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let constant = args.args.iter().all(|value| matches!(value, ColumnarValue::Scalar(_)));
        let columns = ColumnarValue::values_to_arrays(&args.args)?;
        let done = (self.work)(&columns)?;
        Ok(if constant {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&done, 0)?)
        } else {
            ColumnarValue::Array(done)
        })
    }
}

fn text_to_key(texts: &ArrayRef, parse: impl Fn(&str) -> Result<Key>) -> Result<ArrayRef> {
    let mut keys = BinaryBuilder::new();
    for text in texts.as_string::<i32>() {
        match text {
            Some(text) => keys.append_value(parse(text)?.0),
            None => keys.append_null(),
        }
    }
    Ok(Arc::new(keys.finish()))
}

fn execution_error(error: impl fmt::Display) -> DataFusionError {
    DataFusionError::Execution(error.to_string())
}

fn flow_keys(columns: &[ArrayRef]) -> Result<ArrayRef> {
    text_to_key(&columns[0], |text| Ok(text.parse::<Flow>().map_err(execution_error)?.to_key()))
}

/// Parses keys as people write them: a flow or hex.
fn keys_from_text(columns: &[ArrayRef]) -> Result<ArrayRef> {
    text_to_key(&columns[0], |text| text.parse().map_err(execution_error))
}

fn key_from_bytes(bytes: &[u8]) -> Result<Key> {
    match bytes.try_into() {
        Ok(bytes) => Ok(Key(bytes)),
        Err(_) => exec_err!("a key has 16 bytes, not {}: dta_key('…') makes one of text", bytes.len()),
    }
}

fn format_keys(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let mut texts = StringBuilder::new();
    for bytes in columns[0].as_binary::<i32>() {
        match bytes {
            Some(bytes) => texts.append_value(key_from_bytes(bytes)?.to_string()),
            None => texts.append_null(),
        }
    }
    Ok(Arc::new(texts.finish()))
}

/// The slot of copy number `copy` of a key in a store.
fn key_slots(stores: &Stores, columns: &[ArrayRef]) -> Result<ArrayRef> {
    let (names, keys, copies) = (
        columns[0].as_string::<i32>(),
        columns[1].as_binary::<i32>(),
        columns[2].as_primitive::<Int64Type>(),
    );
    let mut slots = Int64Builder::new();
    for ((name, key), copy) in names.iter().zip(keys).zip(copies) {
        let (Some(name), Some(key), Some(copy)) = (name, key, copy) else {
            slots.append_null();
            continue;
        };
        let Some((spec, of_key)) = stores.get(name).and_then(|spec| Some((spec, spec.slots_per_key()?)))
        else {
            return exec_err!("dta_slot('STORE', key, copy): no store {name:?} has slots of keys");
        };
        let Some(copy) = usize::try_from(copy).ok().filter(|copy| *copy < usize::from(of_key)) else {
            return exec_err!("dta_slot({name:?}, key, copy): copy is 0 to {}", of_key - 1);
        };
        let slot = hash::slot_index(hash::key_hash(&key_from_bytes(key)?), copy, spec.element_count());
        slots.append_value(slot.cast_signed());
    }
    Ok(Arc::new(slots.finish()))
}

/// `length` bytes of a value from byte `offset` on, as a big-endian number; null beyond its end.
fn read_uints(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let (values, offsets, lengths) = (
        columns[0].as_binary::<i32>(),
        columns[1].as_primitive::<Int64Type>(),
        columns[2].as_primitive::<Int64Type>(),
    );
    let mut numbers = UInt64Builder::new();
    for ((value, offset), length) in values.iter().zip(offsets).zip(lengths) {
        let (Some(value), Some(offset), Some(length)) = (value, offset, length) else {
            numbers.append_null();
            continue;
        };
        let (Ok(offset), 1..=8) = (usize::try_from(offset), length) else {
            return exec_err!(
                "dta_uint(value, offset, length): offset is a number of bytes from 0, length 1 to 8"
            );
        };
        let bytes = offset.checked_add(length as usize).and_then(|end| value.get(offset..end));
        numbers.append_option(bytes.map(|bytes| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))));
    }
    Ok(Arc::new(numbers.finish()))
}

/// Casts columns of numbers of any width to longs.
fn cast_to_longs(columns: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
    columns.iter().map(|column| Ok(cast(column, &DataType::Int64)?)).collect()
}

/// A cell of a column from [`cast_to_longs`]; `None` if it is null.
fn long_at(column: &ArrayRef, row: usize) -> Option<i64> {
    let column = column.as_primitive::<Int64Type>();
    column.is_valid(row).then(|| column.value(row))
}

/// The path in a row of `bitmap`, `length`, `hop_0`, …; `None` if there are nulls, or numbers that no row can have.
fn path_in_row(columns: &[ArrayRef], row: usize) -> Option<postcarding::PostcardPath> {
    let (header, hops) = columns.split_at(2);
    let bitmap = u16::try_from(long_at(&header[0], row)?).ok()?;
    let length = u8::try_from(long_at(&header[1], row)?).ok()?;
    let mut path = postcarding::PostcardPath { bitmap, length, ..postcarding::PostcardPath::default() };
    for (value, hop) in path.hops.iter_mut().zip(hops) {
        *value = u32::try_from(long_at(hop, row)?).ok()?;
    }
    let fits = hops.len() <= postcarding::MAX_HOPS
        && u32::from(bitmap) >> hops.len() == 0
        && usize::from(length) <= hops.len();
    fits.then_some(path)
}

const MATCH: &str = "dta_match(key, checksum, value), with inline keys dta_match(key, checksum, r.key, value), or \
                     dta_match(key, checksum, bitmap, length, hop_0, …) with all hops of the table";

fn is_of_key(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let [keys, checksums, rest @ ..] = columns else { return exec_err!("write {MATCH}") };
    let keys = cast(keys, &DataType::Binary)?;
    let (keys, checksums) = (keys.as_binary::<i32>(), cast(checksums, &DataType::Int64)?);
    let mut answers = BooleanBuilder::new();
    if let [.., values] = rest
        && rest.len() <= 2
    {
        let inline = (rest.len() == 2).then(|| cast(&rest[0], &DataType::Binary)).transpose()?;
        let inline = inline.as_ref().map(|inline| inline.as_binary::<i32>());
        let values = cast(values, &DataType::Binary)?;
        let mut slot = Vec::new();
        for (row, (key, value)) in keys.iter().zip(values.as_binary::<i32>()).enumerate() {
            answers.append_option(match (key, long_at(&checksums, row), value) {
                (Some(key), Some(checksum), Some(value)) => {
                    slot.clear();
                    slot.extend_from_slice(&(checksum as u32).to_be_bytes());
                    slot.extend_from_slice(inline.map_or(&[], |inline| inline.value(row)));
                    slot.extend_from_slice(value);
                    let key = key_from_bytes(key)?;
                    let of_key = match inline {
                        Some(_) => key_write::matches_inline(&slot, &key),
                        None => key_write::verified_value(&slot, &key),
                    };
                    Some(of_key.is_some())
                }
                _ => None,
            });
        }
        return Ok(Arc::new(answers.finish()));
    }
    let hops = rest.len().checked_sub(2).and_then(|hops| u8::try_from(hops).ok());
    let Some(hops) = hops.filter(|hops| matches!(postcarding::row_length(*hops), 32 | 64)) else {
        return exec_err!("write {MATCH}");
    };
    let rest = cast_to_longs(rest)?;
    let mut element = vec![0; postcarding::row_length(hops) as usize];
    for row in 0..checksums.len() {
        if keys.is_null(row) {
            answers.append_null();
            continue;
        }
        let key = key_from_bytes(keys.value(row))?;
        let of_key = path_in_row(&rest, row).is_some_and(|path| {
            postcarding::encode_row(&mut element, &key, &path);
            let checksum = u32::from_be_bytes(element[..4].try_into().expect("four bytes"));
            long_at(&checksums, row) == Some(checksum.into())
                && postcarding::verified_path(&element, &key).is_some()
        });
        answers.append_value(of_key);
    }
    Ok(Arc::new(answers.finish()))
}

/// `1 > 2 > ? > 4`: the hops of a row of `(bitmap, length, hop_0, …)`, `?` for those that did not arrive.
fn path_text(columns: &[ArrayRef]) -> Result<ArrayRef> {
    if columns.len() < 3 {
        return exec_err!("write dta_path(bitmap, length, hop_0, …) with all hops of the table");
    }
    let columns = cast_to_longs(columns)?;
    let mut texts = StringBuilder::new();
    for row in 0..columns[0].len() {
        texts.append_option(path_in_row(&columns, row).map(|path| {
            // If the length is unknown, up to the last hop that arrived.
            let last = (u16::BITS - path.bitmap.leading_zeros()) as u8;
            let hops = (0..path.length.max(last)).map(|hop| path.hop_value(hop));
            let texts = hops.map(|hop| hop.map_or("?".to_owned(), |hop| hop.to_string()));
            texts.collect::<Vec<_>>().join(" > ")
        }));
    }
    Ok(Arc::new(texts.finish()))
}
