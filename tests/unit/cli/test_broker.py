"""``dispatch broker start|stop|status``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pulsar
import pytest

from dispatch.devtools import localbroker
from dispatch.devtools.localbroker import (
    READY_TIMEOUT,
    VERSION,
    Admin,
    DetachedBroker,
    LocalBrokerUnavailableError,
    ManagedProcess,
    choose_launcher,
    fetch_distribution,
    process_identity,
    stop_detached,
)
from dispatch.devtools.localcluster import LocalCluster, Node
from dispatch.transports.pulsar.client import client_logger
from tests.helpers.cli_processes import WAIT_S, ended, started
from tests.helpers.run_profile import is_long_profile
from tests.unit.cli.conftest import Run

STATE = DetachedBroker(
    "process", "pulsar://127.0.0.1:6650", "http://127.0.0.1:1", data_dir="/data", pid=os.getpid(), identity="now"
)


def test_status_without_a_broker(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.devtools.localbroker.status", lambda: None)
    assert run("broker", "status", code=1).out == "No broker is running. Start one with: dispatch broker start\n"
    assert run("broker", "status", "--json").json == {"running": False}


def test_status_of_one_that_is_not_ready_yet(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.devtools.localbroker.status", lambda: STATE)
    end = run("broker", "status", code=0)
    assert "pulsar://127.0.0.1:6650" in end.out
    assert "running, not ready yet" in end.out
    assert run("broker", "status", "--json").json["ready"] is False


def test_unloading_what_is_no_namespace_is_a_mistake_of_the_user(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = nullcontext(Admin("http://127.0.0.1:1"))
    monkeypatch.setattr("dispatch.devtools.localcluster.detached_cluster", lambda report: cluster)
    err = run.refused("broker", "cluster", "unload", "request")
    assert err == "Error: 'request' is not a namespace: use for example tg/request\n"


def test_kill_says_whether_the_broker_was_running(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "10"]) as broker:
        nodes = [
            Node("broker", 1, 6651, pid=broker.pid, identity=process_identity(broker.pid)),
            Node("broker", 2, 6652),
        ]
        cluster = LocalCluster(tmp_path, nodes, detached=True, settings={})
        monkeypatch.setattr("dispatch.devtools.localcluster.detached_cluster", lambda report: nullcontext(cluster))
        how = "Start it with: dispatch broker cluster restart"
        assert run("broker", "cluster", "kill", "1").out == f"Killed broker 1. {how} 1\n"
        assert run("broker", "cluster", "kill", "1").out == f"Broker 1 was not running. {how} 1\n"
        assert run("broker", "cluster", "kill", "2").out == f"Broker 2 was not running. {how} 2\n"
        for command in ("kill", "restart"):
            end = run("broker", "cluster", command, "3")
            assert (end.code, end.err) == (1, "Error: the cluster has no broker 3: use 1 to 2\n")


def test_stop_without_a_broker(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.devtools.localbroker.stop_detached", lambda report: None)
    assert run("broker", "stop").out == "No broker was running.\n"
    assert run("broker", "stop", "--json").json == {"stopped": False, "service_url": None}


def test_start_passes_its_options_on_and_shows_where_it_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int | None, int | None, bool]] = []

    def start(report: object, port: int | None, web_port: int | None, wipe: bool) -> DetachedBroker:
        assert callable(report)
        report("starting")
        asked.append((port, web_port, wipe))
        return STATE

    monkeypatch.setattr("dispatch.devtools.localbroker.start_detached", start)
    end = run("broker", "start")
    assert (end.code, end.err) == (0, "starting\n")
    assert "This is the default broker of dispatch. Stop it with: dispatch broker stop" in end.out
    end = run("broker", "start", "--port", "7000", "--web-port", "0", "--wipe", "--json")
    assert end.json["service_url"] == "pulsar://127.0.0.1:6650"
    assert asked == [(None, None, False), (7000, 0, True)]


def test_a_machine_that_lacks_something_is_told_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(**_options: object) -> DetachedBroker:
        raise LocalBrokerUnavailableError(["Java is not installed"], "apt-get install openjdk-17-jre-headless maven")

    monkeypatch.setattr("dispatch.devtools.localbroker.start_detached", start)
    err = run.refused("broker", "start", code=1)
    assert "Java is not installed" in err
    assert "apt-get install openjdk-17-jre-headless maven" in err
    assert "Traceback" not in err


NEVER_READY = """#!{python} -IS
import os, pathlib, re, socket
conf = pathlib.Path(os.environ["PULSAR_STANDALONE_CONF"]).read_text()
server = socket.create_server(("127.0.0.1", int(re.search(r"^webServicePort=(\\d+)", conf, re.MULTILINE)[1])))
asked = server.accept()[0]
pathlib.Path("{pipe}").write_text(str(os.getpid()))
asked.recv(1 << 16)
server.accept()
"""


@pytest.fixture
def never_ready(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine whose Pulsar starts, is asked whether it is ready, and never says so. It writes its
    process id into the pipe ``pid`` then."""
    home = tmp_path / "cache" / "pulsar" / f"apache-pulsar-{VERSION}"
    for part in ("bin", "conf", "lib"):
        (home / part).mkdir(parents=True)
    (home / "conf" / "standalone.conf").write_text("brokerServicePort=6650\nwebServicePort=8080\n")
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    os.mkfifo(tmp_path / "pid")
    scripts = {
        home / "bin" / "pulsar": NEVER_READY.format(python=sys.executable, pipe=tmp_path / "pid"),
        java: "#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n",
    }
    for path, script in scripts.items():
        path.write_text(script)
        path.chmod(0o755)
    return {"DISPATCH_CACHE": str(tmp_path / "cache"), "JAVA_HOME": str(tmp_path / "java")}


def test_ctrl_c_while_it_starts_leaves_no_process_and_no_state(never_ready: dict[str, str], tmp_path: Path) -> None:
    with started("broker", "start", "--port", "0", "--web-port", "0", **never_ready) as program:
        pid = int((tmp_path / "pid").read_text())
        broker = ManagedProcess(pid, process_identity(pid))
        assert broker.is_alive()
        program.interrupt()
        program.assert_interrupted()
        assert broker.wait(WAIT_S), f"process {pid} was left behind"
    code, out, _ = ended("broker", "status", "--json", **never_ready)
    assert (code, json.loads(out)) == (1, {"running": False})


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of a user with the distribution, and no broker yet; nor afterwards. This process has it, too."""
    try:
        backend = choose_launcher()
    except LocalBrokerUnavailableError:
        if os.environ.get("PULSAR_URL"):
            pytest.skip("a broker is given (PULSAR_URL), and none can be started here")
        raise
    env = {"DISPATCH_CACHE": str(tmp_path / "cache")}
    (tmp_path / "cache").mkdir()
    if backend == "process":
        (tmp_path / "cache" / "pulsar").symlink_to(fetch_distribution().parent)
        java = tmp_path / "java" / "bin" / "java"
        java.parent.mkdir(parents=True)
        genuine = f"{os.environ['JAVA_HOME']}/bin/java" if "JAVA_HOME" in os.environ else shutil.which("java")
        java.write_text(f"#!/bin/sh\nexec '{genuine}' {localbroker.JVM_OPTIONS} \"$@\"\n")  # see tests/conftest.py
        java.chmod(0o755)
        env["JAVA_HOME"] = str(java.parents[1])
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    yield env
    stop_detached()


@pytest.mark.pulsar
@pytest.mark.long
def test_a_genuine_broker_from_start_to_stop(own_cache: dict[str, str], run: Run) -> None:
    # The start is a process of its own, which the broker outlives. As long as the start itself allows: on a busy machine a
    # broker takes half a minute.
    ports = ("--port", "0", "--web-port", "0")
    code, out, err = ended("broker", "start", *ports, "--json", limit=READY_TIMEOUT, **own_cache)
    assert code == 0, err
    first = json.loads(out)
    assert first["ready"] is True
    assert Admin(first["web_url"]).namespaces("tg") == ["tg/flow", "tg/notify", "tg/request", "tg/response"]

    again = run("broker", "start", "--json")
    assert (again.code, again.json["service_url"]) == (0, first["service_url"])
    assert "a broker is already running" in again.err

    end = run("broker", "status", code=0)
    assert first["service_url"] in end.out
    assert "ready" in end.out

    # It knows where the admin interface of our own broker is, whatever its port.
    assert run("doctor", "--broker", first["service_url"], "--json", code=0).json["admin"] == first["web_url"]

    topic = "persistent://tg/flow/kept"
    with closing(pulsar.Client(first["service_url"], logger=client_logger())) as client:
        client.subscribe(topic, "s").close()
        client.create_producer(topic).send(b"still here")
    end = run("broker", "stop")
    assert (end.code, end.out) == (0, f"Stopped {first['service_url']}.\n")
    assert run("broker", "status").code == 1
    assert run("broker", "stop").out == "No broker was running.\n"

    if is_long_profile():
        again = run("broker", "start", *ports, "--json", code=0)
        with closing(pulsar.Client(again.json["service_url"], logger=client_logger())) as client:
            assert client.subscribe(topic, "s").receive(10_000).data() == b"still here"
