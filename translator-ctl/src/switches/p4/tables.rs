//! What a P4 switch holds: rows of tables, multicast groups and clone sessions, by the names that the P4
//! program gives them. Numbers are numbers here; how wide a field is, [`Schema`](super::schema::Schema) knows.

use std::collections::BTreeMap;

/// All that a switch holds, or should.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    rows: BTreeMap<Item, Holds>,
}

/// What there is one of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    /// One copy of a multicast group, where the switch has them by themselves. Before the group.
    Node(u32),
    /// A multicast group. Before the rows that name it.
    Group(u32),
    /// A clone session.
    Clone(u32),
    /// Where the traffic manager of a pipe sends packets that it would drop, and that ask for it. Before the rows by which they
    /// ask.
    Deflection(u32),
    /// A row of a table.
    Row {
        /// Name of the table.
        table: String,
        /// Its key, in the order of the table's fields.
        key: Vec<Match>,
        /// Where keys of several rows fit, the row of the least number counts. 0 in tables where one key at most fits.
        order: u32,
    },
    /// What a table does where no row fits.
    Default {
        /// Name of the table.
        table: String,
    },
}

/// How one field of a key is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Match {
    /// This number.
    Exact(u128),
    /// A number with these first bits.
    Prefix {
        /// The bits, at their place.
        value: u128,
        /// How many.
        len: u16,
    },
    /// A number with these bits where the mask has ones.
    Masked {
        /// The bits; 0 where the mask is.
        value: u128,
        /// Which of them count.
        mask: u128,
    },
    /// From one number to another, both included.
    Range {
        /// The first.
        low: u128,
        /// The last.
        high: u128,
    },
}

/// What an item holds.
#[derive(Clone, PartialEq, Eq)]
pub enum Holds {
    /// The copies of a packet: port and replication id of each, ordered.
    Copies(Vec<(u32, u32)>),
    /// An action and its parameters, in their order.
    Action {
        /// Name of the action.
        name: String,
        /// Its parameters, in the order in which the program declares them.
        params: Vec<u128>,
    },
    /// What a mirror session does, of a switch that has them apart from multicast groups.
    Mirror(Mirror),
    /// A queue of a port.
    Queue {
        /// The port.
        port: u32,
        /// Its queue.
        queue: u32,
    },
}

/// A mirror session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Where copies go.
    pub to: Towards,
    /// Where they are made.
    pub at: Side,
    /// Bytes of a copy, at most.
    pub longest: u16,
}

/// Where copies of a mirror session go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// To a port.
    Port(u32),
    /// To a multicast group.
    Group(u32),
}

/// Where the copies of a mirror session are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// At ingress.
    Ingress,
    /// At egress.
    Egress,
    /// At both.
    Both,
}

// A remote key is among the parameters of some actions.
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
pub enum Update {
    /// It is not there yet.
    Insert(Item, Holds),
    /// It is there, and holds something else.
    Modify(Item, Holds),
    /// It is there, and should not be.
    Delete(Item),
}

impl Item {
    /// Whether it is there from the start, and cannot go.
    fn stays(&self) -> bool {
        matches!(self, Item::Default { .. } | Item::Deflection(_))
    }
}

impl Update {
    /// What it is about.
    pub fn item(&self) -> &Item {
        match self {
            Update::Insert(item, _) | Update::Modify(item, _) | Update::Delete(item) => item,
        }
    }
}

impl Tables {
    /// Adds an item, or replaces what it holds.
    pub fn set(&mut self, item: Item, holds: Holds) {
        self.rows.insert(item, holds);
    }

    /// Adds a row to a table where one row at most fits.
    pub fn row(&mut self, table: &str, key: Vec<Match>, action: &str, params: Vec<u128>) {
        self.ordered_row(table, 0, key, action, params);
    }

    /// Adds a row to a table where several may fit: that of the least order counts.
    pub fn ordered_row(&mut self, table: &str, order: u32, key: Vec<Match>, action: &str, params: Vec<u128>) {
        let holds = Holds::Action { name: action.into(), params };
        self.set(Item::Row { table: table.into(), key, order }, holds);
    }

    /// What an item holds.
    pub fn get(&self, item: &Item) -> Option<&Holds> {
        self.rows.get(item)
    }

    /// All of it.
    pub fn iter(&self) -> impl Iterator<Item = (&Item, &Holds)> {
        self.rows.iter()
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether all of `other` is here as it is there.
    pub fn contains(&self, other: &Tables) -> bool {
        other.iter().all(|(item, holds)| self.get(item) == Some(holds))
    }

    /// Does what an update says.
    pub fn apply(&mut self, update: &Update) {
        match update {
            Update::Insert(item, holds) | Update::Modify(item, holds) => {
                self.set(item.clone(), holds.clone())
            }
            Update::Delete(item) => drop(self.rows.remove(item)),
        }
    }

    /// The updates from this to `want`, in an order in which a switch can make them one by one: what goes first, so
    /// that there is room, rows before the groups that they name; then what changes or is new, groups first. What a
    /// table does by default, and where a traffic manager deflects to, cannot go: it stays as it is where `want` does not say.
    pub fn updates_to(&self, want: &Tables) -> Vec<Update> {
        let gone = self.rows.keys().filter(|item| want.get(item).is_none() && !item.stays());
        let mut updates: Vec<Update> = gone.cloned().map(Update::Delete).collect();
        updates.reverse();
        for (item, holds) in want.iter() {
            match self.get(item) {
                // What is there from the start is never inserted.
                None if item.stays() => updates.push(Update::Modify(item.clone(), holds.clone())),
                None => updates.push(Update::Insert(item.clone(), holds.clone())),
                Some(held) if held == holds => {}
                Some(_) => updates.push(Update::Modify(item.clone(), holds.clone())),
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
            tables.row(table, vec![Match::Exact(*key)], "act", vec![*param]);
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
            matches!(&updates[0], Update::Delete(Item::Row { table, .. }) if table == "a"),
            "{updates:?}"
        );
        assert_eq!(updates[1], Update::Delete(Item::Group(1)));
        assert!(matches!(updates[2], Update::Insert(Item::Group(2), _)), "{updates:?}");
        assert_eq!(updates.len(), 5);
        updates.iter().for_each(|update| have.apply(update));
        assert_eq!(have, want);
        assert_eq!(have.updates_to(&want), []);
    }

    #[test]
    fn parameters_are_not_printed() {
        let text = format!("{:?}", of(&[("a", 1, 0x00de_adbe)]));
        assert!(text.contains("act") && !text.contains("14593470"), "{text}");
    }
}
