"""The deployment kit does what it says: its check finds mistakes, and the commands of its containers work together."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import agent, check
from dispatch.devtools.localbroker import LocalBroker, find_free_ports
from tests.helpers.cli_processes import WAIT_S, environment
from tests.helpers.run_profile import skip_outside_ci

KIT = check.KIT
EXAMPLES = KIT.parent / "examples"
SERVICES: Mapping[str, Mapping[str, Any]] = yaml.safe_load((KIT / "compose.yaml").read_text())["services"]
IMAGES = {name: each for name, each in SERVICES.items() if each.get("image") == "tool-dispatch"}


def test_the_files_of_the_dashboards_and_rules_are_those_that_are_mounted() -> None:
    mounted = {volume.partition(":")[0] for each in SERVICES.values() for volume in each.get("volumes", ())}
    assert {"../dashboards/json", "../dashboards/rules", "./grafana/provisioning", "./relay"} <= mounted


def test_what_is_missing_is_said_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise check.MissingError("helm is missing: make tools")

    monkeypatch.setattr(check, "CHECKS", (missing,))
    monkeypatch.delenv("CI", raising=False)
    assert check.main() == 0
    assert capsys.readouterr().err == "not checked: helm is missing: make tools\n"
    monkeypatch.setenv("CI", "true")
    assert check.main() == 1


def test_a_mount_of_nothing_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(check, "KIT", tmp_path)
    monkeypatch.setattr(check, "run", lambda *_: "")
    monkeypatch.setattr(check, "find", lambda *_: "true")
    (tmp_path / "compose.yaml").write_text("services: {it: {volumes: ['./nothing:/x']}}")
    monkeypatch.setattr(check, "CHECKS", (check.check_compose,))
    assert list(check.problems()) == ["check_compose: it mounts ./nothing, which does not exist"]


@pytest.mark.process
def test_secrets_are_of_their_owner_alone_and_stay(tmp_path: Path) -> None:
    script = shutil.copy(KIT / "create-secrets", tmp_path)
    folder = tmp_path / "secrets"
    folder.mkdir(mode=0o755)

    def create() -> dict[str, tuple[int, str]]:
        subprocess.run([script], check=True, capture_output=True, timeout=WAIT_S)
        assert folder.stat().st_mode & 0o777 == 0o700
        return {file.name: (file.stat().st_mode & 0o777, file.read_text()) for file in folder.iterdir()}

    created = create()
    assert {name: mode for name, (mode, _) in created.items()} == dict.fromkeys(
        ("admin-tokens.json", "metrics-token", "grafana-password"), 0o444
    )
    read = json.loads(created["admin-tokens.json"][1])["read"]["prometheus"]
    assert created["metrics-token"][1] == read
    assert create() == created
    (folder / "metrics-token").unlink()  # an incomplete set is created again
    again = create()
    assert again.keys() == created.keys()
    assert again["metrics-token"] != created["metrics-token"]


def test_the_agent_listens_where_other_commands_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DISPATCH_ADMIN", raising=False)
    monkeypatch.delenv("DISPATCH_ADMIN_TOKENS", raising=False)
    assert agent.read_admin().address == "127.0.0.1:9464"
    environment = IMAGES["agent"]["environment"]
    (tmp_path / "tokens").write_text(
        '{"read": {"prometheus": "secret-of-the-reader"}, "act": {"operator": "secret-of-the-operator"}}'
    )
    monkeypatch.setenv("DISPATCH_ADMIN", environment["DISPATCH_ADMIN"])
    monkeypatch.setenv("DISPATCH_ADMIN_TOKENS", str(tmp_path / "tokens"))
    settings = agent.read_admin()
    assert (settings.address, settings.read) == ("0.0.0.0:9464", {"prometheus": "secret-of-the-reader"})
    published = {port for each in SERVICES.values() for port in each.get("ports", ())}
    assert all(port.startswith("127.0.0.1:") for port in published)


@pytest.fixture(scope="module")
def rendered() -> list[dict[str, Any]]:
    """What the chart renders with all on."""
    try:
        helm = check.find("helm", "make tools")
    except check.MissingError as missing:
        skip_outside_ci(str(missing))
    text = check.run(helm, "template", "it", check.CHART, "--kube-version", "1.33.0", *check.ALL_ON)
    return [each for each in yaml.safe_load_all(text) if each]


@pytest.mark.process
def test_a_service_without_replicas_has_none(rendered: list[dict[str, Any]]) -> None:
    replicas = {
        each["metadata"]["name"]: each["spec"].get("replicas") for each in rendered if each["kind"] == "Deployment"
    }
    assert replicas == {"it-shop": None, "it-stopped": 0, "it-relay": 2}


@pytest.mark.process
def test_a_pod_has_the_time_to_drain_and_its_console_reaches_the_others(rendered: list[dict[str, Any]]) -> None:
    pods = [each["spec"]["template"]["spec"] for each in rendered if each["kind"] == "Deployment"]
    (relay,) = (json.loads(each["data"]["relay.json"]) for each in rendered if each["kind"] == "ConfigMap")
    arguments = [" ".join(map(str, pod["containers"][0]["args"])) for pod in pods]
    drains = [float(each.partition("--drain-timeout ")[2] or relay["drain-timeout"]) for each in arguments]
    assert all(pod["terminationGracePeriodSeconds"] > drain + 10 for pod, drain in zip(pods, drains, strict=True))
    (policy,) = (each["spec"] for each in rendered if each["kind"] == "NetworkPolicy")
    (incoming,) = policy["ingress"]
    own = {"podSelector": policy["podSelector"]}
    assert own in incoming["from"]
    assert [each["ports"] for each in policy["egress"] if own in each.get("to", ())] == [incoming["ports"]]


@pytest.mark.process
def test_scraped_pods_have_the_name_of_the_dashboards_for_a_service_and_their_own(
    rendered: list[dict[str, Any]],
) -> None:
    (monitor,) = (each["spec"] for each in rendered if each["kind"] == "ServiceMonitor")
    assert [each["relabelings"] for each in monitor["endpoints"]] == [[{"action": "labeldrop", "regex": "service"}]]
    for each in rendered:
        if each["kind"] == "Deployment":
            (container,) = each["spec"]["template"]["spec"]["containers"]
            (name,) = (env["valueFrom"] for env in container["env"] if env["name"] == "DISPATCH_INSTANCE")
            assert name == {"fieldRef": {"fieldPath": "metadata.name"}}


def test_an_image_without_settings_serves_what_its_health_check_asks_for() -> None:
    text = (KIT / "Dockerfile").read_text()
    assert re.findall(r"DISPATCH_ADMIN=(127\S+)", text) == re.findall(r"http://([^/]+)/healthz", text)


def test_a_unit_starts_again_for_as_long_as_the_broker_is_away() -> None:
    for unit in (KIT / "systemd").iterdir():
        assert {"Restart=always", "StartLimitIntervalSec=0"} <= set(unit.read_text().splitlines()), unit.name


def test_the_user_of_a_unit_reads_the_folder_of_its_files() -> None:
    assert "DynamicUser=yes" in (KIT / "systemd" / "dispatch-relay.service").read_text()
    mode = re.search(r"install -d -m (\d+) /etc/dispatch", (KIT.parent / "docs" / "how-to" / "deploy.md").read_text())
    assert int(mode[1], 8) & 0o005 == 0o005


@contextmanager
def container(name: str, broker: str, *, port: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """The command of a container on this machine; it ends well after SIGTERM."""
    service = IMAGES[name]
    command = [*service.get("entrypoint", ["dispatch"]), *service["command"]]
    start = [sys.executable, "-m", "dispatch"] if command[0] == "dispatch" else [sys.executable]
    arguments = [
        each.replace("/app/agent.py", str(KIT / "agent.py")).replace("/app/", f"{EXAMPLES}/") for each in command[1:]
    ]
    env = environment(
        DISPATCH_BROKER=broker, DISPATCH_ADMIN=f"127.0.0.1:{port}", DISPATCH_CATALOG=str(EXAMPLES / "tools")
    )
    process = subprocess.Popen(
        [*start, *arguments], cwd=EXAMPLES, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield process
        process.terminate()
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[bytes], *wanted: str) -> None:
    """Read its output until all of ``wanted`` came."""
    lines, missing = [], set(wanted)
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.decode())
        missing -= {each for each in missing if each in lines[-1]}
        if not missing:
            return
        assert len(lines) < 1_000, lines[-20:]
    raise AssertionError(f"{missing} did not come:\n{''.join(lines)}")


@pytest.mark.pulsar
@pytest.mark.soak
def test_the_commands_of_the_containers_work_together() -> None:
    assert IMAGES.keys() == {"setup", "calculator", "joke", "agent", "relay"}
    (port,) = find_free_ports(1)
    broker = LocalBroker.start() if "PULSAR_URL" not in os.environ else None
    url = os.environ["PULSAR_URL"] if broker is None else broker.service_url
    try:
        if broker is not None:
            setup = [each.replace("http://pulsar:8080", broker.web_url) for each in IMAGES["setup"]["command"]]
            setup = [each.replace("/app/", f"{EXAMPLES}/") for each in setup]
            subprocess.run(
                [sys.executable, "-m", "dispatch", *setup],
                env=environment(DISPATCH_BROKER=url),
                check=False,
                timeout=120,
            )
        with ExitStack() as stack:
            for name in ("calculator", "joke"):
                read_until(stack.enter_context(container(name, url)), "consumes")
            running = stack.enter_context(container("agent", url, port=port))
            read_until(running, "alice calculate: 61.5", "bob tell-joke: Hello bob!")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
                assert (
                    b'dispatch_calls_total{outcome="success",service="calculator-service",tool="calculate"}'
                    in response.read()
                )
    finally:
        if broker is not None:
            broker.stop()
