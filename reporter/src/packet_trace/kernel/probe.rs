//! The points that the running kernel lets us attach to.

use std::path::Path;

use super::namespace::Namespace;
use super::{Error, Tracer, TracerOptions};
use crate::packet_trace::point::{At, InterfaceSide, TRACEPOINTS};

/// A point, or a kind of points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracePointOffer {
    /// As written on the command line.
    pub point: String,
    pub what: String,
    /// Why it cannot be attached; empty if it can.
    pub refused: Option<String>,
}

/// Tries what can be tried. Attaches only to tracepoints and functions, briefly; interfaces are listed, and
/// only one of them (loopback) is tried.
pub fn probe_points() -> Result<Vec<TracePointOffer>, Error> {
    let options = TracerOptions {
        table: crate::packet_trace::matching::FilterTable::new(vec![], vec![]).unwrap_or_default(),
        ..TracerOptions::default()
    };
    let mut tracer = Tracer::start(&options)?;
    let mut offers = Vec::new();
    let mut attempt = |tracer: &mut Tracer, at: At, what: &str| {
        let refused = match tracer.attach(&at) {
            Ok(_) => None,
            Err(Error::Attach { why, .. }) => Some(why),
            Err(error) => Some(error.to_string()),
        };
        tracer.detach(&at);
        offers.push(TracePointOffer { point: at.to_string(), what: what.to_owned(), refused });
    };
    for (name, what) in TRACEPOINTS {
        attempt(&mut tracer, At::Tracepoint(name.to_owned()), what);
    }
    attempt(&mut tracer, At::Fentry("ip_rcv".into()), "entry of a kernel function, here ip_rcv");
    attempt(&mut tracer, At::Kprobe("ip_rcv".into()), "entry of a kernel function, here ip_rcv");
    let program = std::env::current_exe().map(|path| path.to_string_lossy().into_owned());
    let uprobe = At::Uprobe { file: program.unwrap_or_default(), function: "main".into() };
    attempt(&mut tracer, uprobe, "calls of a function in user space, here main of this program");
    let loopback = |side| At::Interface { namespace: None, name: "lo".into(), side };
    let tries = tracer.attach(&loopback(InterfaceSide::Ingress));
    let (how, refused) = match tries {
        Ok(_) => (if has_tcx(&tracer) { "tcx" } else { "clsact" }, None),
        Err(Error::Attach { why, .. }) => ("tcx or clsact", Some(why)),
        Err(error) => ("tcx or clsact", Some(error.to_string())),
    };
    let named = Namespace::list_names();
    for name in std::iter::once(None).chain(named.iter().map(|name| Some(name.as_str()))) {
        let prefix = name.map_or(String::new(), |name| format!("netns:{name}/"));
        match Namespace::open(name).and_then(|open| open.list_links()) {
            Ok(links) => offers.extend(links.iter().map(|link| TracePointOffer {
                point: format!("{prefix}iface:{}", link.name),
                what: format!(
                    "both directions, by {how}; /queue, /driver, /receive: by tracepoints{}",
                    if native_xdp(&link.name, name) { "; xdp: too" } else { "" }
                ),
                refused: refused.clone(),
            })),
            Err(error) => offers.push(TracePointOffer {
                point: format!("{prefix}iface:…"),
                what: "interfaces of this namespace".into(),
                refused: Some(format!("cannot enter it: {error}")),
            }),
        }
    }
    Ok(offers)
}

fn has_tcx(tracer: &Tracer) -> bool {
    tracer.points.iter().filter_map(|point| point.attached.as_ref()).all(|attached| attached.is_link())
}

/// Whether the interface's driver is known to support native XDP. Only trying would be certain, but that
/// resets some network cards.
fn native_xdp(interface: &str, namespace: Option<&str>) -> bool {
    let driver = Path::new("/sys/class/net").join(interface).join("device/driver");
    let driver =
        std::fs::read_link(driver).ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    namespace.is_none()
        && matches!(
            driver.as_deref(),
            Some("virtio_net" | "ixgbe" | "i40e" | "ice" | "mlx5_core" | "ena" | "bnxt_en")
        )
}
