//! The points at which packets are traced, as named by users.

use std::fmt;
use std::str::FromStr;

/// The tracepoints that have a program, in the order in which a sent packet passes them.
pub const TRACEPOINTS: [(&str, &str); 5] = [
    ("net_dev_queue", "handed to a device's queue"),
    ("net_dev_start_xmit", "taken from the queue and passed to the driver"),
    ("netif_receive_skb", "received from a device"),
    ("consume_skb", "consumed without loss"),
    ("kfree_skb", "dropped, with a reason"),
];

/// The direction of a packet at an interface, and the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum InterfaceSide {
    Ingress,
    Egress,
    /// In, before the kernel allocates a buffer (native XDP).
    Xdp,
    /// Out: handed to the interface's queue (the tracepoint `net_dev_queue`, at this interface only).
    Queue,
    /// Out: taken from the queue and passed to the driver (`net_dev_start_xmit`).
    Driver,
    /// In: received from the interface (`netif_receive_skb`).
    Receive,
}

impl InterfaceSide {
    /// All sides, with their words after `iface:DEVICE/`; XDP has none.
    const WORDS: [(InterfaceSide, &'static str); 5] = [
        (InterfaceSide::Ingress, "ingress"),
        (InterfaceSide::Egress, "egress"),
        (InterfaceSide::Queue, "queue"),
        (InterfaceSide::Driver, "driver"),
        (InterfaceSide::Receive, "receive"),
    ];

    pub fn as_str(self) -> &'static str {
        Self::WORDS.iter().find(|(side, _)| *side == self).map_or("xdp", |(_, word)| word)
    }

    pub fn tracepoint(self) -> Option<&'static str> {
        match self {
            InterfaceSide::Queue => Some("net_dev_queue"),
            InterfaceSide::Driver => Some("net_dev_start_xmit"),
            InterfaceSide::Receive => Some("netif_receive_skb"),
            InterfaceSide::Ingress | InterfaceSide::Egress | InterfaceSide::Xdp => None,
        }
    }
}

/// A place to attach to. Written `iface:eth0` (both ways), `iface:eth0/ingress`, `iface:eth0/egress`,
/// `iface:eth0/queue`, `iface:eth0/driver`, `iface:eth0/receive`, `xdp:eth0`, each optionally preceded by
/// `netns:NAME/` for another network namespace; `tp:kfree_skb`; `fentry:FUNCTION`, `kprobe:FUNCTION`;
/// `uprobe:FILE:FUNCTION`. A user-built program is shown as `program:FILE`, which cannot be parsed as a
/// point.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum At {
    Interface {
        /// Network namespace: a name of `ip netns`, or the path of its file; `None` for the program's own.
        namespace: Option<String>,
        name: String,
        side: InterfaceSide,
    },
    /// A tracepoint, for all interfaces in all namespaces.
    Tracepoint(String),
    /// The entry of a kernel function, through fentry.
    Fentry(String),
    /// The entry of a kernel function, through a kprobe.
    Kprobe(String),
    /// The entry of a function in user space. It sees calls, not packets.
    Uprobe {
        /// The program or library, as a path.
        file: String,
        function: String,
    },
    /// The program of a user-built object file, at the place that its section names.
    Program(String),
}

/// Longest place in bytes: that of a path.
const LONGEST: usize = 4096;

/// Not a valid place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a point: {what}. Points are iface:DEVICE, iface:DEVICE/ingress, iface:DEVICE/egress, \
         iface:DEVICE/queue, iface:DEVICE/driver, iface:DEVICE/receive, xdp:DEVICE (each also after \
         netns:NAME/), tp:TRACEPOINT, fentry:FUNCTION, kprobe:FUNCTION, uprobe:FILE:FUNCTION"
)]
pub struct ParseError {
    text: String,
    what: String,
}

impl At {
    /// Parses one place or, for `iface:DEVICE`, two.
    pub fn parse_points(text: &str) -> Result<Vec<Self>, ParseError> {
        let fail = |what: String| ParseError { text: text.chars().take(64).collect(), what };
        if text.len() > LONGEST {
            return Err(fail(format!("it is longer than {LONGEST} bytes")));
        }
        let (namespace, rest) = match text.strip_prefix("netns:") {
            None => (None, text),
            Some(rest) => {
                let end = ["/iface:", "/xdp:"].iter().filter_map(|kind| rest.rfind(kind)).max();
                let end = end.ok_or_else(|| {
                    fail("netns:NAME/ must be followed by iface:DEVICE or xdp:DEVICE".into())
                })?;
                (Some(rest[..end].to_owned()), &rest[end + 1..])
            }
        };
        if namespace.as_deref() == Some("") {
            return Err(fail("the namespace has no name".into()));
        }
        if let Some(name) = &namespace
            && (name.split('/').any(|part| part == "..") || (name.contains('/') && !name.starts_with('/')))
        {
            return Err(fail("a namespace is a name of `ip netns`, or an absolute path without `..`".into()));
        }
        let (kind, name) = rest.split_once(':').ok_or_else(|| fail("there is no colon".into()))?;
        let bad = |c: char| c.is_whitespace() || c == '\0';
        if name.is_empty() || name.contains(bad) {
            return Err(fail("the name is empty or contains spaces".into()));
        }
        let function = |make: fn(String) -> Self| Ok(vec![make(name.to_owned())]);
        match kind {
            "iface" | "xdp" => {
                let side_of = |word: &str| InterfaceSide::WORDS.iter().find(|(_, known)| *known == word);
                let (name, sides) = match (kind, name.split_once('/')) {
                    ("xdp", None) => (name, vec![InterfaceSide::Xdp]),
                    ("iface", None) => (name, vec![InterfaceSide::Ingress, InterfaceSide::Egress]),
                    ("iface", Some((name, word))) => match side_of(word) {
                        Some((side, _)) => (name, vec![*side]),
                        None => {
                            let known = InterfaceSide::WORDS.map(|(_, word)| word).join(", ");
                            return Err(fail(format!("{word:?} is not a side; there are {known}")));
                        }
                    },
                    (_, Some((_, side))) => return Err(fail(format!("xdp points have no side {side:?}"))),
                    _ => return Err(fail(format!("{kind:?} is not known"))),
                };
                // IFNAMSIZ
                if name.is_empty() || name.len() > 15 {
                    return Err(fail("an interface's name has 1 to 15 bytes".into()));
                }
                let at = |side: &InterfaceSide| Self::Interface {
                    namespace: namespace.clone(),
                    name: name.to_owned(),
                    side: *side,
                };
                Ok(sides.iter().map(at).collect())
            }
            "tp" if TRACEPOINTS.iter().any(|(known, _)| *known == name) => function(Self::Tracepoint),
            "tp" => {
                let known = TRACEPOINTS.map(|(name, _)| name).join(", ");
                Err(fail(format!("there is no program for this tracepoint, only for {known}")))
            }
            "fentry" => function(Self::Fentry),
            "kprobe" => function(Self::Kprobe),
            "uprobe" => match name.rsplit_once(':') {
                Some((file, symbol)) if file.starts_with('/') && !symbol.is_empty() => {
                    Ok(vec![Self::Uprobe { file: file.to_owned(), function: symbol.to_owned() }])
                }
                _ => Err(fail("uprobe: must be followed by the absolute path of a program or library, a colon and a function".into())),
            },
            other => Err(fail(format!("{other:?} is not known"))),
        }
    }
}

impl At {
    /// Whether it is in a named network namespace.
    pub fn is_in_other_namespace(&self) -> bool {
        matches!(self, Self::Interface { namespace: Some(_), .. })
    }

    /// Whether packets go on from there, rather than being dropped or consumed. Such points have hops.
    pub fn is_on_way(&self) -> bool {
        match self {
            Self::Tracepoint(name) => name != "kfree_skb" && name != "consume_skb",
            _ => self.sees_packets(),
        }
    }

    /// Whether it sees packets rather than calls in user space.
    pub fn sees_packets(&self) -> bool {
        !matches!(self, Self::Uprobe { .. })
    }
}

/// Parses a single place; `iface:DEVICE` without a side is two places, and rejected here.
impl FromStr for At {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut places = Self::parse_points(text)?;
        match (places.pop(), places.is_empty()) {
            (Some(place), true) => Ok(place),
            _ => Err(ParseError {
                text: text.to_owned(),
                what: "these are two points, ingress and egress".into(),
            }),
        }
    }
}

impl fmt::Display for At {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface { namespace, name, side } => {
                if let Some(namespace) = namespace {
                    write!(out, "netns:{namespace}/")?;
                }
                match side {
                    InterfaceSide::Xdp => write!(out, "xdp:{name}"),
                    side => write!(out, "iface:{name}/{}", side.as_str()),
                }
            }
            Self::Tracepoint(name) => write!(out, "tp:{name}"),
            Self::Fentry(name) => write!(out, "fentry:{name}"),
            Self::Kprobe(name) => write!(out, "kprobe:{name}"),
            Self::Uprobe { file, function } => write!(out, "uprobe:{file}:{function}"),
            Self::Program(file) => write!(out, "program:{file}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_read_and_written_alike() {
        for text in [
            "iface:eth0/ingress",
            "netns:pod1/iface:e0/egress",
            "iface:eth0/queue",
            "netns:pod1/iface:e0/driver",
            "iface:eth0/receive",
            "xdp:eth0",
            "netns:/proc/7/ns/net/xdp:eth0",
            "tp:kfree_skb",
            "fentry:ip_rcv",
            "kprobe:ip_rcv",
            "uprobe:/usr/lib/a:b.so:sendto",
        ] {
            assert_eq!(text.parse::<At>().map(|at| at.to_string()), Ok(text.to_owned()));
        }
        let both: Vec<String> =
            At::parse_points("netns:a/iface:e0").unwrap().iter().map(At::to_string).collect();
        assert_eq!(both, ["netns:a/iface:e0/ingress", "netns:a/iface:e0/egress"]);
    }

    #[test]
    fn what_is_no_point_is_refused_with_what_is_wrong() {
        for (text, what) in [
            ("eth0", "no colon"),
            ("iface:", "empty"),
            (
                "iface:eth0/sideways",
                "\"sideways\" is not a side; there are ingress, egress, queue, driver, receive",
            ),
            ("xdp:eth0/queue", "xdp points have no side \"queue\""),
            ("iface:a-name-that-is-too-long", "1 to 15 bytes"),
            ("tp:nothing", "there is no program for this tracepoint, only for net_dev_queue"),
            ("netns:a/tp:kfree_skb", "must be followed by iface"),
            ("netns:/iface:e0", "has no name"),
            ("netns:../a/iface:e0", "without `..`"),
            ("netns:/run/netns/../a/iface:e0", "without `..`"),
            ("netns:..//xdp:e0", "without `..`"),
            ("netns:a/b/iface:e0", "a name of `ip netns`"),
            ("usb:1", "\"usb\" is not known"),
            ("uprobe:sendto", "absolute path"),
            ("uprobe:libc:sendto", "absolute path"),
            ("uprobe:/lib/libc.so.6:", "absolute path"),
            ("program:a.o", "\"program\" is not known"),
        ] {
            let error = At::parse_points(text).unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
        }
        assert!("iface:eth0".parse::<At>().is_err());
    }
}
