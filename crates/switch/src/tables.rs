//! What a P4 switch holds: rows of tables, multicast groups and clone sessions, by the P4 program's names.
//! Numbers are plain here; [`Schema`](super::schema::Schema) knows how wide a field is.

use std::collections::BTreeMap;

use super::row::{ActionOf, Key, RowAction};

/// Everything that a switch holds, or should.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    rows: BTreeMap<Item, Holds>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    /// One copy of a multicast group, on switches that have these separately. Ordered before the group.
    Node(u32),
    /// A multicast group. Ordered before the rows that name it.
    Group(u32),
    Clone(u32),
    /// Where the traffic manager of a pipe sends packets that it would drop and that ask for it. Ordered
    /// before the rows by which they ask.
    Deflection(u32),
    Row {
        table: String,
        /// Its key, in the order of the table's fields.
        key: Vec<Match>,
        /// If keys of several rows match, the row with the lowest number applies. 0 in tables where at most
        /// one matches.
        order: u32,
    },
    Default {
        table: String,
    },
}

/// The match of one key field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Match {
    Exact(u128),
    /// A number with this prefix.
    Prefix {
        value: u128,
        len: u16,
    },
    /// A number that equals this under a mask.
    Masked {
        /// The bits; 0 outside the mask.
        value: u128,
        mask: u128,
    },
    /// A range, both ends included.
    Range {
        low: u128,
        high: u128,
    },
}

#[derive(Clone, PartialEq, Eq)]
pub enum Holds {
    /// The copies of a packet: port and replication id of each, ordered.
    Copies(Vec<(u32, u32)>),
    /// An action and its parameters, in their order.
    Action {
        name: String,
        /// Its parameters, in the program's order.
        params: Vec<u128>,
    },
    /// A mirror session's settings, on switches that have these apart from multicast groups.
    Mirror(Mirror),
    Queue {
        port: u32,
        queue: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mirror {
    pub to: Towards,
    pub at: MirrorSide,
    /// Longest copy in bytes.
    pub longest: u16,
}

/// Destination of a mirror session's copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    Port(u32),
    Group(u32),
}

/// Where a mirror session's copies are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorSide {
    Ingress,
    Egress,
    Both,
}

// Some actions have an rkey among their parameters.
impl std::fmt::Debug for Holds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Holds::Copies(copies) => f.debug_tuple("Copies").field(copies).finish(),
            Holds::Mirror(mirror) => mirror.fmt(f),
            Holds::Queue { port, queue } => write!(f, "Queue {queue} of port {port}"),
            Holds::Action { name, params } => write!(f, "Action {name} with {} parameters", params.len()),
        }
    }
}

/// One step from what a switch holds to what it should hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchUpdate {
    Insert(Item, Holds),
    /// It is there with other contents.
    Modify(Item, Holds),
    Delete(Item),
}

impl Item {
    /// Whether it always exists and cannot be deleted.
    fn is_permanent(&self) -> bool {
        matches!(self, Item::Default { .. } | Item::Deflection(_))
    }
}

impl SwitchUpdate {
    pub fn updated_item(&self) -> &Item {
        match self {
            SwitchUpdate::Insert(item, _) | SwitchUpdate::Modify(item, _) | SwitchUpdate::Delete(item) => {
                item
            }
        }
    }
}

fn action_contents<A: RowAction>(action: A) -> Holds {
    Holds::Action { name: A::USED.name.into(), params: action.into_params() }
}

impl Tables {
    /// Adds an item, or replaces its contents.
    pub fn set(&mut self, item: Item, holds: Holds) {
        self.rows.insert(item, holds);
    }

    /// Adds a row to a table where at most one row matches.
    pub(super) fn add_row<K: Key, A: ActionOf<K>>(&mut self, key: K, action: A) {
        self.ordered_row(0, key, action);
    }

    /// Adds a row to a table where several may match: the lowest order applies.
    pub(super) fn ordered_row<K: Key, A: ActionOf<K>>(&mut self, order: u32, key: K, action: A) {
        let item = Item::Row { table: K::TABLE.name.into(), key: key.into_matches(), order };
        self.set(item, action_contents(action));
    }

    pub(super) fn default_action<K: Key>(&mut self, action: impl ActionOf<K>) {
        self.set(Item::Default { table: K::TABLE.name.into() }, action_contents(action));
    }

    /// The action of a row in a table where at most one row matches; `None` if there is no such row or it has
    /// another action.
    pub(super) fn find_action<K: Key, A: ActionOf<K>>(&self, key: K) -> Option<A> {
        match self.get(&Item::Row { table: K::TABLE.name.into(), key: key.into_matches(), order: 0 })? {
            Holds::Action { name, params } if name == A::USED.name => A::from_params(params),
            _ => None,
        }
    }

    pub fn get(&self, item: &Item) -> Option<&Holds> {
        self.rows.get(item)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Item, &Holds)> {
        self.rows.iter()
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn contains(&self, other: &Tables) -> bool {
        other.iter().all(|(item, holds)| self.get(item) == Some(holds))
    }

    pub fn apply_update(&mut self, update: &SwitchUpdate) {
        match update {
            SwitchUpdate::Insert(item, holds) | SwitchUpdate::Modify(item, holds) => {
                self.set(item.clone(), holds.clone())
            }
            SwitchUpdate::Delete(item) => drop(self.rows.remove(item)),
        }
    }

    /// The updates from this to `want`, in an order in which a switch can apply them one by one: deletions
    /// first, to make room, rows before the groups that they name; then changes and insertions, groups first.
    /// Table defaults and traffic manager deflections cannot be deleted: they stay if `want` does not set
    /// them.
    pub fn updates_to(&self, want: &Tables) -> Vec<SwitchUpdate> {
        let gone = self.rows.keys().filter(|item| want.get(item).is_none() && !item.is_permanent());
        let mut updates: Vec<SwitchUpdate> = gone.cloned().map(SwitchUpdate::Delete).collect();
        updates.reverse();
        for (item, holds) in want.iter() {
            match self.get(item) {
                // Items that always exist are never inserted.
                None if item.is_permanent() => {
                    updates.push(SwitchUpdate::Modify(item.clone(), holds.clone()))
                }
                None => updates.push(SwitchUpdate::Insert(item.clone(), holds.clone())),
                Some(held) if held == holds => {}
                Some(_) => updates.push(SwitchUpdate::Modify(item.clone(), holds.clone())),
            }
        }
        updates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: &[(&str, u128, u128)]) -> Tables {
        let mut tables = Tables::default();
        for (table, key, param) in rows {
            let row = Item::Row { table: (*table).into(), key: vec![Match::Exact(*key)], order: 0 };
            tables.set(row, Holds::Action { name: "act".into(), params: vec![*param] });
        }
        tables
    }

    #[test]
    fn updates_lead_from_one_to_the_other_and_are_none_after() {
        let (mut have, mut want) =
            (of(&[("a", 1, 1), ("a", 2, 2), ("b", 1, 1)]), of(&[("a", 2, 3), ("c", 1, 1), ("b", 1, 1)]));
        have.set(Item::Group(1), Holds::Copies(vec![(1, 0)]));
        want.set(Item::Group(2), Holds::Copies(vec![(1, 0)]));
        let updates = have.updates_to(&want);
        assert!(
            matches!(&updates[0], SwitchUpdate::Delete(Item::Row { table, .. }) if table == "a"),
            "{updates:?}"
        );
        assert_eq!(updates[1], SwitchUpdate::Delete(Item::Group(1)));
        assert!(matches!(updates[2], SwitchUpdate::Insert(Item::Group(2), _)), "{updates:?}");
        assert_eq!(updates.len(), 5);
        updates.iter().for_each(|update| have.apply_update(update));
        assert_eq!(have, want);
        assert_eq!(have.updates_to(&want), []);
    }

    #[test]
    fn parameters_are_not_printed() {
        let text = format!("{:?}", of(&[("a", 1, 0x00de_adbe)]));
        assert!(text.contains("act") && !text.contains("14593470"), "{text}");
    }
}
