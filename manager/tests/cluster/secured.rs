//! Pages of a cluster with TLS: each collector asks the others with its own certificate, and says why one cannot be asked.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::ground::{PATIENCE, daemon};
use super::nodes::Nodes;
use super::schema::hold;

const TOKEN: &str = "0123456789-token-of-the-page";
/// The same as a browser sends it, of the user `me`.
const AS_PASSWORD: &str = "bWU6MDEyMzQ1Njc4OS10b2tlbi1vZi10aGUtcGFnZQ==";

struct Authority {
    certificate: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Its own certificate is NAME.crt of the folder.
    fn new(folder: &Path, name: &str) -> Authority {
        let certificate = folder.join(format!("{name}.crt"));
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        std::fs::write(&certificate, params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { certificate, issuer: Issuer::new(params, key) }
    }

    /// Writes a certificate for servers and clients, and its key, to NAME.crt and NAME.key; returns the key.
    fn issue(&self, folder: &Path, name: &str) -> String {
        let key = KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned(), format!("{name}.example")];
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        std::fs::write(folder.join(format!("{name}.crt")), certificate.pem()).unwrap();
        std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
        key.serialize_pem()
    }
}

/// A collector with TLS whose page others may reach.
struct SecuredCollector {
    child: Child,
    /// Its gRPC, as it is named in the cluster.
    address: String,
    page_port: u16,
}

impl SecuredCollector {
    /// Its certificate is NAME.crt of the folder.
    fn start(nodes: &Nodes, folder: &Path, name: &str, client_ca: &Path, web: &str) -> SecuredCollector {
        let path = |suffix: &str| folder.join(format!("{name}{suffix}"));
        let text = format!(
            "[tls]\ncert = {:?}\nkey = {:?}\nclient_ca = {client_ca:?}\n[web]\nlisten = '0.0.0.0:0'\n{web}\n[soft]\nport = 0\n\
             [cluster.etcd]\nendpoints = {:?}\nlease_seconds = 8\n\
             [[store]]\nid = 1\nname = 'flows'\nkind = 'key-write'\nslots = 4096\nvalue_len = 12\nredundancy = 2\n",
            path(".crt"),
            path(".key"),
            nodes.config().endpoints
        );
        std::fs::write(path(".toml"), text).unwrap();
        let [config, memory] = [".toml", ".memory"].map(|suffix| path(suffix).display().to_string());
        let arguments = ["serve", "--config", &config, "--memory", &memory, "--id", name, "--log", "trace"];
        let open = ["--listen", "127.0.0.1:0", "--metrics", "off"];
        let (child, ready) = daemon("__collector", &[&arguments[..], &open].concat(), path(".log"));
        let page = ready["web"].as_str().unwrap();
        let page_port = page.trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
        SecuredCollector {
            child,
            address: format!("https://{}", ready["listen"].as_str().unwrap()),
            page_port,
        }
    }

    /// The status and body of an answer; status 0 if TLS failed.
    fn ask(&self, path: &str, options: &[&str]) -> (u16, String) {
        let output = Command::new("curl")
            .args(["-s", "-k", "-w", "\n%{http_code}", "--max-time", "60"])
            .args(options)
            .arg(format!("https://127.0.0.1:{}/api/v1/{path}", self.page_port))
            .output()
            .expect("curl is one of the packages that tests need");
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), body.to_owned())
    }

    /// Waits until the page says that the others are unreachable, or not, for a reason with these words. The collector itself answers.
    fn until_members(&self, options: &[&str], others: &[(&SecuredCollector, Option<&str>)]) {
        let begun = Instant::now();
        loop {
            let (status, body) = self.ask("members", options);
            assert_eq!(status, 200, "{body}");
            let members: Vec<Value> = serde_json::from_str(&body).unwrap();
            members.iter().for_each(|member| hold("member", member));
            let is_as_said = |(other, words): &(&SecuredCollector, Option<&str>)| {
                let member = members.iter().find(|member| member["address"] == other.address.as_str());
                member.is_some_and(|member| match (words, member["unreachable"].as_str()) {
                    (None, None) => member["stores"].as_array().unwrap().len() == 1,
                    (Some(words), Some(reason)) => reason.contains(words),
                    _ => false,
                })
            };
            if members.len() == others.len() + 1 && is_as_said(&(self, None)) && others.iter().all(is_as_said)
            {
                return;
            }
            let expected: Vec<_> = others.iter().map(|(other, words)| (&other.address, words)).collect();
            assert!(begun.elapsed() < PATIENCE, "{}: {members:#?}, not {expected:?}", self.address);
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Waits until the page's health says that these do not answer.
    fn until_unreachable(&self, options: &[&str], others: &[&SecuredCollector]) {
        let expected: Vec<_> = others.iter().map(|other| &other.address).collect();
        let begun = Instant::now();
        loop {
            let health: Value = serde_json::from_str(&self.ask("health", options).1).unwrap();
            if health["unreachable"] == serde_json::json!(expected) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{}: {health:#}, not {expected:?}", self.address);
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn hang_up(&self) {
        kill_process(Pid::from_child(&self.child), Signal::HUP).unwrap();
    }
}

impl Drop for SecuredCollector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "needs etcd-server"]
fn pages_with_tls_show_all_collectors_and_say_why_one_cannot_be_asked() {
    let nodes = Nodes::with(1, "http", |_| Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (own, foreign) = (Authority::new(folder, "own-ca"), Authority::new(folder, "foreign-ca"));
    let mut secrets = vec![TOKEN.to_owned(), AS_PASSWORD.to_owned()];
    // Of a key, its longest line is as good as all of it.
    let key_text = |key: String| key.lines().max_by_key(|line| line.len()).unwrap().to_owned();
    for name in ["a", "b", "browser"] {
        secrets.push(key_text(own.issue(folder, name)));
    }
    // It accepts the others, which do not accept it.
    secrets.push(key_text(foreign.issue(folder, "c")));
    let token_file = folder.join("token");
    std::fs::write(&token_file, TOKEN).unwrap();
    let with_token = format!("token_file = {token_file:?}");
    let start = |name: &str, web: &str| SecuredCollector::start(&nodes, folder, name, &own.certificate, web);
    let (a, b, c) = (start("a", &with_token), start("b", ""), start("c", &with_token));

    // One page wants the token, the other a certificate.
    let password = format!("me:{TOKEN}");
    let token = ["-u", password.as_str()];
    let [cert, key] = ["browser.crt", "browser.key"].map(|file| folder.join(file).display().to_string());
    let certificate = ["--cert", cert.as_str(), "--key", key.as_str()];
    assert_eq!(a.ask("members", &[]).0, 401);
    assert_eq!(b.ask("members", &[]).0, 0);
    let of_another = "its certificate is from another authority";
    let refused = "it refuses this client's certificate";
    a.until_members(&token, &[(&b, None), (&c, Some(of_another))]);
    b.until_members(&certificate, &[(&a, None), (&c, Some(of_another))]);
    c.until_members(&token, &[(&a, Some(refused)), (&b, Some(refused))]);
    a.until_unreachable(&token, &[&c]);

    // A certificate is replaced: the page asks with the new one.
    secrets.push(key_text(own.issue(folder, "c")));
    c.hang_up();
    a.until_members(&token, &[(&b, None), (&c, None)]);
    b.until_members(&certificate, &[(&a, None), (&c, None)]);
    c.until_members(&token, &[(&a, None), (&b, None)]);

    for name in ["a", "b", "c"] {
        let log = std::fs::read_to_string(folder.join(format!("{name}.log"))).unwrap();
        assert!(log.contains("TRACE"), "{log}");
        for (number, secret) in secrets.iter().enumerate() {
            assert!(!log.contains(secret), "secret {number} is in the log of {name}");
        }
    }
}
