from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pulsar
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.harness import broker
from benchmarks.harness.broker import Endpoint, provide_broker, read_environment
from dispatch.devtools import localbroker
from dispatch.devtools.localbroker import VERSION, choose_launcher, run
from dispatch.devtools.localcluster import LocalCluster
from tests.helpers.catalogs import unique_topic
from tests.helpers.secured_broker import SecuredBroker
from tests.unit.devtools import fakes


def test_prepare_makes_the_tenant_and_its_namespaces_once(admin_stand_in: fakes.AdminStandIn) -> None:
    admin = localbroker.Admin(admin_stand_in.url)

    assert localbroker.create_namespaces(admin) == ["tg", "tg/request", "tg/response", "tg/flow", "tg/notify"]
    assert localbroker.create_namespaces(admin) == []
    assert set(admin.namespaces("tg")) == set(localbroker.DEFAULT_NAMESPACES)


def test_a_tenant_is_allowed_on_the_clusters_there_are(admin_stand_in: fakes.AdminStandIn) -> None:
    admin_stand_in.scripted["GET /admin/v2/clusters"] = (200, b'["east","west"]', {})

    assert localbroker.Admin(admin_stand_in.url).ensure_tenant("acme")

    [put] = [request for request in admin_stand_in.requests if request.method == "PUT"]
    assert json.loads(put.body) == {"adminRoles": [], "allowedClusters": ["east", "west"]}
    assert put.headers["content-type"] == "application/json"


def test_a_tenant_that_is_there_needs_no_super_user(admin_stand_in: fakes.AdminStandIn) -> None:
    admin_stand_in.scripted["PUT /admin/v2/tenants/public"] = (401, b"", {})

    assert not localbroker.Admin(admin_stand_in.url).ensure_tenant("public")


def test_nothing_is_made_where_it_is_unknown_what_is_there(admin_stand_in: fakes.AdminStandIn) -> None:
    admin_stand_in.scripted["GET /admin/v2/namespaces/tg"] = (500, b"", {})

    with pytest.raises(localbroker.AdminError, match="HTTP 500"):
        localbroker.create_namespaces(localbroker.Admin(admin_stand_in.url))

    assert [request.method for request in admin_stand_in.requests] == ["GET"]


@pytest.mark.parametrize("path", ["tenants/tg", "namespaces/tg/request"])
def test_somebody_else_being_quicker_is_no_error(admin_stand_in: fakes.AdminStandIn, path: str) -> None:
    admin_stand_in.scripted[f"PUT /admin/v2/{path}"] = (409, b'{"reason":"already exists"}', {})
    if path.startswith("namespaces"):
        admin_stand_in.tenants["tg"] = set()

    admin = localbroker.Admin(admin_stand_in.url)

    assert not (admin.ensure_tenant("tg") if path.startswith("tenants") else admin.ensure_namespace("tg/request"))


def test_ready_is_a_question_and_never_an_error(admin_stand_in: fakes.AdminStandIn) -> None:
    assert localbroker.Admin(admin_stand_in.url).is_ready()
    admin_stand_in.tenants["public"].clear()
    assert not localbroker.Admin(admin_stand_in.url).is_ready()
    assert not localbroker.Admin("http://127.0.0.1:1").is_ready()


def test_the_token_travels_and_its_lack_is_explained(admin_stand_in: fakes.AdminStandIn) -> None:
    admin_stand_in.token = "sesame"

    assert localbroker.Admin(admin_stand_in.url, "sesame").request("GET", "tenants") == ["public"]
    problem = "HTTP 401: Authentication required; use the token of a superuser"
    with pytest.raises(localbroker.AdminError, match=problem) as caught:
        localbroker.Admin(admin_stand_in.url).request("GET", "tenants")

    assert caught.value.status == 401
    assert caught.value.reason == "Authentication required"


def test_nobody_there_has_no_status() -> None:
    problem = r"no response: .*refused; check that the broker is running"
    with pytest.raises(localbroker.AdminError, match=problem) as caught:
        localbroker.Admin("http://127.0.0.1:1").clusters()

    assert caught.value.status is None


def test_no_proxy_stands_between_us_and_the_loopback(
    admin_stand_in: fakes.AdminStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)

    assert localbroker.Admin(admin_stand_in.url).is_ready()


@pytest.mark.parametrize("code", [307, 308])
def test_a_redirected_put_keeps_its_method_body_and_token(admin_stand_in: fakes.AdminStandIn, code: int) -> None:
    with fakes.serve_admin() as owner:
        owner.tenants["tg"] = set()
        owner.token = "sesame"
        admin_stand_in.tenants["tg"] = set()
        target = f"{owner.url}/admin/v2/namespaces/tg/request"
        admin_stand_in.scripted["PUT /admin/v2/namespaces/tg/request"] = (code, b"", {"Location": target})

        assert localbroker.Admin(admin_stand_in.url, "sesame").ensure_namespace("tg/request")

        assert owner.tenants["tg"] == {"tg/request"}
        assert owner.requests[0].body == "{}"


def test_names_are_quoted(admin_stand_in: fakes.AdminStandIn) -> None:
    path = "/admin/v2/non-persistent/tg/request/a%2Fb%3Fc:d%20e/stats".replace(":", "%3A")
    admin_stand_in.scripted[f"GET {path}"] = (200, b'{"msgRateIn":1.5}', {})

    assert localbroker.Admin(admin_stand_in.url).stats("non-persistent://tg/request/a/b?c:d e") == {"msgRateIn": 1.5}


@pytest.mark.parametrize("topic", ["joke", "tg/request/joke", "kafka://tg/request/joke", "persistent://tg/joke"])
def test_stats_want_a_whole_name(topic: str) -> None:
    with pytest.raises(ValueError, match="non-persistent://tg/request/joke"):
        localbroker.Admin("http://127.0.0.1:1").stats(topic)


@pytest.mark.parametrize("namespace", ["tg", "tg/", "/request", "tg/a/b"])
def test_a_namespace_has_two_parts(namespace: str) -> None:
    with pytest.raises(ValueError, match="tg/request"):
        localbroker.Admin("http://127.0.0.1:1").ensure_namespace(namespace)


@pytest.mark.parametrize("url", ["localhost:8080", "pulsar://localhost:6650", "http://"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match=r"http://127\.0\.0\.1:8080"):
        localbroker.Admin(url)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"<html>welcome</html>", "check that this is Pulsar's admin URL"),
        (b'{"a": 1}', "check that this is Pulsar's admin URL"),
        (b"[" + b"1," * 9_000_000 + b"1]", "longer than"),
    ],
    ids=["html", "object", "endless"],
)
def test_an_answer_that_is_not_pulsars(admin_stand_in: fakes.AdminStandIn, answer: bytes, text: str) -> None:
    admin_stand_in.scripted["GET /admin/v2/clusters"] = (200, answer, {})

    with pytest.raises(localbroker.AdminError, match=text):
        localbroker.Admin(admin_stand_in.url).clusters()


@pytest.mark.parametrize(
    ("body", "reason"),
    [(b'{"reason":"No tenant"}', "No tenant"), (b"plain", "plain"), (b"<h1>x</h1>", "Internal Server Error")],
)
def test_the_reason_is_what_the_broker_said(admin_stand_in: fakes.AdminStandIn, body: bytes, reason: str) -> None:
    admin_stand_in.scripted["GET /admin/v2/clusters"] = (500, body, {})

    with pytest.raises(localbroker.AdminError) as caught:
        localbroker.Admin(admin_stand_in.url).clusters()

    assert (caught.value.status, caught.value.reason) == (500, reason)


def test_nothing_in_the_environment() -> None:
    assert read_environment({}) is None
    assert read_environment({"PULSAR_URL": ""}) is None


@pytest.mark.parametrize(
    ("service_url", "web_url"),
    [
        ("pulsar://broker:6650", "http://broker:8080"),
        ("pulsar+ssl://a.example:6651,b.example:6651", "http://a.example:8080"),
        ("pulsar://[::1]:6650", "http://[::1]:8080"),
    ],
)
def test_the_admin_interface_is_on_port_8080_of_the_same_host(service_url: str, web_url: str) -> None:
    endpoint = read_environment({"PULSAR_URL": service_url})

    assert (endpoint.service_url, endpoint.web_url, endpoint.token) == (service_url, web_url, None)


@pytest.mark.parametrize("address", ["broker:6650", "http://broker:8080", "pulsar://"])
def test_an_address_that_is_none_is_named(address: str) -> None:
    with pytest.raises(localbroker.LocalBrokerError, match="use for example pulsar://localhost:6650"):
        read_environment({"PULSAR_URL": address})


def test_the_broker_of_the_environment_is_prepared_and_left_running(admin_stand_in: fakes.AdminStandIn) -> None:
    admin_stand_in.token = "sesame"
    environ = {"PULSAR_URL": "pulsar://127.0.0.1:1", "PULSAR_ADMIN_URL": admin_stand_in.url, "PULSAR_TOKEN": "sesame"}

    with provide_broker(environ=environ) as endpoint:
        assert endpoint.service_url == "pulsar://127.0.0.1:1"
        assert endpoint.token == "sesame"
        assert endpoint.broker is None
        assert admin_stand_in.tenants["tg"] == set(localbroker.DEFAULT_NAMESPACES)
        assert endpoint.admin().clusters() == ["standalone"]


def test_a_broker_of_the_environment_that_does_not_answer_is_an_error() -> None:
    environ = {"PULSAR_URL": "pulsar://127.0.0.1:1", "PULSAR_ADMIN_URL": "http://127.0.0.1:1"}

    with pytest.raises(localbroker.AdminError, match="PULSAR_ADMIN_URL"), provide_broker(environ=environ):
        pass


def test_a_container_where_nothing_else_goes(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "choose_launcher", lambda: "docker")

    with provide_broker(environ={}) as endpoint:
        assert endpoint.broker is None
        assert set(endpoint.admin().namespaces("tg")) == set(localbroker.DEFAULT_NAMESPACES)

    with pytest.raises(localbroker.AdminError):
        endpoint.admin().clusters()
    assert fakes.docker_calls(docker)[-1].startswith("stop ")


KEYS = st.text("abcXYZ_", min_size=1, max_size=5)
VALUES = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=8).map(str.strip)
LINES = st.one_of(
    st.just(""),
    VALUES.map(lambda text: f"# {text}"),
    st.tuples(KEYS, VALUES).map("=".join),
    st.tuples(KEYS, VALUES).map(lambda pair: f"#{pair[0]}={pair[1]}"),
)


def properties(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.split("\n") if "=" in line and not line.lstrip().startswith("#"))
    return {key.strip(): value for key, _, value in pairs}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "apache-pulsar"
    (home / "conf").mkdir(parents=True)
    # As the genuine file: no newline at its end.
    (home / "conf" / "standalone.conf").write_text("# port\nbrokerServicePort=6650\nbindAddress=0.0.0.0\nlast=x")
    return home


@pytest.mark.parametrize(
    ("text", "settings", "written"),
    [
        ("# b=0\na=1\nb=2\nc=3\n", {"b": "9"}, "# b=0\na=1\nb=9\nc=3\n"),
        ("a=1", {"b": "2"}, "a=1\nb=2\n"),
        ("webPortTls=\nwebPort=8080\n", {"webPort": "1"}, "webPortTls=\nwebPort=1\n"),
    ],
    ids=["in place", "at the end", "similar key"],
)
def test_a_setting_takes_the_place_of_its_key(text: str, settings: dict[str, str], written: str) -> None:
    assert localbroker.apply_settings(text, settings) == written


@settings(deadline=None)  # a loaded machine is no failure
@given(st.lists(LINES), st.dictionaries(KEYS, VALUES))
def test_every_setting_holds_and_everything_else_stays(lines: list[str], settings: dict[str, str]) -> None:
    text = "\n".join(lines)

    written = properties(localbroker.apply_settings(text, settings))

    assert written == {**properties(text), **settings}


def test_the_broker_listens_on_the_loopback_only(home: Path, tmp_path: Path) -> None:
    localbroker.Configuration(home, tmp_path / "data", localbroker.Ports(1001, 1002, 1003, 1004)).write()

    written = properties((tmp_path / "data" / "conf" / "standalone.conf").read_text())

    assert written["bindAddress"] == "127.0.0.1"
    assert written["listeningInterface"] in ("lo", "lo0")  # of the bookie, which listens everywhere without it
    assert written["allowEphemeralPorts"] == "true"  # or it takes a port of its own choice
    assert written["brokerServicePort"] == "1001"
    assert written["webServicePort"] == "1002"
    assert written["last"] == "x"


def test_a_new_start_puts_the_logs_of_the_last_one_aside(home: Path, tmp_path: Path) -> None:
    configuration = localbroker.Configuration(home, tmp_path / "data", localbroker.Ports(1, 2, 3, 4))
    configuration.write()
    configuration.log_file.write_text("Address already in use")

    configuration.write()

    assert not configuration.log_file.exists()
    assert configuration.log_file.with_suffix(".previous.log").read_text() == "Address already in use"


@pytest.mark.parametrize("part", ["home", "data"])
def test_a_path_with_white_space_is_refused_before_the_script_stumbles(home: Path, tmp_path: Path, part: str) -> None:
    spaced = tmp_path / "a b"
    configuration = localbroker.Configuration(
        spaced if part == "home" else home,
        spaced if part == "data" else tmp_path / "data",
        localbroker.Ports(1, 2, 3, 4),
    )

    with pytest.raises(localbroker.LocalBrokerError, match="DISPATCH_CACHE" if part == "home" else "TMPDIR"):
        configuration.write()


def test_the_command_never_wipes_and_keeps_everything_in_the_data_folder(home: Path, tmp_path: Path) -> None:
    configuration = localbroker.Configuration(home, tmp_path / "data", localbroker.Ports(1001, 1002, 1003, 1004))

    command = configuration.command()

    assert command[:2] == [str(home / "bin" / "pulsar"), "standalone"]
    assert "--wipe-data" not in command
    assert command[command.index("--bookkeeper-port") + 1] == "1003"
    for option in ("--metadata-dir", "--bookkeeper-dir"):
        assert Path(command[command.index(option) + 1]).parent == tmp_path / "data"


def test_variables_of_the_start_script_are_not_inherited(home: Path, tmp_path: Path) -> None:
    configuration = localbroker.Configuration(home, tmp_path / "data", localbroker.Ports(1, 2, 3, 4))
    names = ("PULSAR_EXTRA_CLASSPATH", "OPTS", "BOOKIE_CONF", "JAVA_TOOL_OPTIONS", "CLASSPATH")
    inherited = dict.fromkeys(names, "x")

    environment = configuration.environment({**inherited, "PATH": "/bin", "JAVA_HOME": "/java", "MY_OPTS": "mine"})

    assert not set(inherited) & set(environment)
    assert environment["PATH"] == "/bin"
    assert environment["JAVA_HOME"] == "/java"
    assert environment["MY_OPTS"] == "mine"
    assert f"-Djava.io.tmpdir={tmp_path / 'data' / 'tmp'}" in environment["PULSAR_EXTRA_OPTS"]


def test_kept_data_say_which_port_their_bookie_has(tmp_path: Path) -> None:
    assert localbroker.read_bookie_port(tmp_path) is None
    cookie = tmp_path / "bk" / "current" / "VERSION"
    cookie.parent.mkdir(parents=True)

    cookie.write_text('5\nbookieHost: "127.0.0.1:21652"\njournalDir: "/x:1"\n')
    assert localbroker.read_bookie_port(tmp_path) == 21652

    cookie.write_text("rubbish")
    assert localbroker.read_bookie_port(tmp_path) is None


def test_a_broker_is_had_without_the_client_and_without_the_command_line() -> None:
    names = "{'pulsar', '_pulsar', 'typer', 'rich'}"
    script = f"import sys, dispatch.devtools.localbroker; print(*{names} & set(sys.modules))"

    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert loaded.stdout.split() == []


def test_the_second_waits_says_so_and_then_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    said: list[str] = []
    waiting, entered = threading.Event(), threading.Event()

    def report(line: str) -> None:
        said.append(line)
        waiting.set()

    def second() -> None:
        with localbroker.hold_lock(path, waiting="somebody is at work", report=report):
            entered.set()

    with localbroker.hold_lock(path):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        assert not entered.is_set()
    assert entered.wait(10)
    thread.join()
    assert said == ["somebody is at work"]


def refuse_to_wait(_line: str) -> None:
    raise BlockingIOError


def test_the_kernel_frees_it_when_its_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = (
        "import signal, sys, pathlib\n"
        "from dispatch.devtools.localbroker import hold_lock\n"
        "with hold_lock(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError), localbroker.hold_lock(path, report=refuse_to_wait):
            pass
        holder.kill()
        holder.wait()

        with localbroker.hold_lock(path, report=refuse_to_wait):
            pass


def test_free_ports_differ_and_are_free() -> None:
    found = localbroker.find_free_ports(20)

    assert len(set(found)) == 20
    for port in found:
        localbroker.require_free(port, "")


def test_free_ports_are_not_among_those_of_outgoing_connections() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    assert max(localbroker.find_free_ports(50)) < first


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_somebody_listens_on_is_in_use(address: str) -> None:
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]

        with pytest.raises(localbroker.LocalBrokerError, match=rf"port {port} .* is in use: take --port"):
            localbroker.require_free(port, "take --port")


def test_a_port_with_nothing_but_closed_connections_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            accepted.close()  # the side that closes first is left in TIME_WAIT

    localbroker.require_free(port, "")


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(localbroker.LocalBrokerError, match="use 1 to 65535"):
        localbroker.require_free(port, "")


def test_the_loopback_interface_exists() -> None:
    assert localbroker.loopback_interface() in [name for _, name in socket.if_nameindex()]


NAME = f"apache-pulsar-{VERSION}"


PARTS = ("bin/pulsar", "conf/standalone.conf", "lib/pulsar.jar")


def unpack(folder: Path, _report: localbroker.Report) -> None:
    for part in PARTS:
        file = folder / NAME / part
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(part)


def leftovers(cache: Path) -> list[str]:
    return sorted(entry.name for entry in (cache / "pulsar").iterdir() if entry.name not in ("lock", NAME))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"DISPATCH_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"DISPATCH_CACHE": "", "XDG_CACHE_HOME": "/b"}, Path("/b/tool-dispatch")),
        ({}, Path.home() / ".cache" / "tool-dispatch"),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], expected: Path) -> None:
    assert localbroker.cache_dir(environ) == expected


def test_it_is_fetched_once(cache: Path) -> None:
    assert localbroker.find_distribution() is None

    home = localbroker.fetch_distribution(unpack=unpack)

    assert home == localbroker.find_distribution() == cache / "pulsar" / NAME
    assert localbroker.fetch_distribution(unpack=lambda _folder, _report: pytest.fail("it is there")) == home
    assert leftovers(cache) == []


def test_of_two_at_once_the_second_waits_and_fetches_nothing(cache: Path) -> None:
    fetching, waiting = threading.Event(), threading.Event()
    said: list[str] = []
    homes: list[Path] = []

    def slow(folder: Path, report: localbroker.Report) -> None:
        fetching.set()
        assert waiting.wait(10)
        unpack(folder, report)

    def report(line: str) -> None:
        said.append(line)
        waiting.set()

    first = threading.Thread(target=lambda: homes.append(localbroker.fetch_distribution(unpack=slow)))
    first.start()
    assert fetching.wait(10)
    homes.append(localbroker.fetch_distribution(report, unpack=lambda _folder, _report: pytest.fail("one is enough")))
    first.join()

    assert homes == [cache / "pulsar" / NAME] * 2
    assert said == [f"another process is downloading Pulsar {VERSION}; waiting for it"]


def test_who_loses_the_race_to_the_name_takes_the_winners(cache: Path) -> None:
    def overtaken(folder: Path, report: localbroker.Report) -> None:
        unpack(folder, report)
        unpack(cache / "pulsar", report)  # as another run would, where locks do not work
        (cache / "pulsar" / NAME / "lib" / "winner").touch()

    home = localbroker.fetch_distribution(unpack=overtaken)

    assert (home / "lib" / "winner").exists()
    assert leftovers(cache) == []


def test_something_else_under_the_name_is_named(cache: Path) -> None:
    (cache / "pulsar" / NAME / "strange").mkdir(parents=True)

    with pytest.raises(localbroker.LocalBrokerError, match="delete that folder"):
        localbroker.fetch_distribution(unpack=unpack)

    assert leftovers(cache) == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, localbroker.LocalBrokerError])
def test_an_interrupted_fetch_leaves_nothing(cache: Path, interruption: type[BaseException]) -> None:
    def interrupted(folder: Path, _report: localbroker.Report) -> None:
        (folder / NAME / "bin").mkdir(parents=True)
        raise interruption

    with pytest.raises(interruption):
        localbroker.fetch_distribution(unpack=interrupted)

    assert leftovers(cache) == []
    assert localbroker.find_distribution() is None
    assert localbroker.fetch_distribution(unpack=unpack) == localbroker.find_distribution()


def test_what_is_incomplete_never_gets_the_name(cache: Path) -> None:
    with pytest.raises(localbroker.LocalBrokerError, match="no complete"):
        localbroker.fetch_distribution(unpack=lambda folder, _report: (folder / NAME / "bin").mkdir(parents=True))

    assert localbroker.find_distribution() is None


def test_what_a_killed_run_left_is_cleared_away(cache: Path) -> None:
    script = (
        "import os, signal\n"
        "from dispatch.devtools.localbroker import fetch_distribution\n"
        "def die(folder, report):\n"
        "    (folder / 'half').touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "fetch_distribution(unpack=die)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert len(leftovers(cache)) == 1

    localbroker.fetch_distribution(unpack=unpack)

    assert leftovers(cache) == []


@pytest.fixture
def fake_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `mvn` which leaves its arguments and its working directory beside itself, and unpacks, unless it is to fail."""
    script = tmp_path / "bin" / "mvn"
    script.parent.mkdir()
    make = " && ".join(f'mkdir -p "$out/{NAME}/{Path(part).parent}" && touch "$out/{NAME}/{part}"' for part in PARTS)
    script.write_text(
        "#!/bin/sh\n"
        'printf "%s\\n" "$@" > "$0.arguments"; pwd > "$0.cwd"\n'
        'for argument; do case "$argument" in -DoutputDirectory=*) out="${argument#*=}";; esac; done\n'
        '[ -e "$0.fail" ] && { echo "[ERROR] no such host"; exit 3; }\n' + make + "\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    return script


@pytest.mark.process
def test_maven_is_asked_for_this_version_in_a_folder_of_its_own(cache: Path, fake_maven: Path) -> None:
    said: list[str] = []

    home = localbroker.fetch_distribution(said.append)

    assert (home / "bin" / "pulsar").exists()
    arguments = fake_maven.with_name("mvn.arguments").read_text()
    assert f"-Dartifact=org.apache.pulsar:pulsar-server-distribution:{VERSION}:tar.gz:bin" in arguments
    # Maven would read a pom.xml of the working directory, and writes into it.
    assert Path(fake_maven.with_name("mvn.cwd").read_text().strip()).parent.parent == cache / "pulsar"
    assert said[0].startswith(f"downloading Pulsar {VERSION} with Maven")
    assert said[-1].startswith(f"downloaded Pulsar {VERSION} in")
    assert leftovers(cache) == []


@pytest.mark.process
def test_a_maven_that_fails_is_quoted(cache: Path, fake_maven: Path) -> None:
    fake_maven.with_name("mvn.fail").touch()

    problem = r"exit status 3\):\n\[ERROR\] no such host\nCheck the network"
    with pytest.raises(localbroker.LocalBrokerError, match=problem):
        localbroker.fetch_distribution()

    assert leftovers(cache) == []


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17),
        ('openjdk version "21-ea" 2023', 21),
        ('openjdk version "25" 2025', 25),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.2"', 11),
        ("no version here", None),
    ],
)
def test_the_version_is_read(text: str, version: int | None) -> None:
    assert localbroker.parse_java_version(text) == version


@pytest.mark.parametrize(
    ("version", "problem"),
    [("17.0.15", None), ("11.0.2", "/usr/bin/java is Java 11, but Pulsar needs Java 17 or newer")],
)
def test_a_java_that_is_too_old_is_named(machine: fakes.Machine, version: str, problem: str | None) -> None:
    machine.has("java", java=(0, "", f'openjdk version "{version}"'))

    assert localbroker.find_java_problem() == problem


def test_a_stub_that_only_asks_to_install_java(machine: fakes.Machine) -> None:
    machine.has("java", java=(1, "", "Unable to locate a Java Runtime."))

    assert "Unable to locate" in (localbroker.find_java_problem() or "")


def test_no_java_at_all(machine: fakes.Machine) -> None:
    assert "not installed" in (localbroker.find_java_problem() or "")


def test_java_home_goes_before_the_path_as_in_the_start_script(
    machine: fakes.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = machine.has("java", java=(0, "", 'version "17"'))
    monkeypatch.setenv("JAVA_HOME", "/opt/jdk")

    localbroker.find_java_problem()

    assert runner.commands == [["/opt/jdk/bin/java", "-version"]]


def test_a_wrong_java_home_is_named(machine: fakes.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.has("java", java=FileNotFoundError(2, "No such file or directory"))
    monkeypatch.setenv("JAVA_HOME", "/opt/jdk")

    assert localbroker.find_java_problem() == "/opt/jdk/bin/java (JAVA_HOME) cannot be run: No such file or directory"


def test_a_command_that_hangs_is_ended() -> None:
    answer = run([sys.executable, "-c", "import signal; signal.pause()"], timeout=0.2)

    assert answer.returncode == 124
    assert "did not finish within 0.2 s" in answer.stderr


def calls(docker: Path) -> list[str]:
    return [call.split()[0] for call in fakes.docker_calls(docker)]


def test_the_command_publishes_on_the_loopback_only_and_the_same_ports_inside() -> None:
    command = localbroker.build_run_command("box", 16650, 18080)

    published = [command[index + 1] for index, word in enumerate(command) if word == "--publish"]
    assert published == ["127.0.0.1:16650:16650", "127.0.0.1:18080:18080"]
    assert "PULSAR_PREFIX_brokerServicePort=16650" in command
    assert "PULSAR_PREFIX_webServicePort=18080" in command
    assert command[:2] == ["docker", "run"]
    assert "--rm" in command
    assert command[command.index("--name") + 1] == "box"
    assert command[-4] == localbroker.IMAGE == "apachepulsar/pulsar:4.0.6"
    assert "--volume" not in command


def test_kept_data_are_in_a_volume() -> None:
    command = localbroker.build_run_command("box", 1, 2, volume="kept")

    assert command[command.index("--volume") + 1] == "kept:/pulsar/data"


@pytest.mark.costly
@pytest.mark.parametrize(
    ("answer", "available"), [((0, "27.1", ""), True), ((1, "", "daemon?"), False), (FileNotFoundError(), False)]
)
def test_an_engine_is_there_if_it_answers(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str, str] | OSError, available: bool
) -> None:
    monkeypatch.setattr(localbroker, "run", fakes.FakeRunner(docker_info=answer))
    assert localbroker.is_engine_available() is available


def test_a_container_that_is_gone_needs_no_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = fakes.FakeRunner(docker_stop=(1, "", "No such container"), docker_inspect=(1, "", "No such object"))
    monkeypatch.setattr(localbroker, "run", gone)
    localbroker.stop_container("box")
    assert not localbroker.is_container_running("box")

    stuck = fakes.FakeRunner(docker_stop=(1, "", "permission denied"), docker_inspect=(0, "true\n", ""))
    monkeypatch.setattr(localbroker, "run", stuck)
    with pytest.raises(localbroker.LocalBrokerError, match="permission denied; try: docker rm --force box"):
        localbroker.stop_container("box")


def test_a_container_is_started_and_stopped(docker: Path) -> None:
    said: list[str] = []

    with localbroker.DockerBroker.start(report=said.append) as broker:
        assert localbroker.is_container_running(broker.name)
        assert broker.service_url.startswith("pulsar://127.0.0.1:")
    assert not localbroker.is_container_running(broker.name)

    assert calls(docker)[:3] == ["image", "pull", "run"]
    assert any(localbroker.IMAGE in line for line in said)
    broker.stop()  # again: nothing more happens


def test_a_detached_container_lives_on(docker: Path) -> None:
    broker = localbroker.DockerBroker.start(name="box", volume="kept", detached=True)

    assert localbroker.is_container_running("box")
    assert "rm" not in calls(docker)
    localbroker.stop_container("box")
    assert not localbroker.is_container_running("box")
    assert broker.name == "box"


def test_a_container_that_dies_is_reported_with_its_log_and_removed(docker: Path) -> None:
    (docker / "die").touch()

    with pytest.raises(localbroker.LocalBrokerError, match="bookie is full"):
        localbroker.DockerBroker.start()

    assert calls(docker)[-1] == "rm"


def test_a_refusal_is_quoted(docker: Path) -> None:
    (docker / "refuse").touch()

    with pytest.raises(localbroker.LocalBrokerError, match="no space left"):
        localbroker.DockerBroker.start()


JAVA_17 = (0, "", 'openjdk version "17.0.15"')


JAVA_11 = (0, "", 'openjdk version "11.0.2"')


ENGINE = (0, "27.1\n", "")


NO_ENGINE = (1, "", "Cannot connect to the Docker daemon")


def put_distribution(cache: Path) -> None:
    home = cache / "pulsar" / f"apache-pulsar-{VERSION}"
    for part in ("bin/pulsar", "conf/standalone.conf", "lib/pulsar.jar"):
        (home / part).parent.mkdir(parents=True, exist_ok=True)
        (home / part).touch()


def test_java_and_maven_are_enough_and_docker_is_not_even_asked(machine: fakes.Machine) -> None:
    runner = machine.has("java", "mvn", "docker", java=JAVA_17)

    assert choose_launcher() == "process"
    assert [command[0] for command in runner.commands] == ["/usr/bin/java"]


def test_a_cached_distribution_needs_no_maven(cache: Path, machine: fakes.Machine) -> None:
    put_distribution(cache)
    machine.has("java", java=JAVA_17)

    assert choose_launcher() == "process"


@pytest.mark.parametrize("java", [JAVA_17, JAVA_11])
def test_docker_where_maven_or_a_usable_java_is_missing(machine: fakes.Machine, java: tuple[int, str, str]) -> None:
    machine.has(*("java", "docker") if java is JAVA_17 else ("java", "mvn", "docker"), java=java, docker_info=ENGINE)

    assert choose_launcher() == "docker"


def test_with_nothing_at_all_the_error_says_what_to_install(machine: fakes.Machine) -> None:
    machine.has()

    with pytest.raises(localbroker.LocalBrokerUnavailableError) as caught:
        choose_launcher()

    text = str(caught.value)
    for part in (
        "Java is not",
        "Maven is not",
        "Docker is not",
        "apt-get install openjdk-17-jre-headless maven",
        "PULSAR_URL",
        "DISPATCH_BROKER=pulsar://",
    ):
        assert part in text
    assert len(caught.value.problems) == 3


def test_a_cluster_says_what_to_install(cache: Path, machine: fakes.Machine) -> None:
    machine.has("docker", docker_info=ENGINE)

    with pytest.raises(localbroker.LocalBrokerUnavailableError, match=r"Java is not.*; Maven is not") as caught:
        LocalCluster.start()

    assert "For a cluster, install Java 17 or newer and Maven" in str(caught.value)
    assert not (cache / "pulsar").exists()


def test_a_docker_command_without_an_engine_does_not_help(machine: fakes.Machine) -> None:
    machine.has("java", "docker", java=JAVA_17, docker_info=NO_ENGINE)

    problem = r"Maven is not installed.*; no Docker engine responds"
    with pytest.raises(localbroker.LocalBrokerUnavailableError, match=problem):
        choose_launcher()


class ReadyAfter:
    """A broker that is ready at the n-th look."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def __call__(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def still_there(_seconds: float) -> bool:
    return False


def test_it_returns_once_the_broker_answers(admin_stand_in: fakes.AdminStandIn) -> None:
    assert localbroker.wait_until_ready(localbroker.Admin(admin_stand_in.url).is_ready, still_there, logs=[]) < 10


def test_it_looks_again_until_then() -> None:
    is_ready = ReadyAfter(looks=3)

    localbroker.wait_until_ready(is_ready, still_there, logs=[])

    assert is_ready.looks == -1


def test_a_broker_that_ends_is_reported_with_what_it_said(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    log.write_text("x INFO fine\nx ERROR no space left\nx INFO closing\n")

    with pytest.raises(localbroker.LocalBrokerError, match="ended during its start") as caught:
        localbroker.wait_until_ready(ReadyAfter(looks=9), lambda _seconds: True, logs=[log, tmp_path / "missing"])

    assert "no space left" in str(caught.value)
    assert "closing" not in str(caught.value)


def test_a_broker_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(localbroker.LocalBrokerError, match=r"not ready within 0 s:\n\(no log output\)"):
        localbroker.wait_until_ready(ReadyAfter(looks=10**9), still_there, logs=[tmp_path / "missing"], timeout=0)


def test_a_long_wait_is_reported() -> None:
    ticks = count()
    said: list[str] = []

    localbroker.wait_until_ready(
        ReadyAfter(looks=12), still_there, logs=[], report=said.append, clock=lambda: float(next(ticks))
    )

    assert said == ["still starting: 5 s so far", "still starting: 10 s so far"]


def test_without_a_telling_line_the_last_ones_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(f"line {number}" for number in range(100)))

    shown = localbroker.extract_errors([log])

    assert "line 99" in shown
    assert "line 88" in shown
    assert "line 87" not in shown


def test_only_the_end_of_a_large_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 1_000_000 + b"\nthe end\n")

    lines = localbroker.read_tail(log)

    assert lines[-1] == "the end"
    assert sum(map(len, lines)) < 70_000


@pytest.fixture
def fake(fake_distribution: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A fake start script, and temporary folders where the test can see them."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return fake_distribution


def temporary_folders(tmp_path: Path) -> list[str]:
    return [entry.name for entry in tmp_path.iterdir() if entry.name.startswith("tool-dispatch-pulsar-")]


@pytest.mark.process
def test_a_broker_that_dies_at_once_says_why_and_leaves_nothing(fake: Path, tmp_path: Path) -> None:
    fakes.write_script(fake, 'echo "Error: Could not create the Java Virtual Machine."; exit 1')

    with pytest.raises(localbroker.LocalBrokerError, match="Could not create the Java Virtual Machine"):
        localbroker.LocalBroker.start()

    assert temporary_folders(tmp_path) == []


@pytest.mark.process
def test_a_free_port_that_was_lost_is_no_reason_to_give_up(fake: Path, tmp_path: Path) -> None:
    fakes.write_script(fake, 'echo "x ERROR java.net.BindException: Address already in use"; exit 1')
    said: list[str] = []

    with pytest.raises(localbroker.LocalBrokerError, match="Address already in use"):
        localbroker.LocalBroker.start(report=said.append)

    assert len((fake / "pids").read_text().split()) == 3
    assert sum("on others" in line for line in said) == 2
    assert temporary_folders(tmp_path) == []


@pytest.mark.process
def test_a_broker_that_is_never_ready_is_ended(fake: Path, tmp_path: Path) -> None:
    fakes.write_script(fake, "exec sleep 600")

    with pytest.raises(localbroker.LocalBrokerError, match=r"not ready within 0\.2 s"):
        localbroker.LocalBroker.start(ready_timeout=0.2)

    [pid] = map(int, (fake / "pids").read_text().split())
    assert localbroker.process_identity(pid) is None
    assert temporary_folders(tmp_path) == []


SERVES = """
folder=${{PULSAR_LOG_DIR%/logs}}
mkdir -p $folder/www/admin/v2/namespaces/public
echo "{{}}" > $folder/www/admin/v2/namespaces/public/default
{writes}
port=$(sed -n s/^webServicePort=//p $PULSAR_STANDALONE_CONF)
exec {python} -m http.server --bind 127.0.0.1 --directory $folder/www $port
"""


FIGHTS = """
for n in $(seq {lines}); do
    echo "INFO ResourceLockImpl - Lock on resource /ledgers/available/127.0.0.1:7 was invalidated. state Valid"
done > $PULSAR_LOG_DIR/broker.log
"""


@pytest.mark.wall_clock
@pytest.mark.parametrize(
    ("writes", "starts"),
    [
        (f"if [ ! -e $folder/www/fought ]; then touch $folder/www/fought; {FIGHTS.format(lines=1_000)} fi", 2),
        (FIGHTS.format(lines=1_000), 3),
        (FIGHTS.format(lines=2), 1),
    ],
    ids=["once", "always", "not at all"],
)
def test_a_broker_that_fights_over_a_killed_ones_registration_is_started_again(
    fake: Path, tmp_path: Path, writes: str, starts: int
) -> None:
    fakes.write_script(fake, SERVES.format(writes=writes, python=sys.executable))
    said: list[str] = []

    with localbroker.LocalBroker.start(report=said.append) as broker:
        pids = [int(pid) for pid in (fake / "pids").read_text().split()]
        assert len(pids) == starts
        assert broker.pid == pids[-1]
        assert [localbroker.process_identity(pid) for pid in pids[:-1]] == [None] * (starts - 1)
        assert sum("registration" in line for line in said) == starts - 1
        assert "is ready" in said[-1]

    assert temporary_folders(tmp_path) == []


OWNER = """
import signal
from dispatch.devtools.localbroker import LocalBroker

def on_spawn(broker):
    print(broker.pid, broker.process.watchdog_pid, broker.data_dir, flush=True)
    signal.pause()

LocalBroker.start(on_spawn=on_spawn)
"""


def test_it_ends_with_its_owner_even_by_kill_9(fake: Path) -> None:
    fakes.write_script(fake, "exec sleep 600")
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        pid, watchdog, folder = owner.stdout.readline().split()
        ends = [fakes.Ending(int(pid)), fakes.Ending(int(watchdog))]
        assert Path(folder).exists()
        owner.kill()
        assert all(end.within(10) for end in ends)
        assert not Path(folder).exists()


@pytest.mark.process
def test_an_interrupted_start_leaves_nothing(fake: Path, tmp_path: Path) -> None:
    fakes.write_script(fake, "exec sleep 600")
    brokers: list[localbroker.LocalBroker] = []

    def interrupt(broker: localbroker.LocalBroker) -> None:
        assert broker.data_dir.exists()
        brokers.append(broker)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        localbroker.LocalBroker.start(on_spawn=interrupt)

    assert not brokers[0].is_alive()
    assert temporary_folders(tmp_path) == []


def test_ports_that_were_asked_for_must_be_free_and_two(fake: Path) -> None:
    [port] = localbroker.find_free_ports(1)
    with pytest.raises(localbroker.LocalBrokerError, match="cannot serve both clients and the admin interface"):
        localbroker.LocalBroker.start(port=port, web_port=port)

    with subprocess.Popen([sys.executable, "-c", LISTEN, str(port)], stdout=subprocess.PIPE) as listener:
        assert listener.stdout.readline() == b"listening\n"
        with pytest.raises(localbroker.LocalBrokerError, match=f"port {port} .* is in use"):
            localbroker.LocalBroker.start(port=port)
        listener.kill()


LISTEN = """
import signal, socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    print("listening", flush=True)
    signal.pause()
"""


def test_a_detached_broker_needs_a_folder_for_its_data() -> None:
    with pytest.raises(ValueError, match="data_dir"):
        localbroker.LocalBroker.start(detached=True)


def client_of(url: str, **options: Any) -> pulsar.Client:
    return pulsar.Client(
        url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **{"operation_timeout_seconds": 10, **options}
    )


@pytest.mark.pulsar
def test_the_admin_interface_of_a_genuine_broker(pulsar_endpoint: Endpoint) -> None:
    admin, topic = pulsar_endpoint.admin(), f"non-persistent://tg/request/{unique_topic()}"
    assert set(admin.namespaces("tg")) >= set(localbroker.DEFAULT_NAMESPACES)
    localbroker.create_namespaces(admin, ["tg/request", "acme/tools"])
    assert "acme/tools" in admin.namespaces("acme")
    client = client_of(pulsar_endpoint.service_url)
    try:
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic).send(b"hello")
        assert consumer.receive(10_000).data() == b"hello"
        assert topic in admin.topics("tg/request")
        assert admin.stats(topic)["subscriptions"]["s"]["consumers"][0]["availablePermits"] > 0
        with pytest.raises(localbroker.AdminError, match="not found") as caught:
            admin.stats(f"{topic}-unknown")
        assert caught.value.status == 404
    finally:
        client.close()


@pytest.mark.pulsar
def test_a_broker_that_loses_a_port_to_another_process_starts_on_others() -> None:
    with contextlib.ExitStack() as stack:
        taken: list[int] = []

        def take_its_port(broker: localbroker.LocalBroker) -> None:
            if not taken:
                taken.append(urlsplit(broker.service_url_tls).port)
                stack.enter_context(socket.create_server((localbroker.LOOPBACK, taken[0])))

        broker = stack.enter_context(SecuredBroker.start_secured(on_spawn=take_its_port))

        assert taken != [urlsplit(broker.service_url_tls).port]
        assert b"Failed to authenticate" in fakes.handshake(broker.service_url, None)


@pytest.mark.pulsar
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_the_right_token_is_let_in(secured_broker: SecuredBroker, tls: bool) -> None:
    client = client_of(
        secured_broker.service_url_tls if tls else secured_broker.service_url,
        authentication=pulsar.AuthenticationToken(secured_broker.token()),
        tls_trust_certs_file_path=str(secured_broker.ca_file) if tls else None,
        tls_validate_hostname=True,
    )
    try:
        consumer = client.subscribe("non-persistent://tg/request/secret", "s")
        client.create_producer("non-persistent://tg/request/secret").send(b"psst")
        assert consumer.receive(10_000).data() == b"psst"
    finally:
        client.close()


@pytest.mark.pulsar
@pytest.mark.parametrize("token", ["none", "forged"])
def test_a_missing_or_wrong_token_is_refused(secured_broker: SecuredBroker, token: str) -> None:
    header, claims, _ = secured_broker.token().split(".")
    text = f"{header}.{claims}.{'A' * 43}" if token == "forged" else None

    # The broker says so at once. pulsar-client 3.13 does not pass it on: it tries again until its operation timeout.
    assert b"Failed to authenticate" in fakes.handshake(secured_broker.service_url, text)
    authentication = None if text is None else pulsar.AuthenticationToken(text)
    client = client_of(secured_broker.service_url, authentication=authentication, operation_timeout_seconds=1)
    try:
        with pytest.raises(pulsar.PulsarException):
            client.create_producer("non-persistent://public/default/secret")
    finally:
        client.close()
    with pytest.raises(localbroker.AdminError, match="use the token of a superuser") as caught:
        localbroker.Admin(secured_broker.web_url, text).request("GET", "tenants")
    assert caught.value.status == 401


@pytest.mark.pulsar
def test_a_stranger_with_a_good_token_may_do_nothing(secured_broker: SecuredBroker) -> None:
    token = secured_broker.token("stranger")
    assert b"Pulsar Server" in fakes.handshake(secured_broker.service_url, token)
    client = client_of(secured_broker.service_url, authentication=pulsar.AuthenticationToken(token))
    try:
        with pytest.raises(pulsar.AuthorizationError):
            client.create_producer("non-persistent://public/default/secret")
    finally:
        client.close()
    with pytest.raises(localbroker.AdminError) as caught:
        localbroker.Admin(secured_broker.web_url, token).request("GET", "tenants")
    assert caught.value.status in (401, 403)


@pytest.mark.pulsar
def test_a_client_that_does_not_trust_our_authority_is_not_served(secured_broker: SecuredBroker) -> None:
    client = client_of(
        secured_broker.service_url_tls, authentication=pulsar.AuthenticationToken(secured_broker.token())
    )
    try:
        with pytest.raises(pulsar.PulsarException):
            client.create_producer("non-persistent://public/default/secret")
    finally:
        client.close()
