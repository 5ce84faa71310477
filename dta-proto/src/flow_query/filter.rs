//! The condition of a flow query: `dst-port = 443 and exporter = edge1 and src in 10.0.0.0/8 or not protocol = tcp`.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use core::ops::Range;

use super::{END, FLOW_COLUMNS, START};
use crate::flow_record::{Column, ColumnType, ENTRY_LEN};
use crate::key::{self, Flow};
use crate::prefix::Prefix;

/// Deepest nesting of parentheses and `not`: the text comes from the network.
const MAX_DEPTH: usize = 32;
/// Longest condition, in bytes.
const MAX_LEN: usize = 16_384;

/// Looks up addresses by name; the caller of the parser knows the names.
pub type AddressNames<'a> = &'a dyn Fn(&str) -> Option<IpAddr>;

/// Looks up columns by name.
pub type ColumnNames<'a> = &'a dyn Fn(&str) -> Option<&'static Column>;

/// Which records a question is about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowFilter {
    /// All of these must hold.
    parts: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq)]
enum Condition {
    /// Compares the value without the bits beyond a prefix.
    Masked {
        column: &'static Column,
        mask: u128,
        value: u128,
    },
    Compared {
        column: &'static Column,
        operator: Operator,
        value: u128,
    },
    Not(Box<Condition>),
    All(Vec<Condition>),
    Any(Vec<Condition>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

/// What remains of a condition once the values of some columns are known.
enum Remainder {
    Decided(bool),
    Open(Condition),
}

/// What is wrong with a condition, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// The byte range of the error in the text; empty at the end of the text if something is missing.
    pub place: Range<usize>,
    found: String,
    must: String,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FilterError { place, found, must } = self;
        match found.is_empty() {
            true => write!(f, "the condition ends too early: {must} is missing"),
            false => write!(f, "at character {}, `{found}`: must be {must}", place.start + 1),
        }
    }
}

impl std::error::Error for FilterError {}

/// Words for numeric values of columns.
const WORDS: [(&str, &str, u128); 8] = [
    ("direction", "ingress", 1),
    ("direction", "egress", 2),
    ("tcp-flags", "fin", 0x01),
    ("tcp-flags", "syn", 0x02),
    ("tcp-flags", "rst", 0x04),
    ("tcp-flags", "psh", 0x08),
    ("tcp-flags", "ack", 0x10),
    ("tcp-flags", "syn-ack", 0x12),
];

impl FlowFilter {
    /// Parses a condition; an empty one includes every record.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn parse(text: &str, names: AddressNames<'_>) -> Result<FlowFilter, FilterError> {
        FlowFilter::parse_with_columns(text, &Column::from_name, names)
    }

    /// As [`FlowFilter::parse`], for entries with other columns.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn parse_with_columns(
        text: &str,
        columns: ColumnNames<'_>,
        names: AddressNames<'_>,
    ) -> Result<FlowFilter, FilterError> {
        let mut parser = Parser { text, at: 0, columns, names };
        if text.len() > MAX_LEN {
            let place = text.len()..text.len();
            let found = format!("… ({} bytes)", text.len());
            return Err(FilterError { place, found, must: format!("at most {MAX_LEN} bytes") });
        }
        if parser.peek_token().is_empty() {
            return Ok(FlowFilter::default());
        }
        let condition = parser.parse_alternatives(0)?;
        match parser.peek_token().is_empty() {
            true => Ok(FlowFilter { parts: vec![condition] }),
            false => Err(parser.error_here("`and`, `or` or the end")),
        }
    }

    /// Records of one flow.
    pub fn from_flow(flow: &Flow) -> FlowFilter {
        let values = [
            address_value(flow.src),
            address_value(flow.dst),
            flow.sport.into(),
            flow.dport.into(),
            flow.proto.into(),
        ];
        let columns = FLOW_COLUMNS.iter().zip(values);
        columns.fold(FlowFilter::default(), |filter, (column, value)| filter.and_equal(column, value))
    }

    /// Records of flows whose source or destination is in a prefix.
    pub fn either_end_in(prefix: &Prefix) -> FlowFilter {
        let ends = FLOW_COLUMNS[..2].iter().map(|column| Condition::from_prefix(column, prefix));
        FlowFilter { parts: vec![Condition::Any(ends.collect())] }
    }

    /// Adds the condition that this column has this value.
    #[must_use]
    pub fn and_equal(mut self, column: &'static Column, value: u128) -> FlowFilter {
        self.parts.push(Condition::Compared { column, operator: Operator::Equal, value });
        self
    }

    /// Adds the condition that the flow was active at this moment, in nanoseconds since 1970, by its exporter's clock.
    #[must_use]
    pub fn and_running_at(mut self, at: u64) -> FlowFilter {
        for (column, operator) in [(&START, Operator::AtMost), (&END, Operator::AtLeast)] {
            self.parts.push(Condition::Compared { column, operator, value: at.into() });
        }
        self
    }

    /// The value that a column must have, if the condition requires one; an index can look it up.
    pub fn required_value(&self, column: &Column) -> Option<u128> {
        self.parts.iter().find_map(|condition| condition.required_value(column))
    }

    /// The columns that the condition mentions.
    pub fn columns(&self) -> Vec<&'static Column> {
        let mut columns = Vec::new();
        self.parts.iter().for_each(|condition| condition.add_columns(&mut columns));
        columns
    }

    /// What remains of the condition for entries that share this one's values in the known columns: a condition on the
    /// other columns. `None` if it excludes all of them.
    #[must_use]
    pub fn with_known_columns(
        &self,
        entry: &[u8; ENTRY_LEN],
        is_known: &dyn Fn(&Column) -> bool,
    ) -> Option<FlowFilter> {
        match join_remainders(&self.parts, true, Condition::All, entry, is_known) {
            Remainder::Decided(is_included) => is_included.then(FlowFilter::default),
            Remainder::Open(Condition::All(parts)) => Some(FlowFilter { parts }),
            Remainder::Open(condition) => Some(FlowFilter { parts: vec![condition] }),
        }
    }

    /// Whether the condition includes an entry.
    #[inline]
    pub fn includes(&self, entry: &[u8; ENTRY_LEN]) -> bool {
        self.parts.iter().all(|condition| condition.holds(entry))
    }
}

impl fmt::Display for FlowFilter {
    /// Parses back to the same condition; addresses stand in place of their names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_joined(f, &self.parts, "and")
    }
}

/// What remains of joined conditions: a false one decides an `and`, a true one an `or`.
fn join_remainders(
    conditions: &[Condition],
    neutral: bool,
    join: fn(Vec<Condition>) -> Condition,
    entry: &[u8; ENTRY_LEN],
    is_known: &dyn Fn(&Column) -> bool,
) -> Remainder {
    let mut open = Vec::new();
    for condition in conditions {
        match condition.remainder(entry, is_known) {
            Remainder::Decided(holds) if holds == neutral => {}
            Remainder::Decided(holds) => return Remainder::Decided(holds),
            Remainder::Open(condition) => open.push(condition),
        }
    }
    match open.len() {
        0 => Remainder::Decided(neutral),
        1 => Remainder::Open(open.remove(0)),
        _ => Remainder::Open(join(open)),
    }
}

fn write_joined(f: &mut fmt::Formatter<'_>, conditions: &[Condition], word: &str) -> fmt::Result {
    for (number, condition) in conditions.iter().enumerate() {
        if number != 0 {
            write!(f, " {word} ")?;
        }
        match condition {
            Condition::All(_) | Condition::Any(_) if conditions.len() > 1 => write!(f, "({condition})")?,
            _ => write!(f, "{condition}")?,
        }
    }
    Ok(())
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Masked { column, mask, value } => {
                let (address, bits) = (Ipv6Addr::from_bits(*value), mask.count_ones());
                match address.to_ipv4_mapped().filter(|_| bits >= 96) {
                    Some(address) => write!(f, "{} in {address}/{}", column.name, bits - 96),
                    None => write!(f, "{} in {address}/{bits}", column.name),
                }
            }
            Condition::Compared { column, operator, value } => match column.kind {
                ColumnType::Address => {
                    let address = Ipv6Addr::from_bits(*value).to_canonical();
                    write!(f, "{} {} {address}", column.name, operator.symbol())
                }
                _ => write!(f, "{} {} {value}", column.name, operator.symbol()),
            },
            Condition::Not(condition) => match **condition {
                Condition::All(_) | Condition::Any(_) => write!(f, "not ({condition})"),
                _ => write!(f, "not {condition}"),
            },
            Condition::All(conditions) => write_joined(f, conditions, "and"),
            Condition::Any(conditions) => write_joined(f, conditions, "or"),
        }
    }
}

impl Operator {
    fn symbol(self) -> &'static str {
        match self {
            Operator::Equal => "=",
            Operator::NotEqual => "!=",
            Operator::Less => "<",
            Operator::AtMost => "<=",
            Operator::Greater => ">",
            Operator::AtLeast => ">=",
        }
    }
}

impl Condition {
    fn from_prefix(column: &'static Column, prefix: &Prefix) -> Condition {
        let address = prefix.written_address();
        let bits = u32::from(prefix.length_in_bits()) + if address.is_ipv4() { 96 } else { 0 };
        let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
        Condition::Masked { column, mask, value: address_value(address) & mask }
    }

    fn required_value(&self, wanted: &Column) -> Option<u128> {
        match self {
            Condition::Compared { column, operator: Operator::Equal, value } if *column == wanted => {
                Some(*value)
            }
            Condition::All(conditions) => {
                conditions.iter().find_map(|condition| condition.required_value(wanted))
            }
            _ => None,
        }
    }

    fn add_columns(&self, columns: &mut Vec<&'static Column>) {
        match self {
            Condition::Masked { column, .. } | Condition::Compared { column, .. } => columns.push(column),
            Condition::Not(condition) => condition.add_columns(columns),
            Condition::All(conditions) | Condition::Any(conditions) => {
                conditions.iter().for_each(|condition| condition.add_columns(columns));
            }
        }
    }

    fn remainder(&self, entry: &[u8; ENTRY_LEN], is_known: &dyn Fn(&Column) -> bool) -> Remainder {
        match self {
            Condition::Masked { column, .. } | Condition::Compared { column, .. } => match is_known(column) {
                true => Remainder::Decided(self.holds(entry)),
                false => Remainder::Open(self.clone()),
            },
            Condition::Not(condition) => match condition.remainder(entry, is_known) {
                Remainder::Decided(holds) => Remainder::Decided(!holds),
                Remainder::Open(condition) => Remainder::Open(Condition::Not(Box::new(condition))),
            },
            Condition::All(conditions) => join_remainders(conditions, true, Condition::All, entry, is_known),
            Condition::Any(conditions) => join_remainders(conditions, false, Condition::Any, entry, is_known),
        }
    }

    /// Comparisons are inlined: in a long list, most records fail the first one.
    #[inline]
    fn holds(&self, entry: &[u8; ENTRY_LEN]) -> bool {
        match self {
            Condition::Masked { column, mask, value } => column.read_value(entry) & mask == *value,
            Condition::Compared { column, operator, value } => {
                let found = column.read_value(entry);
                match operator {
                    Operator::Equal => found == *value,
                    Operator::NotEqual => found != *value,
                    Operator::Less => found < *value,
                    Operator::AtMost => found <= *value,
                    Operator::Greater => found > *value,
                    Operator::AtLeast => found >= *value,
                }
            }
            _ => self.joined_holds(entry),
        }
    }

    fn joined_holds(&self, entry: &[u8; ENTRY_LEN]) -> bool {
        match self {
            Condition::Not(condition) => !condition.holds(entry),
            Condition::All(conditions) => conditions.iter().all(|condition| condition.holds(entry)),
            Condition::Any(conditions) => conditions.iter().any(|condition| condition.holds(entry)),
            Condition::Masked { .. } | Condition::Compared { .. } => self.holds(entry),
        }
    }
}

/// An address as a column holds it.
pub fn address_value(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    columns: ColumnNames<'a>,
    names: AddressNames<'a>,
}

impl<'a> Parser<'a> {
    /// The next token, without taking it: a word, an operator or a parenthesis; empty at the end.
    fn peek_token(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let rest = rest.trim_start();
        self.at = self.text.len() - rest.len();
        let is_operator = |c: char| matches!(c, '=' | '!' | '<' | '>');
        let is_word = |c: char| !c.is_whitespace() && !is_operator(c) && !matches!(c, '(' | ')');
        let len = match rest.chars().next() {
            None => 0,
            Some('(' | ')') => 1,
            Some(c) if is_operator(c) => rest.find(|c| !is_operator(c)).unwrap_or(rest.len()),
            Some(_) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
        };
        &rest[..len]
    }

    fn take_token(&mut self) -> &'a str {
        let token = self.peek_token();
        self.at += token.len();
        token
    }

    fn take_if(&mut self, wanted: &str) -> bool {
        let is_next = self.peek_token() == wanted;
        if is_next {
            self.at += wanted.len();
        }
        is_next
    }

    /// The error that the next token is not what it must be.
    fn error_here(&mut self, must: impl Into<String>) -> FilterError {
        let found = self.peek_token();
        FilterError { place: self.at..self.at + found.len(), found: found.into(), must: must.into() }
    }

    fn parse_alternatives(&mut self, depth: usize) -> Result<Condition, FilterError> {
        let mut any = vec![self.parse_conjunction(depth)?];
        while self.take_if("or") {
            any.push(self.parse_conjunction(depth)?);
        }
        Ok(if any.len() == 1 { any.remove(0) } else { Condition::Any(any) })
    }

    fn parse_conjunction(&mut self, depth: usize) -> Result<Condition, FilterError> {
        let mut all = vec![self.parse_negation(depth)?];
        while self.take_if("and") {
            all.push(self.parse_negation(depth)?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Condition::All(all) })
    }

    fn parse_negation(&mut self, depth: usize) -> Result<Condition, FilterError> {
        if depth > MAX_DEPTH {
            return Err(self.error_here(format!("nested at most {MAX_DEPTH} deep")));
        }
        if self.take_if("not") {
            return Ok(Condition::Not(Box::new(self.parse_negation(depth + 1)?)));
        }
        if self.take_if("(") {
            let condition = self.parse_alternatives(depth + 1)?;
            return match self.take_if(")") {
                true => Ok(condition),
                false => Err(self.error_here("`and`, `or` or `)`")),
            };
        }
        self.parse_comparison()
    }

    fn parse_comparison(&mut self) -> Result<Condition, FilterError> {
        let Some(column) = (self.columns)(self.peek_token()) else {
            return Err(self.error_here("the name of a column, such as `dst-port`"));
        };
        self.take_token();
        let operator = match self.peek_token() {
            "in" => {
                self.take_token();
                return self.parse_prefix(column);
            }
            "=" | "==" => Operator::Equal,
            "!=" => Operator::NotEqual,
            "<" => Operator::Less,
            "<=" => Operator::AtMost,
            ">" => Operator::Greater,
            ">=" => Operator::AtLeast,
            _ => return Err(self.error_here("`=`, `!=`, `<`, `<=`, `>`, `>=` or `in`")),
        };
        self.take_token();
        let value = self.parse_value(column)?;
        Ok(Condition::Compared { column, operator, value })
    }

    fn parse_prefix(&mut self, column: &'static Column) -> Result<Condition, FilterError> {
        let prefix = match column.kind {
            ColumnType::Address => self.peek_token().parse::<Prefix>().ok(),
            _ => {
                return Err(
                    self.error_here(format!("a prefix, which `{}` does not have: use `=`", column.name))
                );
            }
        };
        let Some(prefix) = prefix else {
            return Err(self.error_here("a prefix, such as 10.0.0.0/8 or 2001:db8::/32"));
        };
        self.take_token();
        Ok(Condition::from_prefix(column, &prefix))
    }

    fn parse_value(&mut self, column: &'static Column) -> Result<u128, FilterError> {
        let token = self.peek_token();
        let (value, must) = match column.kind {
            ColumnType::Address => {
                let address = token.parse::<IpAddr>().ok().or_else(|| (self.names)(token));
                (address.map(address_value), "an address, or the name of one")
            }
            _ if column.name == "protocol" => (
                key::protocol_by_name(token).map(u128::from).or_else(|| parse_number(token)),
                "a protocol, such as tcp, or its number",
            ),
            _ => {
                let word = WORDS.iter().find(|(of, word, _)| *of == column.name && *word == token);
                (word.map(|(.., value)| *value).or_else(|| parse_number(token)), "a number")
            }
        };
        let most = u128::MAX >> (128 - 8 * column.kind.width());
        match value {
            Some(value) if value <= most => {
                self.take_token();
                Ok(value)
            }
            Some(_) => Err(self.error_here(format!("at most {most}"))),
            None => Err(self.error_here(must)),
        }
    }
}

/// A number, decimal or hex; the suffixes k, M and G multiply by powers of 1,000.
fn parse_number(text: &str) -> Option<u128> {
    if let Some(digits) = text.strip_prefix("0x") {
        return u128::from_str_radix(digits, 16).ok();
    }
    let (digits, unit) = match text.char_indices().last()? {
        (at, 'k') => (&text[..at], 1000),
        (at, 'M') => (&text[..at], 1_000_000),
        (at, 'G') => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse::<u128>().ok().filter(|_| is_number)?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::flow_record::FlowRecord;

    fn no_names(_: &str) -> Option<IpAddr> {
        None
    }

    fn parse(text: &str) -> Result<FlowFilter, FilterError> {
        FlowFilter::parse(text, &|name| (name == "edge1").then(|| IpAddr::from([192, 0, 2, 1])))
    }

    fn record() -> FlowRecord {
        let address = |text: &str| core::net::Ipv6Addr::from_bits(address_value(text.parse().unwrap()));
        FlowRecord {
            exporter: address("192.0.2.1"),
            src: address("10.1.2.3"),
            dst: address("2001:db8::7"),
            dst_port: 443,
            protocol: 6,
            bytes: 1_500_000,
            tcp_flags: 0x12,
            direction: 1,
            ..FlowRecord::EMPTY
        }
    }

    #[test]
    fn conditions_hold_or_do_not() {
        let entry = record().to_entry();
        for (text, holds) in [
            ("", true),
            ("dst-port = 443", true),
            ("dst_port=443", true),
            ("dst-port != 443", false),
            ("dst-port < 443 or dst-port > 443", false),
            ("dst-port <= 443 and dst-port >= 443", true),
            ("exporter = edge1", true),
            ("exporter = 192.0.2.2", false),
            ("src in 10.0.0.0/8", true),
            ("src in 11.0.0.0/8", false),
            ("src in 0.0.0.0/0", true),
            ("src in ::/0", true),
            ("dst in 2001:db8::/32", true),
            ("dst in 0.0.0.0/0", false),
            ("protocol = tcp", true),
            ("protocol = 17", false),
            ("not protocol = tcp", false),
            ("not (protocol = udp or src in 11.0.0.0/8)", true),
            ("tcp-flags = syn-ack and direction = ingress", true),
            ("bytes >= 1M and bytes < 2M", true),
            ("bytes = 0x16e360", true),
            // `and` binds tighter than `or`.
            ("protocol = tcp or protocol = udp and dst-port = 1", true),
            ("(protocol = tcp or protocol = udp) and dst-port = 1", false),
            ("dst-port = 443 and exporter = edge1 and src in 11.0.0.0/8 or not protocol = tcp", false),
        ] {
            let filter = parse(text).unwrap();
            assert_eq!(filter.includes(&entry), holds, "{text}");
            let again =
                FlowFilter::parse(&filter.to_string(), &no_names).map(|filter| filter.includes(&entry));
            assert_eq!(again, Ok(holds), "{text} became {filter}");
        }
        let port = Column::from_name("dst-port").unwrap();
        assert!(parse("protocol = tcp").unwrap().and_equal(port, 443).includes(&entry));
        assert!(!parse("protocol = tcp").unwrap().and_equal(port, 80).includes(&entry));
    }

    #[test]
    fn what_a_column_must_be_is_known_only_where_every_record_has_it() {
        let port = Column::from_name("dst-port").unwrap();
        for (text, value) in [
            ("dst-port = 443", Some(443)),
            ("protocol = tcp and (dst-port = 443 and bytes > 1)", Some(443)),
            ("dst-port = 443 or protocol = tcp", None),
            ("not dst-port = 443", None),
            ("dst-port >= 443", None),
            ("", None),
        ] {
            assert_eq!(parse(text).unwrap().required_value(port), value, "{text}");
        }
    }

    #[test]
    fn what_is_left_of_a_condition_decides_as_all_of_it() {
        let mut entries = Vec::new();
        for (protocol, tcp_flags) in [(6, 0x02), (6, 0x06), (6, 0x12), (17, 0), (1, 0)] {
            for (dst_port, packets) in [(53, 1), (53, 3), (443, 1), (60_000, 3)] {
                let record = FlowRecord { protocol, tcp_flags, dst_port, packets, ..record() };
                entries.push(record.to_entry());
            }
        }
        let known_columns: [&dyn Fn(&Column) -> bool; 4] =
            [&|_| false, &|_| true, &|column| column.kind.width() == 1, &|column| column.name == "dst-port"];
        for text in [
            "",
            "protocol = tcp",
            "dst-port < 443 and not tcp-flags = syn",
            "protocol = tcp and (tcp-flags = syn or tcp-flags = 0x06) or protocol = udp and packets <= 2 and dst-port < 32768",
            "not (protocol = tcp and (dst-port = 53 or tcp-flags != syn))",
            "src in 10.0.0.0/8 and (protocol = udp or dst-port = 443 or packets > 1)",
            "(protocol = tcp or packets = 1) and (protocol = udp or dst-port = 53)",
        ] {
            let filter = parse(text).unwrap().and_equal(&FLOW_COLUMNS[0], record().src.to_bits());
            for (number, is_known) in known_columns.iter().enumerate() {
                let columns = crate::flow_record::COLUMNS.iter().filter(|column| is_known(column));
                for entry in &entries {
                    let left = filter.with_known_columns(entry, is_known);
                    assert!(left.iter().flat_map(FlowFilter::columns).all(|column| !is_known(column)));
                    let is_alike = |other: &&[u8; ENTRY_LEN]| {
                        columns.clone().all(|column| column.read_value(entry) == column.read_value(other))
                    };
                    for other in entries.iter().filter(is_alike) {
                        let is_included = left.as_ref().is_some_and(|left| left.includes(other));
                        assert_eq!(is_included, filter.includes(other), "{text}, {number}");
                    }
                }
            }
        }
    }

    #[test]
    fn errors_point_at_the_place() {
        for (text, place, says) in [
            ("dst-prot = 443", 0..8, "at character 1, `dst-prot`: must be the name of a column"),
            ("protocol = tcp nad dst-port = 1", 15..18, "`nad`: must be `and`, `or` or the end"),
            ("dst-port 443", 9..12, "must be `=`"),
            ("dst-port =", 10..10, "ends too early: a number is missing"),
            ("dst-port = 65536", 11..16, "must be at most 65535"),
            ("dst-port = https", 11..16, "must be a number"),
            ("src = edge2", 6..11, "must be an address, or the name of one"),
            ("src in 10.0.0.0/33", 7..18, "must be a prefix"),
            ("dst-port in 10.0.0.0/8", 12..22, "which `dst-port` does not have"),
            ("protocol = tpc", 11..14, "must be a protocol"),
            ("(protocol = tcp", 15..15, "`and`, `or` or `)` is missing"),
            ("protocol = tcp)", 14..15, "`)`: must be `and`"),
            ("protocol = tcp and", 18..18, "the name of a column"),
            ("bytes = +1", 8..10, "must be a number"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.place, place, "{text}: {error}");
            assert!(error.to_string().contains(says), "{text}: {error}");
        }
        let deep = format!("{}protocol = tcp", "not ".repeat(40));
        assert!(parse(&deep).unwrap_err().to_string().contains("nested at most"));
        assert!(parse(&" ".repeat(17_000)).unwrap_err().to_string().contains("at most 16384 bytes"));
    }

    #[test]
    fn a_flow_and_its_ends_are_conditions() {
        let flow: Flow = "10.1.2.3:7->10.9.9.9:443/tcp".parse().unwrap();
        let of = |src: &str, dst_port| {
            let src = core::net::Ipv6Addr::from_bits(address_value(src.parse().unwrap()));
            let dst = core::net::Ipv6Addr::from_bits(address_value(flow.dst));
            FlowRecord { src, dst, src_port: 7, dst_port, protocol: 6, ..FlowRecord::EMPTY }.to_entry()
        };
        let one = FlowFilter::from_flow(&flow);
        assert_eq!(
            one.to_string(),
            "src = 10.1.2.3 and dst = 10.9.9.9 and src-port = 7 and dst-port = 443 and protocol = 6"
        );
        assert!(one.includes(&of("10.1.2.3", 443)) && !one.includes(&of("10.1.2.3", 80)));
        let ends = FlowFilter::either_end_in(&"10.1.0.0/16".parse().unwrap());
        assert!(ends.includes(&of("10.1.2.3", 1)) && !ends.includes(&of("10.2.2.3", 1)));
        let ends = FlowFilter::either_end_in(&"10.9.0.0/16".parse().unwrap());
        assert!(FlowFilter::parse(&ends.to_string(), &no_names).unwrap().includes(&of("10.2.2.3", 1)));
    }

    proptest! {
        #[test]
        fn any_text_is_a_condition_or_an_error(text in "[ -~é]{0,60}") {
            if let Err(error) = FlowFilter::parse(&text, &no_names) {
                prop_assert!(text.get(error.place.clone()).is_some(), "{error:?}");
            }
        }

        #[test]
        fn a_condition_survives_as_text(choices in prop::collection::vec((0usize..6, 0usize..3, any::<bool>()), 1..12)) {
            let comparisons =
                ["dst-port = 443", "src in 10.0.0.0/8", "protocol != tcp", "bytes > 7", "dst = ::1", "dst in 2001:db8::/33"];
            let mut text = String::new();
            let mut open = 0;
            for (number, (comparison, opens, negated)) in choices.into_iter().enumerate() {
                if number != 0 {
                    text += if opens % 2 == 0 { " and " } else { " or " };
                }
                text += if negated { "not " } else { "" };
                if opens == 2 {
                    text += "(";
                    open += 1;
                }
                text += comparisons[comparison];
            }
            text += &")".repeat(open);
            let filter = FlowFilter::parse(&text, &no_names).unwrap();
            let again = FlowFilter::parse(&filter.to_string(), &no_names).unwrap();
            prop_assert_eq!(again.to_string(), filter.to_string());
            let entry = record().to_entry();
            prop_assert_eq!(again.includes(&entry), filter.includes(&entry));
        }

        #[test]
        fn words_in_any_order_do_not_panic(words in prop::collection::vec(
            prop::sample::select(vec!["not", "(", ")", "and", "or", "src", "dst-port", "=", "in", "10.0.0.0/8", "80", "::1"]), 0..40,
        )) {
            let _ = FlowFilter::parse(&words.join(" "), &no_names);
        }
    }
}
