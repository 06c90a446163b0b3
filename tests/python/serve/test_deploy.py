"""The files of examples/deploy, checked by the programs that read them, and with a running server."""

import contextlib
import http.client
import json
import re
import shlex
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from accord_command import ACCORD, ROOT, clean_environment, end, wait_until
from http_clients import LONG, ask, free_port, make_certificate, metric
from served_model import ServedModel, served

DEPLOY = ROOT / "examples/deploy"
SUPERVISOR_SECONDS = 10  # that ranks may need to end, at most
starlette = pytest.importorskip("starlette")
from accord.serve.app import PATHS  # noqa: E402
from accord.serve.options import parse_options  # noqa: E402


def program(name: str) -> str:
    """Returns the path of a program; skips the test if there is none."""
    path = shutil.which(name, path="/usr/sbin:/sbin:" + clean_environment()["PATH"])
    if path is None:
        pytest.skip(f"there is no {name}")
    return path


# systemd


UNIT = (DEPLOY / "accord-serve.service").read_text()


def unit_value(name: str) -> str:
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return value


def test_systemd_accepts_the_unit(tmp_path):
    analyze = program("systemd-analyze")
    path = tmp_path / "accord-serve.service"
    path.write_text(UNIT.replace("/opt/accord/bin/accord", str(ACCORD)))
    checked = subprocess.run([analyze, "verify", path], capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")
    path.write_text(path.read_text().replace("KillMode=mixed", "KillMode=gentle"))
    assert "gentle" in subprocess.run([analyze, "verify", path], capture_output=True, text=True, timeout=60).stderr


def test_the_units_command_serves_and_ends_in_time(text_model, tmp_path):
    """SIGTERM for the server alone, as KillMode=mixed sends it."""
    assert unit_value("KillMode") == "mixed"
    (tmp_path / "api-keys").write_text("key\n")
    command = unit_value("ExecStart").replace("%d/api-keys", str(tmp_path / "api-keys"))
    name, serve, package, *options = shlex.split(command)
    assert (name, serve, package) == ("/opt/accord/bin/accord", "serve", "/srv/models/smollm2.accord")
    limit = parse_options([package, *options]).drain_seconds + SUPERVISOR_SECONDS
    assert int(unit_value("TimeoutStopSec")) > limit
    at = options.index("--ranks")
    ranks = int(options[at + 1])
    del options[at : at + 2]
    with served(text_model.path, *options, ranks=ranks) as server:
        assert ask(server, "/v1/completions", {"prompt": "One"}, Authorization="Bearer key")[0] == 200
        assert server.stop() == 0


# Containers


def container_steps() -> list:
    dockerfile = pytest.importorskip("dockerfile", reason="the parser of the package dockerfile is missing")
    return list(dockerfile.parse_file(str(DEPLOY / "Containerfile")))


def test_the_container_file_can_be_parsed_and_copies_what_exists():
    steps = container_steps()
    stages = [step.value[2] for step in steps if step.cmd.upper() == "FROM" and len(step.value) == 3]
    for step in steps:
        if step.cmd.upper() == "COPY" and not step.flags:
            assert all((ROOT / source).exists() for source in step.value[:-1])
        for flag in step.flags:
            assert flag.removeprefix("--from=") in stages
    scripts = re.findall(
        r"scripts/(\w+)", " ".join(" ".join(step.value) for step in steps if step.cmd.upper() == "RUN")
    )
    assert scripts == ["setup", "wheel"]
    assert all((ROOT / "scripts" / name).exists() for name in scripts)
    (user,) = [step.value for step in steps if step.cmd.upper() == "USER"]
    assert user == ("10001",)


def test_the_containers_entry_point_is_a_valid_command():
    (step,) = [step for step in container_steps() if step.cmd.upper() == "ENTRYPOINT"]
    assert step.json
    *_, accord, serve, option, value = step.value
    assert (accord, serve) == ("accord", "serve")
    options = parse_options([option, value, "/models/smollm2.accord", "--ranks", "2"])
    assert (options.host, options.models[0].name, options.models[0].ranks) == ("0.0.0.0", "smollm2", 2)


# nginx


class Proxied:
    """nginx before a server, with the ports and files of the example replaced."""

    def __init__(self, server: ServedModel, folder: Path):
        certificate, key = make_certificate(folder)
        self.port = free_port()
        self.context = ssl.create_default_context(cafile=str(certificate))
        self.errors = folder / "errors"
        text = (DEPLOY / "nginx.conf").read_text()
        for old, new in {
            "server 127.0.0.1:8000": f"server {server.url.rpartition('/')[2]}",
            "listen 443 ssl": f"listen 127.0.0.1:{self.port} ssl",
            "listen [::]:443 ssl;": "",
            "/etc/ssl/accord/certificate.pem": str(certificate),
            "/etc/ssl/accord/key.pem": str(key),
        }.items():
            assert old in text
            text = text.replace(old, new)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{kind}_temp_path {folder / kind};\n" for kind in kinds)
        self.file = folder / "main.conf"
        self.file.write_text(
            f"daemon off; master_process off; pid {folder / 'pid'}; error_log {self.errors};\n"
            f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{text}}}\n"
        )

    def connect(self, source: str = "127.0.0.1") -> http.client.HTTPSConnection:
        """Returns a connection from an address of this machine."""
        return http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=60, context=self.context, source_address=(source, 0)
        )

    def post(self, body: dict, source: str = "127.0.0.1", **headers: str) -> http.client.HTTPResponse:
        connection = self.connect(source)
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        return connection.getresponse()


@pytest.fixture(scope="module")
def behind(endless):
    with served(endless) as running:
        yield running


@pytest.fixture(scope="module")
def proxied(behind, tmp_path_factory) -> Iterator[Proxied]:
    nginx = program("nginx")
    made = Proxied(behind, tmp_path_factory.mktemp("nginx"))
    checked = subprocess.run([nginx, "-t", "-c", made.file], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr, checked.stderr
    process = subprocess.Popen([nginx, "-c", made.file], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: answers(made) or process.poll() is not None, "nginx answers")
        assert process.poll() is None, made.errors.read_text()
        yield made
    finally:
        end(process)


def answers(proxied: Proxied) -> bool:
    with contextlib.closing(proxied.connect()) as connection:
        try:
            connection.request("GET", "/ready")
        except OSError:
            return False
        return connection.getresponse().status == 200


def test_requests_through_nginx_are_answered(behind, proxied):
    with contextlib.closing(proxied.post({"prompt": "One", "max_tokens": 5})) as answer:
        assert answer.status == 200
        assert json.load(answer)["usage"]["completion_tokens"] == 5
    with contextlib.closing(proxied.post({"prompt": "One", "max_tokens": 0})) as answer:
        assert answer.status == 400
    assert metric(behind, "accord_open_requests") == 0


def test_events_pass_nginx_at_once_and_a_client_that_goes_ends_its_request(behind, proxied):
    answer = proxied.post(LONG)
    assert answer.getheader("Content-Type").startswith("text/event-stream")
    assert answer.readline().startswith(b"data: {")
    assert metric(behind, "accord_open_requests") == 1  # the answer goes on
    answer.close()
    wait_until(lambda: metric(behind, "accord_open_requests") == 0, "the request is cancelled")


def test_clients_behind_nginx_are_distinguished_by_their_addresses(behind, proxied):
    lines = len(behind.events("request"))
    for source in ("127.0.0.1", "127.0.0.2"):
        with contextlib.closing(proxied.post({"prompt": "One"}, source, **{"X-Forwarded-For": "192.0.2.7"})) as answer:
            assert answer.status == 200
    wait_until(lambda: len(behind.events("request")) >= lines + 2, "the requests are logged")
    assert [line["client"] for line in behind.events("request")[lines:]] == ["127.0.0.1", "127.0.0.2"]


def test_nginx_passes_metrics_to_this_machine_only(proxied):
    for source, status in {"127.0.0.1": 200, "127.0.0.2": 403}.items():
        with contextlib.closing(proxied.connect(source)) as connection:
            connection.request("GET", "/metrics")
            assert connection.getresponse().status == status


# Kubernetes


def manifests(name: str) -> dict[str, dict]:
    """Returns the manifests of a file by their kinds; of several services, the last one."""
    yaml = pytest.importorskip("yaml")
    return {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / name).read_text())}


KINDS = {"kubernetes.yaml": "Deployment", "kubernetes-nodes.yaml": "StatefulSet"}


@pytest.mark.parametrize(("file", "kind"), KINDS.items())
def test_kubernetes_schemas_accept_the_manifests(file, kind):
    validate = pytest.importorskip("kubernetes_validate", reason="the schemas of kubernetes-validate are missing")
    for manifest in manifests(file).values():
        validate.validate(manifest, "1.33", strict=True)
    workload = manifests(file)[kind]
    broken = json.loads(json.dumps(workload).replace("terminationGracePeriodSeconds", "terminationGrace"))
    with pytest.raises(validate.ValidationError, match="terminationGrace"):
        validate.validate(broken, "1.33", strict=True)
    assert workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 0


@pytest.mark.parametrize(("file", "kind"), KINDS.items())
def test_the_pods_command_probes_and_times_fit_together(file, kind):
    workload, service = manifests(file)[kind], manifests(file)["Service"]
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options = parse_options([word.replace("$(NODE_RANK)", "1") for word in container["args"]])
    assert options.models[0].ranks == 2
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounts.keys() >= {str(options.models[0].package.parent), str(options.api_keys.parent)}
    assert set(mounts.values()) == {volume["name"] for volume in pod["volumes"]}
    assert {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")} == {"/health", "/ready"}
    assert {"/health", "/ready"} <= PATHS
    (port,) = container["ports"]
    assert port["containerPort"] == options.port
    (service_port,) = service["spec"]["ports"]
    assert service_port["targetPort"] == port["name"] == container["livenessProbe"]["httpGet"]["port"]
    assert workload["spec"]["template"]["metadata"]["labels"] == workload["spec"]["selector"]["matchLabels"]
    (_, before) = container["lifecycle"]["preStop"]["exec"]["command"]
    limit = int(before) + options.drain_seconds + SUPERVISOR_SECONDS
    assert pod["terminationGracePeriodSeconds"] >= limit


def test_the_service_sends_requests_to_the_pods_that_answer_them():
    deployment = manifests("kubernetes.yaml")
    labels = deployment["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert deployment["Service"]["spec"]["selector"] == labels
    selector = manifests("kubernetes-nodes.yaml")["Service"]["spec"]["selector"]
    assert selector == {"statefulset.kubernetes.io/pod-name": "accord-serve-0"}


def test_the_pods_of_several_nodes_meet_in_pod_0():
    yaml = pytest.importorskip("yaml")
    workload, nodes, *_ = yaml.safe_load_all((DEPLOY / "kubernetes-nodes.yaml").read_text())
    name, spec = workload["metadata"]["name"], workload["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    words = dict(word.lstrip("-").partition("=")[::2] for word in container["args"])
    assert int(words["nnodes"]) == spec["replicas"]
    assert words["rdzv-endpoint"] == f"{name}-0.{spec['serviceName']}:29400"
    assert (nodes["metadata"]["name"], nodes["spec"]["clusterIP"]) == (spec["serviceName"], "None")
    assert nodes["spec"]["publishNotReadyAddresses"] is True
    assert nodes["spec"]["selector"] == spec["selector"]["matchLabels"]
    (variable,) = container["env"]
    assert words["node-rank"] == f"$({variable['name']})"
