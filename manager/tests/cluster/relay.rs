//! A network between a program and a node of etcd, which can be gone.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

pub(crate) struct Relay {
    address: SocketAddr,
    is_gone: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    /// To a node; its threads end with the test's process.
    pub(crate) fn to(node: String) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (is_gone, streams) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (gone, all) = (is_gone.clone(), streams.clone());
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // What comes while it is gone is taken and never answered.
                let far = if gone.load(Ordering::Relaxed) { None } else { TcpStream::connect(&node).ok() };
                all.lock().unwrap().extend([Some(&near), far.as_ref()].into_iter().flatten().map(clone));
                let Some(far) = far else { continue };
                for (from, to) in [(clone(&near), clone(&far)), (far, near)] {
                    let gone = gone.clone();
                    thread::spawn(move || carry(from, to, &gone));
                }
            }
        });
        Relay { address, is_gone, streams }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on nothing gets through, and neither end gets an error.
    pub(crate) fn cut(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    /// It is there again. Connections from before are over.
    pub(crate) fn mend(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.is_gone.store(false, Ordering::Relaxed);
    }
}

fn clone(stream: &TcpStream) -> TcpStream {
    stream.try_clone().unwrap()
}

fn carry(mut from: TcpStream, mut to: TcpStream, is_gone: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        if !is_gone.load(Ordering::Relaxed) && to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
