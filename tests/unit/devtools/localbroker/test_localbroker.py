""" """

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.devtools import localbroker
from dispatch.devtools.localbroker import (
    DEFAULT_NAMESPACES,
    Admin,
    AdminError,
    Configuration,
    LocalBrokerError,
    Ports,
    apply_settings,
    create_namespaces,
    find_free_ports,
    hold_lock,
    loopback_interface,
    provide_broker,
    read_bookie_port,
    read_environment,
    require_free,
)
from tests.unit.devtools.localbroker.fakes import AdminStandIn, docker_calls, serve_admin


def test_prepare_makes_the_tenant_and_its_namespaces_once(admin_stand_in: AdminStandIn) -> None:
    admin = Admin(admin_stand_in.url)

    assert create_namespaces(admin) == ["tg", "tg/request", "tg/response", "tg/flow", "tg/notify"]
    assert create_namespaces(admin) == []
    assert set(admin.namespaces("tg")) == set(DEFAULT_NAMESPACES)


def test_a_tenant_is_allowed_on_the_clusters_there_are(admin_stand_in: AdminStandIn) -> None:
    admin_stand_in.scripted["GET /admin/v2/clusters"] = (200, b'["east","west"]', {})

    assert Admin(admin_stand_in.url).ensure_tenant("acme")

    [put] = [request for request in admin_stand_in.requests if request.method == "PUT"]
    assert json.loads(put.body) == {"adminRoles": [], "allowedClusters": ["east", "west"]}
    assert put.headers["content-type"] == "application/json"


def test_a_tenant_that_is_there_needs_no_super_user(admin_stand_in: AdminStandIn) -> None:
    admin_stand_in.scripted["PUT /admin/v2/tenants/public"] = (401, b"", {})

    assert not Admin(admin_stand_in.url).ensure_tenant("public")


def test_nothing_is_made_where_it_is_unknown_what_is_there(admin_stand_in: AdminStandIn) -> None:
    admin_stand_in.scripted["GET /admin/v2/namespaces/tg"] = (500, b"", {})

    with pytest.raises(AdminError, match="HTTP 500"):
        create_namespaces(Admin(admin_stand_in.url))

    assert [request.method for request in admin_stand_in.requests] == ["GET"]


@pytest.mark.parametrize("path", ["tenants/tg", "namespaces/tg/request"])
def test_somebody_else_being_quicker_is_no_error(admin_stand_in: AdminStandIn, path: str) -> None:
    admin_stand_in.scripted[f"PUT /admin/v2/{path}"] = (409, b'{"reason":"already exists"}', {})
    if path.startswith("namespaces"):
        admin_stand_in.tenants["tg"] = set()

    admin = Admin(admin_stand_in.url)

    assert not (admin.ensure_tenant("tg") if path.startswith("tenants") else admin.ensure_namespace("tg/request"))


def test_ready_is_a_question_and_never_an_error(admin_stand_in: AdminStandIn) -> None:
    assert Admin(admin_stand_in.url).is_ready()
    admin_stand_in.tenants["public"].clear()
    assert not Admin(admin_stand_in.url).is_ready()
    assert not Admin("http://127.0.0.1:1").is_ready()


def test_the_token_travels_and_its_lack_is_explained(admin_stand_in: AdminStandIn) -> None:
    admin_stand_in.token = "sesame"

    assert Admin(admin_stand_in.url, "sesame").request("GET", "tenants") == ["public"]
    with pytest.raises(AdminError, match="HTTP 401: Authentication required; use the token of a superuser") as caught:
        Admin(admin_stand_in.url).request("GET", "tenants")

    assert caught.value.status == 401
    assert caught.value.reason == "Authentication required"


def test_nobody_there_has_no_status() -> None:
    with pytest.raises(AdminError, match=r"no response: .*refused; check that the broker is running") as caught:
        Admin("http://127.0.0.1:1").clusters()

    assert caught.value.status is None


def test_no_proxy_stands_between_us_and_the_loopback(
    admin_stand_in: AdminStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)

    assert Admin(admin_stand_in.url).is_ready()


@pytest.mark.parametrize("code", [307, 308])
def test_a_redirected_put_keeps_its_method_body_and_token(admin_stand_in: AdminStandIn, code: int) -> None:
    with serve_admin() as owner:
        owner.tenants["tg"] = set()
        owner.token = "sesame"
        admin_stand_in.tenants["tg"] = set()
        target = f"{owner.url}/admin/v2/namespaces/tg/request"
        admin_stand_in.scripted["PUT /admin/v2/namespaces/tg/request"] = (code, b"", {"Location": target})

        assert Admin(admin_stand_in.url, "sesame").ensure_namespace("tg/request")

        assert owner.tenants["tg"] == {"tg/request"}
        assert owner.requests[0].body == "{}"


def test_names_are_quoted(admin_stand_in: AdminStandIn) -> None:
    path = "/admin/v2/non-persistent/tg/request/a%2Fb%3Fc:d%20e/stats".replace(":", "%3A")
    admin_stand_in.scripted[f"GET {path}"] = (200, b'{"msgRateIn":1.5}', {})

    assert Admin(admin_stand_in.url).stats("non-persistent://tg/request/a/b?c:d e") == {"msgRateIn": 1.5}


@pytest.mark.parametrize("topic", ["joke", "tg/request/joke", "kafka://tg/request/joke", "persistent://tg/joke"])
def test_stats_want_a_whole_name(topic: str) -> None:
    with pytest.raises(ValueError, match="non-persistent://tg/request/joke"):
        Admin("http://127.0.0.1:1").stats(topic)


@pytest.mark.parametrize("namespace", ["tg", "tg/", "/request", "tg/a/b"])
def test_a_namespace_has_two_parts(namespace: str) -> None:
    with pytest.raises(ValueError, match="tg/request"):
        Admin("http://127.0.0.1:1").ensure_namespace(namespace)


@pytest.mark.parametrize("url", ["localhost:8080", "pulsar://localhost:6650", "http://"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match=r"http://127\.0\.0\.1:8080"):
        Admin(url)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"<html>welcome</html>", "check that this is Pulsar's admin URL"),
        (b'{"a": 1}', "check that this is Pulsar's admin URL"),
        (b"[" + b"1," * 9_000_000 + b"1]", "longer than"),
    ],
    ids=["html", "object", "endless"],
)
def test_an_answer_that_is_not_pulsars(admin_stand_in: AdminStandIn, answer: bytes, text: str) -> None:
    admin_stand_in.scripted["GET /admin/v2/clusters"] = (200, answer, {})

    with pytest.raises(AdminError, match=text):
        Admin(admin_stand_in.url).clusters()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"reason":"Tenant not found"}', "Tenant not found"),
        (b"plain", "plain"),
        (b"<h1>x</h1>", "Internal Server Error"),
    ],
)
def test_the_reason_is_what_the_broker_said(admin_stand_in: AdminStandIn, body: bytes, reason: str) -> None:
    admin_stand_in.scripted["GET /admin/v2/clusters"] = (500, body, {})

    with pytest.raises(AdminError) as caught:
        Admin(admin_stand_in.url).clusters()

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

    assert endpoint is not None
    assert (endpoint.service_url, endpoint.web_url, endpoint.token) == (service_url, web_url, None)


@pytest.mark.parametrize("address", ["broker:6650", "http://broker:8080", "pulsar://"])
def test_an_address_that_is_none_is_named(address: str) -> None:
    with pytest.raises(LocalBrokerError, match="use for example pulsar://localhost:6650"):
        read_environment({"PULSAR_URL": address})


def test_the_broker_of_the_environment_is_prepared_and_left_running(admin_stand_in: AdminStandIn) -> None:
    admin_stand_in.token = "sesame"
    environ = {"PULSAR_URL": "pulsar://127.0.0.1:1", "PULSAR_ADMIN_URL": admin_stand_in.url, "PULSAR_TOKEN": "sesame"}

    with provide_broker(environ=environ) as endpoint:
        assert endpoint.service_url == "pulsar://127.0.0.1:1"
        assert endpoint.token == "sesame"
        assert endpoint.broker is None
        assert admin_stand_in.tenants["tg"] == set(DEFAULT_NAMESPACES)
        assert endpoint.admin().clusters() == ["standalone"]


def test_a_broker_of_the_environment_that_does_not_answer_is_an_error() -> None:
    environ = {"PULSAR_URL": "pulsar://127.0.0.1:1", "PULSAR_ADMIN_URL": "http://127.0.0.1:1"}

    with pytest.raises(AdminError, match="PULSAR_ADMIN_URL"), provide_broker(environ=environ):
        pass


def test_a_container_where_nothing_else_goes(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(localbroker, "choose_launcher", lambda: "docker")

    with provide_broker(environ={}) as endpoint:
        assert endpoint.broker is None
        assert set(endpoint.admin().namespaces("tg")) == set(DEFAULT_NAMESPACES)

    with pytest.raises(AdminError):
        endpoint.admin().clusters()
    assert docker_calls(docker)[-1].startswith("stop ")


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
        (
            "webServicePortTls=\nwebServicePort=8080\n",
            {"webServicePort": "1"},
            "webServicePortTls=\nwebServicePort=1\n",
        ),
    ],
    ids=["in place", "at the end", "similar key"],
)
def test_a_setting_takes_the_place_of_its_key(text: str, settings: dict[str, str], written: str) -> None:
    assert apply_settings(text, settings) == written


@settings(deadline=None)  # a loaded machine is no failure
@given(st.lists(LINES), st.dictionaries(KEYS, VALUES))
def test_every_setting_holds_and_everything_else_stays(lines: list[str], settings: dict[str, str]) -> None:
    text = "\n".join(lines)

    written = properties(apply_settings(text, settings))

    assert written == {**properties(text), **settings}


def test_the_broker_listens_on_the_loopback_only(home: Path, tmp_path: Path) -> None:
    Configuration(home, tmp_path / "data", Ports(1001, 1002, 1003)).write()

    written = properties((tmp_path / "data" / "conf" / "standalone.conf").read_text())

    assert written["bindAddress"] == "127.0.0.1"
    assert written["listeningInterface"] in ("lo", "lo0")  # of the bookie, which listens everywhere without it
    assert written["allowEphemeralPorts"] == "true"  # or it takes a port of its own choice
    assert written["brokerServicePort"] == "1001"
    assert written["webServicePort"] == "1002"
    assert written["last"] == "x"


def test_a_new_start_puts_the_logs_of_the_last_one_aside(home: Path, tmp_path: Path) -> None:
    configuration = Configuration(home, tmp_path / "data", Ports(1, 2, 3))
    configuration.write()
    configuration.log_file.write_text("Address already in use")

    configuration.write()

    assert not configuration.log_file.exists()
    assert configuration.log_file.with_suffix(".previous.log").read_text() == "Address already in use"


@pytest.mark.parametrize("part", ["home", "data"])
def test_a_path_with_white_space_is_refused_before_the_script_stumbles(home: Path, tmp_path: Path, part: str) -> None:
    spaced = tmp_path / "a b"
    configuration = Configuration(
        spaced if part == "home" else home, spaced if part == "data" else tmp_path / "data", Ports(1, 2, 3)
    )

    with pytest.raises(LocalBrokerError, match="DISPATCH_CACHE" if part == "home" else "TMPDIR"):
        configuration.write()


def test_the_command_never_wipes_and_keeps_everything_in_the_data_folder(home: Path, tmp_path: Path) -> None:
    configuration = Configuration(home, tmp_path / "data", Ports(1001, 1002, 1003))

    command = configuration.command()

    assert command[:2] == [str(home / "bin" / "pulsar"), "standalone"]
    assert "--wipe-data" not in command
    assert command[command.index("--bookkeeper-port") + 1] == "1003"
    for option in ("--metadata-dir", "--bookkeeper-dir"):
        assert Path(command[command.index(option) + 1]).parent == tmp_path / "data"


def test_variables_of_the_start_script_are_not_inherited(home: Path, tmp_path: Path) -> None:
    configuration = Configuration(home, tmp_path / "data", Ports(1, 2, 3))
    inherited = {
        "PULSAR_EXTRA_CLASSPATH": "x",
        "OPTS": "x",
        "BOOKIE_CONF": "x",
        "JAVA_TOOL_OPTIONS": "x",
        "CLASSPATH": "x",
    }

    environment = configuration.environment({**inherited, "PATH": "/bin", "JAVA_HOME": "/java", "MY_OPTS": "mine"})

    assert not set(inherited) & set(environment)
    assert environment["PATH"] == "/bin"
    assert environment["JAVA_HOME"] == "/java"
    assert environment["MY_OPTS"] == "mine"
    assert f"-Djava.io.tmpdir={tmp_path / 'data' / 'tmp'}" in environment["PULSAR_EXTRA_OPTS"]


def test_kept_data_say_which_port_their_bookie_has(tmp_path: Path) -> None:
    assert read_bookie_port(tmp_path) is None
    cookie = tmp_path / "bk" / "current" / "VERSION"
    cookie.parent.mkdir(parents=True)

    cookie.write_text('5\nbookieHost: "127.0.0.1:21652"\njournalDir: "/x:1"\n')
    assert read_bookie_port(tmp_path) == 21652

    cookie.write_text("rubbish")
    assert read_bookie_port(tmp_path) is None


def test_a_broker_is_had_without_the_client_and_without_the_command_line() -> None:
    script = (
        "import sys, dispatch.devtools.localbroker; print(*{'pulsar', '_pulsar', 'typer', 'rich'} & set(sys.modules))"
    )

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
        with hold_lock(path, waiting="somebody is at work", report=report):
            entered.set()

    with hold_lock(path):
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
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError), hold_lock(path, report=refuse_to_wait):
            pass
        holder.kill()
        holder.wait()

        with hold_lock(path, report=refuse_to_wait):
            pass


def test_free_ports_differ_and_are_free() -> None:
    found = find_free_ports(20)

    assert len(set(found)) == 20
    for port in found:
        require_free(port, "")


def test_free_ports_are_not_among_those_of_outgoing_connections() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    assert max(find_free_ports(50)) < first


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_somebody_listens_on_is_in_use(address: str) -> None:
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]

        with pytest.raises(LocalBrokerError, match=rf"port {port} .* is in use: take --port"):
            require_free(port, "take --port")


def test_a_port_with_nothing_but_closed_connections_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            accepted.close()  # the side that closes first is left in TIME_WAIT

    require_free(port, "")


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(LocalBrokerError, match="use 1 to 65535"):
        require_free(port, "")


def test_the_loopback_interface_exists() -> None:
    assert loopback_interface() in [name for _, name in socket.if_nameindex()]
