//! The collectors that a translator serves, as the configuration names them.

use dta_proto::list_range::ListRange;
use serde::{Deserialize, Serialize};

/// One collector, and what is wanted of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collector {
    /// Its gRPC address: `HOST:PORT`, or with `http://` or `https://` in front.
    pub address: String,
    /// Stores wanted of it, by name; empty = all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<String>,
    /// Append lists wanted of it; empty = all lists of the stores wanted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lists: Vec<ListRange>,
}

/// All collectors in the order of their indices. In a file it is one address, a list of addresses
/// and tables, or one `[[translator.collector]]` for each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct Collectors(Vec<Collector>);

#[derive(Clone, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a collector is an address, a list of them, or tables with `address`, `stores`, `lists`"
)]
enum Written {
    Address(String),
    List(Vec<Element>),
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged, expecting = "a collector is an address, or a table with `address`, `stores` and `lists`")]
enum Element {
    Address(String),
    Table(Collector),
}

impl Collectors {
    /// Collectors at these addresses, of which everything is wanted.
    pub fn at<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Collectors {
        let collector = |address: A| Collector { address: address.into(), ..Collector::default() };
        Collectors(addresses.into_iter().map(collector).collect())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The indices of all.
    pub fn indices(&self) -> impl Iterator<Item = u8> + use<> {
        (0..=u8::MAX).take(self.0.len())
    }

    /// All of them, by index.
    pub fn iter(&self) -> impl Iterator<Item = &Collector> {
        self.0.iter()
    }

    /// The collector of an index that is one.
    pub fn get(&self, index: u8) -> Option<&Collector> {
        self.0.get(usize::from(index))
    }

    /// The address of a collector; nothing where there is none of that index.
    pub fn address(&self, index: u8) -> &str {
        self.get(index).map_or("", |collector| &collector.address)
    }
}

impl From<Written> for Collectors {
    fn from(written: Written) -> Self {
        let collector = |element| match element {
            Element::Address(address) => Collector { address, ..Collector::default() },
            Element::Table(collector) => collector,
        };
        match written {
            Written::Address(address) => Collectors::at([address]),
            Written::List(list) => Collectors(list.into_iter().map(collector).collect()),
        }
    }
}

impl From<Collectors> for Written {
    fn from(Collectors(mut all): Collectors) -> Self {
        let is_plain = |c: &Collector| c.stores.is_empty() && c.lists.is_empty();
        if let [one] = &mut all[..]
            && is_plain(one)
        {
            return Written::Address(std::mem::take(&mut one.address));
        }
        let element =
            |c: Collector| if is_plain(&c) { Element::Address(c.address) } else { Element::Table(c) };
        Written::List(all.into_iter().map(element).collect())
    }
}
