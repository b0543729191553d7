""" """

from __future__ import annotations

import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pulsar
import pytest

from dispatch.devtools import localbroker
from dispatch.devtools.localbroker import (
    DEFAULT_NAMESPACES,
    IMAGE,
    VERSION,
    Admin,
    AdminError,
    DockerBroker,
    Endpoint,
    LocalBroker,
    LocalBrokerError,
    LocalBrokerUnavailableError,
    build_run_command,
    choose_launcher,
    create_namespaces,
    extract_errors,
    find_free_ports,
    is_container_running,
    is_engine_available,
    process_identity,
    read_tail,
    stop_container,
    wait_until_ready,
)
from tests.helpers.catalogs import unique_topic
from tests.helpers.secured_broker import SecuredBroker
from tests.unit.devtools.localbroker.fakes import (
    AdminStandIn,
    Ending,
    FakeRunner,
    Machine,
    docker_calls,
    handshake,
    write_script,
)


def calls(docker: Path) -> list[str]:
    return [call.split()[0] for call in docker_calls(docker)]


def test_the_command_publishes_on_the_loopback_only_and_the_same_ports_inside() -> None:
    command = build_run_command("box", 16650, 18080)

    published = [command[index + 1] for index, word in enumerate(command) if word == "--publish"]
    assert published == ["127.0.0.1:16650:16650", "127.0.0.1:18080:18080"]
    assert "PULSAR_PREFIX_brokerServicePort=16650" in command
    assert "PULSAR_PREFIX_webServicePort=18080" in command
    assert command[:2] == ["docker", "run"]
    assert "--rm" in command
    assert command[command.index("--name") + 1] == "box"
    assert command[-4] == IMAGE == "apachepulsar/pulsar:4.0.6"
    assert "--volume" not in command


def test_kept_data_are_in_a_volume() -> None:
    command = build_run_command("box", 1, 2, volume="kept")

    assert command[command.index("--volume") + 1] == "kept:/pulsar/data"


@pytest.mark.parametrize(
    ("answer", "available"), [((0, "27.1", ""), True), ((1, "", "daemon?"), False), (FileNotFoundError(), False)]
)
def test_an_engine_is_there_if_it_answers(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str, str] | OSError, available: bool
) -> None:
    monkeypatch.setattr(localbroker, "run", FakeRunner(docker_info=answer))
    assert is_engine_available() is available


def test_a_container_that_is_gone_needs_no_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = FakeRunner(docker_stop=(1, "", "No such container"), docker_inspect=(1, "", "No such object"))
    monkeypatch.setattr(localbroker, "run", gone)
    stop_container("box")
    assert not is_container_running("box")

    stuck = FakeRunner(docker_stop=(1, "", "permission denied"), docker_inspect=(0, "true\n", ""))
    monkeypatch.setattr(localbroker, "run", stuck)
    with pytest.raises(LocalBrokerError, match="permission denied; try: docker rm --force box"):
        stop_container("box")


def test_a_container_is_started_and_stopped(docker: Path) -> None:
    said: list[str] = []

    with DockerBroker.start(report=said.append) as broker:
        assert is_container_running(broker.name)
        assert broker.service_url.startswith("pulsar://127.0.0.1:")
    assert not is_container_running(broker.name)

    assert calls(docker)[:3] == ["image", "pull", "run"]
    assert any(IMAGE in line for line in said)
    broker.stop()  # again: nothing more happens


def test_a_detached_container_lives_on(docker: Path) -> None:
    broker = DockerBroker.start(name="box", volume="kept", detached=True)

    assert is_container_running("box")
    assert "rm" not in calls(docker)
    stop_container("box")
    assert not is_container_running("box")
    assert broker.name == "box"


def test_a_container_that_dies_is_reported_with_its_log_and_removed(docker: Path) -> None:
    (docker / "die").touch()

    with pytest.raises(LocalBrokerError, match="bookie is full"):
        DockerBroker.start()

    assert calls(docker)[-1] == "rm"


def test_a_refusal_is_quoted(docker: Path) -> None:
    (docker / "refuse").touch()

    with pytest.raises(LocalBrokerError, match="no space left"):
        DockerBroker.start()


JAVA_17 = (0, "", 'openjdk version "17.0.15"')


JAVA_11 = (0, "", 'openjdk version "11.0.2"')


ENGINE = (0, "27.1\n", "")


NO_ENGINE = (1, "", "Cannot connect to the Docker daemon")


def put_distribution(cache: Path) -> None:
    home = cache / "pulsar" / f"apache-pulsar-{VERSION}"
    for part in ("bin/pulsar", "conf/standalone.conf", "lib/pulsar.jar"):
        (home / part).parent.mkdir(parents=True, exist_ok=True)
        (home / part).touch()


def test_java_and_maven_are_enough_and_docker_is_not_even_asked(machine: Machine) -> None:
    runner = machine.has("java", "mvn", "docker", java=JAVA_17)

    assert choose_launcher() == "process"
    assert [command[0] for command in runner.commands] == ["/usr/bin/java"]


def test_a_cached_distribution_needs_no_maven(cache: Path, machine: Machine) -> None:
    put_distribution(cache)
    machine.has("java", java=JAVA_17)

    assert choose_launcher() == "process"


@pytest.mark.parametrize("java", [JAVA_17, JAVA_11])
def test_docker_where_maven_or_a_usable_java_is_missing(machine: Machine, java: tuple[int, str, str]) -> None:
    machine.has(*("java", "docker") if java is JAVA_17 else ("java", "mvn", "docker"), java=java, docker_info=ENGINE)

    assert choose_launcher() == "docker"


def test_with_nothing_at_all_the_error_says_what_to_install(machine: Machine) -> None:
    machine.has()

    with pytest.raises(LocalBrokerUnavailableError) as caught:
        choose_launcher()

    text = str(caught.value)
    for part in (
        "Java is not",
        "Maven is not",
        "Docker is not",
        "apt-get install openjdk-17-jre-headless maven",
        "PULSAR_URL",
    ):
        assert part in text
    assert len(caught.value.problems) == 3


def test_a_docker_command_without_an_engine_does_not_help(machine: Machine) -> None:
    machine.has("java", "docker", java=JAVA_17, docker_info=NO_ENGINE)

    with pytest.raises(LocalBrokerUnavailableError, match=r"Maven is not installed.*; no Docker engine responds"):
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


def test_it_returns_once_the_broker_answers(admin_stand_in: AdminStandIn) -> None:
    assert wait_until_ready(Admin(admin_stand_in.url).is_ready, still_there, logs=[]) < 10


def test_it_looks_again_until_then() -> None:
    is_ready = ReadyAfter(looks=3)

    wait_until_ready(is_ready, still_there, logs=[])

    assert is_ready.looks == -1


def test_a_broker_that_ends_is_reported_with_what_it_said(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    log.write_text("x INFO fine\nx ERROR no space left\nx INFO closing\n")

    with pytest.raises(LocalBrokerError, match="ended during its start") as caught:
        wait_until_ready(ReadyAfter(looks=9), lambda _seconds: True, logs=[log, tmp_path / "missing"])

    assert "no space left" in str(caught.value)
    assert "closing" not in str(caught.value)


def test_a_broker_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(LocalBrokerError, match=r"not ready within 0 s:\n\(no log output\)"):
        wait_until_ready(ReadyAfter(looks=10**9), still_there, logs=[tmp_path / "missing"], timeout=0)


def test_a_long_wait_is_reported() -> None:
    ticks = count()
    said: list[str] = []

    wait_until_ready(ReadyAfter(looks=12), still_there, logs=[], report=said.append, clock=lambda: float(next(ticks)))

    assert said == ["still starting: 5 s so far", "still starting: 10 s so far"]


def test_without_a_telling_line_the_last_ones_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(f"line {number}" for number in range(100)))

    shown = extract_errors([log])

    assert "line 99" in shown
    assert "line 88" in shown
    assert "line 87" not in shown


def test_only_the_end_of_a_large_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 1_000_000 + b"\nthe end\n")

    lines = read_tail(log)

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
    write_script(fake, 'echo "Error: Could not create the Java Virtual Machine."; exit 1')

    with pytest.raises(LocalBrokerError, match="Could not create the Java Virtual Machine"):
        LocalBroker.start()

    assert temporary_folders(tmp_path) == []


@pytest.mark.process
def test_a_free_port_that_was_lost_is_no_reason_to_give_up(fake: Path, tmp_path: Path) -> None:
    write_script(fake, 'echo "x ERROR java.net.BindException: Address already in use"; exit 1')
    said: list[str] = []

    with pytest.raises(LocalBrokerError, match="Address already in use"):
        LocalBroker.start(report=said.append)

    assert len((fake / "pids").read_text().split()) == 3
    assert sum("on others" in line for line in said) == 2
    assert temporary_folders(tmp_path) == []


@pytest.mark.process
def test_a_broker_that_is_never_ready_is_ended(fake: Path, tmp_path: Path) -> None:
    write_script(fake, "exec sleep 600")

    with pytest.raises(LocalBrokerError, match=r"not ready within 0\.2 s"):
        LocalBroker.start(ready_timeout=0.2)

    [pid] = map(int, (fake / "pids").read_text().split())
    assert process_identity(pid) is None
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
    write_script(fake, SERVES.format(writes=writes, python=sys.executable))
    said: list[str] = []

    with LocalBroker.start(report=said.append) as broker:
        pids = [int(pid) for pid in (fake / "pids").read_text().split()]
        assert len(pids) == starts
        assert broker.pid == pids[-1]
        assert [process_identity(pid) for pid in pids[:-1]] == [None] * (starts - 1)
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
    write_script(fake, "exec sleep 600")
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, watchdog, folder = owner.stdout.readline().split()
        ends = [Ending(int(pid)), Ending(int(watchdog))]
        assert Path(folder).exists()
        owner.kill()
        assert all(end.within(10) for end in ends)
        assert not Path(folder).exists()


@pytest.mark.process
def test_an_interrupted_start_leaves_nothing(fake: Path, tmp_path: Path) -> None:
    write_script(fake, "exec sleep 600")
    brokers: list[LocalBroker] = []

    def interrupt(broker: LocalBroker) -> None:
        assert broker.data_dir.exists()
        brokers.append(broker)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LocalBroker.start(on_spawn=interrupt)

    assert not brokers[0].is_alive()
    assert temporary_folders(tmp_path) == []


def test_ports_that_were_asked_for_must_be_free_and_two(fake: Path) -> None:
    [port] = find_free_ports(1)
    with pytest.raises(LocalBrokerError, match="cannot serve both clients and the admin interface"):
        LocalBroker.start(port=port, web_port=port)

    with subprocess.Popen([sys.executable, "-c", LISTEN, str(port)], stdout=subprocess.PIPE) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == b"listening\n"
        with pytest.raises(LocalBrokerError, match=f"port {port} .* is in use"):
            LocalBroker.start(port=port)
        listener.kill()


LISTEN = """
import signal, socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    print("listening", flush=True)
    signal.pause()
"""


def test_a_detached_broker_needs_a_folder_for_its_data() -> None:
    with pytest.raises(ValueError, match="data_dir"):
        LocalBroker.start(detached=True)


def client_of(url: str, **options: Any) -> pulsar.Client:
    return pulsar.Client(
        url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **{"operation_timeout_seconds": 10, **options}
    )


@pytest.mark.pulsar
def test_the_admin_interface_of_a_genuine_broker(pulsar_endpoint: Endpoint) -> None:
    admin, topic = pulsar_endpoint.admin(), f"non-persistent://tg/request/{unique_topic()}"
    assert set(admin.namespaces("tg")) >= set(DEFAULT_NAMESPACES)
    create_namespaces(admin, ["tg/request", "acme/tools"])
    assert "acme/tools" in admin.namespaces("acme")
    client = client_of(pulsar_endpoint.service_url)
    try:
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic).send(b"hello")
        assert consumer.receive(10_000).data() == b"hello"
        assert topic in admin.topics("tg/request")
        assert admin.stats(topic)["subscriptions"]["s"]["consumers"][0]["availablePermits"] > 0
        with pytest.raises(AdminError, match="not found") as caught:
            admin.stats(f"{topic}-unknown")
        assert caught.value.status == 404
    finally:
        client.close()


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
    assert b"Failed to authenticate" in handshake(secured_broker.service_url, text)
    authentication = None if text is None else pulsar.AuthenticationToken(text)
    client = client_of(secured_broker.service_url, authentication=authentication, operation_timeout_seconds=1)
    try:
        with pytest.raises(pulsar.PulsarException):
            client.create_producer("non-persistent://public/default/secret")
    finally:
        client.close()
    with pytest.raises(AdminError, match="use the token of a superuser") as caught:
        Admin(secured_broker.web_url, text).request("GET", "tenants")
    assert caught.value.status == 401


@pytest.mark.pulsar
def test_a_stranger_with_a_good_token_may_do_nothing(secured_broker: SecuredBroker) -> None:
    token = secured_broker.token("stranger")
    assert b"Pulsar Server" in handshake(secured_broker.service_url, token)
    client = client_of(secured_broker.service_url, authentication=pulsar.AuthenticationToken(token))
    try:
        with pytest.raises(pulsar.AuthorizationError):
            client.create_producer("non-persistent://public/default/secret")
    finally:
        client.close()
    with pytest.raises(AdminError) as caught:
        Admin(secured_broker.web_url, token).request("GET", "tenants")
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
