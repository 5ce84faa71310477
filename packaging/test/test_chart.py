"""The Helm chart: rendered with several values, its objects fit Kubernetes' schemas, and the programs know all of its flags and settings.

There is no Helm here and no cluster: templates are rendered by the part of Go's template language in this file, which refuses whatever else they
say. `make package` builds the programs; `DTA_PROGRAMS` is their folder, if it is not `target/debug`.
"""

import copy
import importlib
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "packaging/helm"
PROGRAMS = Path(os.environ.get("DTA_PROGRAMS", ROOT / "target/debug"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SECRET = {"tlsSecret": "secret"}
CHANGES = {
    "defaults": {},
    "all": {
        "collector": {
            **SECRET,
            "replicas": 3,
            "memory": {"hugePages": "2Mi", "size": "4Gi"},
            "history": {"storageClassName": "fast"},
            "env": [{"name": "AWS_REGION", "value": "eu-west-1"}],
            "nodeSelector": {"rack": "1"},
            "tolerations": [{"operator": "Exists"}],
        },
        "translator": {
            **SECRET,
            "replicas": 2,
            "tables": True,
            "service": "LoadBalancer",
            "config": '[translator.tls]\nca = "/tls/ca.crt"\ncert = "/tls/tls.crt"\nkey = "/tls/tls.key"\n'
            '[[translator.collector]]\naddress = "https://127.0.0.1:40050"\n',
            "nodeSelector": {"rack": "1"},
            "tolerations": [{"operator": "Exists"}],
        },
        "agent": {"enabled": True, "nodes": {"node-1": 11, "node-2.example": 12}, "tolerations": [{"operator": "Exists"}]},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    },
    "little": {
        "collector": {"history": {"enabled": False}, "config": ""},
        "networkPolicy": {"enabled": False},
    },
}


def merged(values, change):
    """Values with those of a user over them, as Helm does it."""
    values = copy.deepcopy(values)
    for key, value in change.items():
        values[key] = merged(values[key], value) if isinstance(value, dict) and isinstance(values.get(key), dict) else value
    return values


class Template:
    """The part of Go's template language, with Helm's functions, that the chart uses."""

    TOKEN = re.compile(r"(\s*)\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)
    WORD = re.compile(r'"[^"]*"|[^\s"]+')

    def __init__(self, text):
        self.parts, at = [], 0
        trim = False
        for token in self.TOKEN.finditer(text):
            before, cut_before, inside, cut_after = token.groups()
            plain = text[at : token.start()] + ("" if cut_before else before)
            self.parts.append((plain.lstrip() if trim else plain, inside))
            trim, at = bool(cut_after), token.end()
        self.parts.append((text[at:].lstrip() if trim else text[at:], "end"))
        self.at = 0
        self.body = self.block()
        assert self.at == len(self.parts), "an end without its begin"

    def block(self):
        """A list of texts and actions, up to its `end` or `else`, which is taken."""
        nodes = []
        while True:
            plain, inside = self.parts[self.at]
            self.at += 1
            nodes.append(plain)
            if inside in ("end", "else"):
                self.ended = inside
                return nodes
            kind, _, rest = inside.partition(" ")
            if kind in ("if", "with", "range"):
                then = self.block()
                other = self.block() if self.ended == "else" else []
                nodes.append((kind, rest, then, other))
            else:
                nodes.append(("say", inside, None, None))

    def render(self, root):
        return self.run(self.body, root, {"$": root})

    def run(self, nodes, dot, names):
        return "".join(node if isinstance(node, str) else self.act(*node, dot, names) for node in nodes)

    def act(self, kind, words, then, other, dot, names):
        if kind == "range":
            key, value, of = re.fullmatch(r"(\$\w+), (\$\w+) := (\S+)", words).groups()
            entries = sorted(self.term(of, dot, names).items())
            return "".join(self.run(then, dot, {**names, key: k, value: v}) for k, v in entries)
        value = self.pipeline(words, dot, names)
        if kind == "say":
            assert value is not None, words
            return str(value).lower() if isinstance(value, bool) else str(value)
        return self.run(then, value if kind == "with" else dot, names) if value else self.run(other, dot, names)

    def pipeline(self, words, dot, names):
        last = []
        for call in words.split(" | "):
            function, *terms = self.WORD.findall(call)
            if re.match(r'[.$"\d]', function):
                assert not terms and not last, call
                last = [self.term(function, dot, names)]
            else:
                last = [self.FUNCTIONS[function](*(self.term(term, dot, names) for term in terms), *last)]
        return last[0]

    FUNCTIONS = {
        "not": lambda a: not a,
        "quote": lambda text: '"' + str(text).replace("\\", "\\\\").replace('"', '\\"') + '"',
        "nindent": lambda count, text: "\n" + "\n".join(" " * count + line for line in text.split("\n")),
        "toYaml": lambda value: yaml.safe_dump(value, default_flow_style=False).rstrip("\n"),
    }

    def term(self, word, dot, names):
        if word[0] == '"':
            return word[1:-1]
        if word.isdigit():
            return int(word)
        name, *path = word.split(".")
        value = names[name] if name else dot
        for step in filter(None, path):
            value = value[step]
        return value


def rendered(change):
    root = {"Values": merged(VALUES, change), "Release": {"Name": "tele", "Namespace": "net"}}
    objects = []
    for path in sorted((CHART / "templates").iterdir()):
        objects += [made for made in yaml.safe_load_all(Template(path.read_text()).render(root)) if made]
    return objects


@pytest.fixture(params=CHANGES)
def objects(request):
    return rendered(CHANGES[request.param])


def pods(objects):
    return {made["kind"]: made["spec"]["template"] for made in objects if "template" in made.get("spec", {})}


def containers(objects):
    return [container for pod in pods(objects).values() for container in pod["spec"]["containers"]]


def test_the_language_is_that_of_go():
    """By the documentation of text/template."""
    text = "a\n{{- if .Values.x }}\n b: {{ .Values.x | quote }}\n{{- else }}\n c\n{{- end }}\n{{ range $k, $v := .Values.m }}{{ $k }}={{ $v }};{{ end }}"
    say = lambda values: Template(text).render({"Values": values})
    assert say({"x": 'y"', "m": {"q": 1, "p": True}}) == 'a\n b: "y\\""\np=true;q=1;'
    assert say({"x": "", "m": {}}) == "a\n c\n"
    for wrong in ["{{ .Values.none }}", "{{ tpl .Values.x }}", "{{ end }}", "{{ .Values.x | b64enc }}"]:
        with pytest.raises((AssertionError, KeyError, IndexError)):
            Template(wrong).render({"Values": {"x": "1"}})


@pytest.mark.parametrize("version", ["1.27", "1.37"])
def test_objects_fit_the_schemas(objects, version):
    try:
        validate = importlib.import_module("kubernetes_validate")
    except ImportError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"kubernetes_validate is not installed: {error}; run `make python`")
    with pytest.raises(validate.ValidationError):
        validate.validate({**objects[0], "dato": {}}, version, strict=True)
    for made in objects:
        # It belongs to Prometheus' operator, not to Kubernetes.
        if made["kind"] != "ServiceMonitor":
            validate.validate(made, version, strict=True)


def test_what_there_is():
    kinds = lambda change: sorted(made["kind"] for made in rendered(change))
    always = ["ConfigMap", "ConfigMap", "Deployment", "Service", "Service", "Service", "StatefulSet"]
    assert kinds(CHANGES["little"]) == always
    assert kinds({}) == sorted([*always, "NetworkPolicy", "NetworkPolicy"])
    assert kinds(CHANGES["all"]) == sorted([*always, "NetworkPolicy", "NetworkPolicy", "ConfigMap", "DaemonSet", "ServiceMonitor"])
    names = [(made["kind"], made["metadata"]["name"]) for made in rendered(CHANGES["all"])]
    assert len(set(names)) == len(names)


def test_huge_pages_are_asked_for_by_their_size():
    of = lambda change: pods(rendered(change))["StatefulSet"]["spec"]
    memory = lambda pod: next(volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "memory")
    assert memory(of({})) == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert memory(of(CHANGES["all"])) == {"medium": "HugePages-2Mi"}
    for bound in of(CHANGES["all"])["containers"][0]["resources"].values():
        assert bound["hugepages-2Mi"] == "4Gi"


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, env={"COLUMNS": "200"}, timeout=60)


def unknown(container):
    """Flags that the program's help does not have."""
    program, (command, *args) = container["command"][0], container["args"]
    said = output_of(PROGRAMS / program, command, "--help")
    assert said.returncode == 0, said.stderr
    flags = [arg.split("=")[0] for arg in args]
    assert flags and all(flag.startswith("--") for flag in flags), args
    return [flag for flag in flags if not re.search(rf"^ +(-\w, )?{flag}\b", said.stdout, re.MULTILINE)]


def test_the_programs_know_all_flags(objects):
    for container in containers(objects):
        assert unknown(container) == []
    container["args"].append("--soft-prot=1")
    assert unknown(container) == ["--soft-prot"]


def test_the_programs_take_the_configurations(objects, tmp_path):
    """With all flags, but for those that `check-config` does not have: of logs."""
    texts = {name: text for made in objects if made["kind"] == "ConfigMap" for name, text in made["data"].items()}
    checked = 0
    for container in containers(objects):
        program, args = container["command"][0], container["args"][1:]
        of_nodes = ["node-1", "node-2.example"] if program == "dta-reporter" else [""]
        for node in of_nodes:
            known = {"$(POD_NAME)": "tele-0", "$(POD_IP)": "127.0.0.1", "$(NODE_NAME)": node, "/tls/": f"{tmp_path}/"}
            flags = []
            for arg in args:
                for name, value in known.items():
                    arg = arg.replace(name, value)
                if arg.startswith("--config="):
                    file = tmp_path / arg.rpartition("/")[2]
                    # The cluster's names are not known here.
                    text = texts[file.name].replace("tele-translator.net.svc", "127.0.0.1").replace("/tls/", f"{tmp_path}/")
                    file.write_text(text)
                    arg = f"--config={file}"
                if not arg.startswith("--log-format"):
                    flags.append(arg)
            if any("/tls/" in arg for arg in args) or "/tls/" in texts.get("translator.toml", ""):
                certificates(tmp_path)
            said = output_of(PROGRAMS / program, "check-config", *flags)
            assert said.returncode == 0, (flags, said.stderr)
            checked += 1
    assert checked >= 2


def certificates(folder):
    if not (folder / "tls.crt").exists():
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x -addext subjectAltName=DNS:x -days 2"
        subprocess.run([*command.split(), "-keyout", folder / "tls.key", "-out", folder / "tls.crt"], check=True, capture_output=True)
        (folder / "ca.crt").write_text((folder / "tls.crt").read_text())


def test_rights_are_the_least(objects):
    unit = (ROOT / "packaging/systemd/dta-reporter.service").read_text()
    needs = re.search(r"^AmbientCapabilities=(.*)$", unit, re.MULTILINE)[1].replace("CAP_", "").split()
    for pod in pods(objects).values():
        assert pod["spec"]["automountServiceAccountToken"] is False
        for container in pod["spec"]["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False and context["readOnlyRootFilesystem"] is True
            assert context["capabilities"]["drop"] == ["ALL"]
            is_agent = container["name"] == "agent"
            assert sorted(context["capabilities"].get("add", [])) == (sorted(needs) if is_agent else [])
            assert pod["spec"].get("hostNetwork", False) == is_agent
            assert is_agent or pod["spec"]["securityContext"]["runAsNonRoot"] is True


def test_names_lead_somewhere(objects):
    """Volumes, configuration files, selectors and ports."""
    templates = pods(objects)
    labels = [template["metadata"]["labels"] for template in templates.values()]
    maps = {made["metadata"]["name"] for made in objects if made["kind"] == "ConfigMap"}
    for made in objects:
        spec = made.get("spec", {})
        selector = spec.get("selector", spec.get("podSelector", {}))
        wanted = selector.get("matchLabels", selector) if made["kind"] != "ServiceMonitor" else {}
        assert any(wanted.items() <= of.items() for of in labels), made["metadata"]
        claims = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
        if "template" not in spec:
            continue
        pod = spec["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]} | claims
        assert {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume} <= maps
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    ports = {(port["name"], port["containerPort"]) for container in containers(objects) for port in container.get("ports", [])}
    services = [port for made in objects if made["kind"] == "Service" for port in made["spec"]["ports"]]
    assert services and {(port["name"], port["port"]) for port in services} <= ports
    flags = " ".join(arg for container in containers(objects) for arg in container["args"])
    assert all(f":{port}" in flags or f"port={port}" in flags for _, port in ports)


def test_every_value_is_used():
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    used = {tuple(path.split(".")) for path in re.findall(r"\.Values\.([\w.]+)", text)}

    def leaves(values, path=()):
        for key, value in values.items():
            here = (*path, key)
            if isinstance(value, dict) and value and not any(here == of[: len(here)] and len(of) == len(here) for of in used):
                yield from leaves(value, here)
            else:
                yield here

    known = set(leaves(VALUES))
    assert all(any(of == path[: len(of)] for of in used) for path in known), known - used
    for path in used:
        value = VALUES
        for step in path:
            value = value[step]
