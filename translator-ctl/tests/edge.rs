//! The program at its gRPC edges: TLS to a collector that is silent, wrong or plain, and who gets rkeys from
//! its own service.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use dta_proto::program::Program;
use dta_translator::config::Config;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_dta-translator");

/// Files of a self-signed certificate that is its own authority, and a configuration with them.
struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let cert = rcgen::CertificateParams::new(vec!["t.example".to_owned()]).unwrap();
        std::fs::write(dir.path().join("crt"), cert.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(dir.path().join("key"), key.serialize_pem()).unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let config = format!(
            "[translator]\ncollector = 'https://127.0.0.1:1'\n[translator.tls]\nca = '{0}'\ncert = '{0}'\nkey = '{1}'\n",
            at("crt"),
            at("key")
        );
        std::fs::write(dir.path().join("toml"), config).unwrap();
        Self { dir }
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("toml")
    }
}

struct Running {
    child: Child,
    ready: Option<Value>,
    log: Receiver<String>,
}

impl Running {
    fn start(config: &Path, source: &str, extra: &[&str]) -> Self {
        let mut child = Command::new(PROGRAM)
            .args(["--log", "warn", "--config"])
            .arg(config)
            .args(["run", "--ready", "--listen", "127.0.0.1:0", "--source", source, "--source-port", "0"])
            .args(extra)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, log) = channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut line = String::new();
        if extra.contains(&"--blank") {
            BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        }
        Self { child, ready: serde_json::from_str(&line).ok(), log }
    }

    fn control(&self) -> String {
        self.ready.as_ref().expect("a ready line")["control"].as_str().unwrap().to_owned()
    }

    /// The next line on stderr with these words, within a time.
    fn says(&self, words: &str, within: Duration) -> String {
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.log.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("nothing about {words:?} in {within:?}"));
            if line.contains(words) {
                return line;
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn keys_that_came_with_tls_go_over_a_socket_of_the_owner_alone() {
    let files = Files::new();
    let config = Config::load(&files.config()).unwrap().0.translator;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let compare = |control: &str| {
        runtime.block_on(async {
            let mut client = dta_rpc::translator::RemoteTranslator::connect_lazy(control).unwrap();
            client.statistics().await.expect("statistics for everybody");
            client.compare_program(&Program::default()).await
        })
    };
    let lacks = |control: &str| {
        runtime.block_on(dta_translator::setup::required_changes(&config, control, &Program::default()))
    };

    let tcp = Running::start(&files.config(), "127.0.0.41", &["--blank", "--control", "127.0.0.1:0"]);
    let refused = compare(&tcp.control()).unwrap_err();
    let refused = refused.status().expect("its own words");
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    assert!(refused.message().contains("--control unix:PATH"), "{refused}");
    // Nor are rkeys sent to a port that any program may have taken.
    let error = lacks(&tcp.control()).unwrap_err().to_string();
    assert!(error.contains("unix:PATH"), "{error}");

    let path = files.dir.path().join("control");
    let control = format!("unix:{}", path.display());
    let mut unix = Running::start(&files.config(), "127.0.0.42", &["--blank", "--control", &control]);
    assert_eq!(unix.control(), control);
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    compare(&control).unwrap();
    assert!(lacks(&control).unwrap().is_empty());
    let stats = Command::new(PROGRAM).args(["stats", "--translator", &control]).output().unwrap();
    assert!(stats.status.success(), "{}", String::from_utf8_lossy(&stats.stderr));
    let pid = rustix::process::Pid::from_child(&unix.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(unix.child.wait().unwrap().success());
    assert!(!path.exists());
}

#[test]
fn a_silent_collector_is_logged_and_tried_again() {
    let files = Files::new();
    // Accepts connections, and never sends anything.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://{}", silent.local_addr().unwrap());
    let args = ["--control", "127.0.0.1:0", "--collector", &address];
    let translator = Running::start(&files.config(), "127.0.0.43", &args);
    for _ in 0..2 {
        let line = translator.says("retrying in", Duration::from_secs(60));
        assert!(line.contains(&address), "{line}");
    }
}

#[test]
fn wrong_tls_is_logged_as_what_it_is() {
    let (files, stranger) = (Files::new(), Files::new());
    let args =
        |address: &str| ["--control", "127.0.0.1:0", "--collector", address].map(str::to_owned).to_vec();
    let says = |config: &Path, source: &str, address: &str, words: &str| {
        let args = args(address);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Running::start(config, source, &args).says(words, Duration::from_secs(60));
    };
    let plain = serve(tonic::transport::Server::builder());
    says(&files.config(), "127.0.0.44", &format!("https://{plain}"), "does not speak TLS");

    let read = |name: &str| std::fs::read(stranger.dir.path().join(name)).unwrap();
    let identity = tonic::transport::Identity::from_pem(read("crt"), read("key"));
    let tls = tonic::transport::ServerTlsConfig::new().identity(identity);
    let address = format!("https://{}", serve(tonic::transport::Server::builder().tls_config(tls).unwrap()));
    says(&files.config(), "127.0.0.45", &address, "the authority that issued it");
    let config = std::fs::read_to_string(files.config()).unwrap();
    let other = config.replace(&files.dir.path().join("crt").display().to_string(), "CERT").replacen(
        "CERT",
        &stranger.dir.path().join("crt").display().to_string(),
        1,
    );
    let other = other.replace("CERT", &files.dir.path().join("crt").display().to_string());
    std::fs::write(files.dir.path().join("toml"), other).unwrap();
    says(&files.config(), "127.0.0.46", &address, "t.example");
}

/// Somebody else's gRPC server without a service; until the process ends.
fn serve(mut server: tonic::transport::Server) -> SocketAddr {
    let (sender, address) = channel();
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            server
                .add_routes(tonic::service::Routes::default())
                .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener))
                .await
                .unwrap();
        });
    });
    address.recv().unwrap()
}
