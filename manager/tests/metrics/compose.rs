//! `compose.yaml`: its syntax, and what it refers to. Nothing is started.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::manager;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A YAML file as JSON.
fn yaml(path: &Path) -> Value {
    let program = "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)";
    let output = Command::new("/usr/bin/python3").args(["-c", program]).arg(path).output().expect("python3");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", path.display());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn texts(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .map(|list| list.iter().map(|text| text.as_str().expect("text")).collect())
        .unwrap_or_default()
}

/// The file of this host that is at a place of a service.
fn mounted(service: &Value, place: &str) -> PathBuf {
    let volumes = texts(&service["volumes"]);
    let found = volumes.iter().find_map(|volume| {
        let (source, rest) = volume.split_once(':')?;
        let at = rest.strip_suffix(":ro")?;
        Some(root().join(source).join(place.strip_prefix(at)?.trim_start_matches('/')))
    });
    // A trailing separator would make a file a directory.
    let found = found.unwrap_or_else(|| panic!("nothing is at {place}: {volumes:?}"));
    PathBuf::from(found.display().to_string().trim_end_matches('/'))
}

#[test]
#[ignore = "needs python3-yaml and Debian's prometheus"]
fn compose_refers_to_what_is_there() {
    let compose = yaml(&root().join("compose.yaml"));
    let services = compose["services"].as_object().expect("services");
    let names: Vec<_> = services.keys().map(String::as_str).collect();
    assert_eq!(names, ["collector", "grafana", "influxdb", "prometheus", "translator"]);
    for (name, service) in services {
        for key in service.as_object().unwrap().keys() {
            let known = [
                "image",
                "build",
                "network_mode",
                "shm_size",
                "command",
                "volumes",
                "tmpfs",
                "restart",
                "depends_on",
                "environment",
            ];
            assert!(known.contains(&key.as_str()), "{name}: {key} is no key of a service");
        }
        for needed in texts(&service["depends_on"]) {
            assert!(services.contains_key(needed), "{name} depends on {needed}");
        }
        for volume in texts(&service["volumes"]) {
            let source = root().join(volume.split(':').next().unwrap());
            assert!(source.exists(), "{name}: there is no {}", source.display());
        }
        assert_eq!(service["network_mode"], "host", "{name}");
    }
    let build = &services["collector"]["build"];
    let dockerfile =
        root().join(build["context"].as_str().unwrap()).join(build["dockerfile"].as_str().unwrap());
    // target/ need not be there.
    let dockerfile = dockerfile.display().to_string().replace("target/static/../../", "");
    assert!(Path::new(&dockerfile).is_file(), "{dockerfile}");

    // The configurations are good, and are the ones that the commands name.
    for (service, role) in [("collector", "__collector"), ("translator", "__translator")] {
        let service = &services[service];
        let command = texts(&service["command"]);
        let place = command.iter().skip_while(|word| **word != "--config").nth(1).expect("--config");
        let file = mounted(service, place);
        let output = manager(&[role, "check-config", "--config", file.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    // Prometheus scrapes where they serve, and reads its file.
    let file = mounted(&services["prometheus"], "/etc/prometheus/prometheus.yml");
    let checked = Command::new("promtool").args(["check", "config"]).arg(&file).output().expect("promtool");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let scraped = yaml(&file);
    let scraped: Vec<_> = scraped["scrape_configs"].as_array().unwrap().iter().collect();
    let targets: Vec<_> = scraped
        .iter()
        .flat_map(|job| texts(&job["static_configs"][0]["targets"]))
        .map(str::to_owned)
        .collect();
    let own = [dta_export::metrics::COLLECTOR_ADDRESS, dta_export::metrics::TRANSLATOR_ADDRESS]
        .map(|at| at.to_string());
    assert_eq!(targets, own);

    // Grafana knows the databases that dashboards ask, at the addresses where they are.
    let sources = yaml(&mounted(&services["grafana"], "/etc/grafana/provisioning/datasources/dta.yaml"));
    let of = |source: &Value| {
        (source["uid"].as_str().unwrap().to_owned(), source["url"].as_str().unwrap().to_owned())
    };
    let known: Vec<_> = sources["datasources"].as_array().unwrap().iter().map(of).collect();
    let influx = services["influxdb"]["environment"]["INFLUXDB_HTTP_BIND_ADDRESS"].as_str().unwrap();
    assert!(texts(&services["prometheus"]["command"]).contains(&"--web.listen-address=127.0.0.1:9090"));
    assert_eq!(
        known,
        [
            ("dta-prometheus".to_owned(), "http://127.0.0.1:9090".to_owned()),
            ("dta-influxdb".to_owned(), format!("http://{influx}")),
        ]
    );
    let providers = yaml(&mounted(&services["grafana"], "/etc/grafana/provisioning/dashboards/dta.yaml"));
    let path = providers["providers"][0]["options"]["path"].as_str().unwrap();
    for database in ["prometheus", "influxdb"] {
        assert!(mounted(&services["grafana"], &format!("{path}/{database}")).is_dir());
    }
}
