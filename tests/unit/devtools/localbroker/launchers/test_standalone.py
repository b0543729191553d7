from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from dispatch.devtools.localbroker import (
    DEFAULT_NAMESPACES,
    Admin,
    AdminError,
    LocalBroker,
    LocalBrokerError,
    PortInUseError,
    create_namespaces,
    find_free_ports,
    provide_broker,
)
from dispatch.devtools.localbroker.processes import process_identity
from tests.unit.devtools.localbroker.fakes import Ending, handshake, write_script

# A broker with security in a process of its own: started from a thread that ends, as asyncio.to_thread would.
OWNER = """
import json, signal, threading
from dispatch.devtools.localbroker import LocalBroker
brokers = []
thread = threading.Thread(target=lambda: brokers.append(LocalBroker.start(security=True)))
thread.start()
thread.join()
[broker] = brokers
print(json.dumps({
    "pid": broker.pid, "watchdog": broker.process.watchdog_pid, "data_dir": str(broker.data_dir),
    "service_url": broker.service_url, "service_url_tls": broker.service_url_tls, "web_url": broker.web_url,
    "ca_file": str(broker.ca_file), "admin": broker.token(), "stranger": broker.token("stranger"),
}), flush=True)
signal.pause()
"""


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
        with pytest.raises(PortInUseError, match=str(port)):
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


@pytest.fixture(scope="module")
def secure(distribution: Path) -> Iterator[dict[str, Any]]:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        line = owner.stdout.readline()
        try:
            yield {"owner": owner, **json.loads(line)}
        finally:
            owner.kill()


@pytest.mark.pulsar
def test_a_genuine_broker_from_start_to_stop(distribution: Path) -> None:
    said: list[str] = []
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PULSAR_")}
    with provide_broker(said.append, environ=environ) as endpoint:
        broker, admin = endpoint.broker, endpoint.admin()
        assert broker is not None
        assert admin.clusters() == ["standalone"]
        assert set(admin.namespaces("tg")) == set(DEFAULT_NAMESPACES)
        assert create_namespaces(admin, ["tg/request", "acme/tools"]) == ["acme", "acme/tools"]

        client = client_of(endpoint.service_url)
        try:
            consumer = client.subscribe("non-persistent://tg/request/joke:v1", "s")
            client.create_producer("non-persistent://tg/request/joke:v1").send(b"hello")
            assert consumer.receive(10_000).data() == b"hello"
            assert admin.topics("tg/request") == ["non-persistent://tg/request/joke:v1"]
            stats = admin.stats("non-persistent://tg/request/joke:v1")
            assert stats["subscriptions"]["s"]["consumers"][0]["availablePermits"] > 0
            with pytest.raises(AdminError, match="not found") as caught:
                admin.stats("non-persistent://tg/request/unknown")
            assert caught.value.status == 404
        finally:
            client.close()

        broker.pause()
        assert not Admin(endpoint.web_url, timeout=0.3).is_ready()
        assert broker.is_alive()
        broker.resume()
        assert admin.is_ready()

        first, ending, urls = broker.pid, Ending(broker.pid), (broker.service_url, broker.web_url)
        broker.kill()
        assert ending.within(0)
        assert not broker.is_alive()
        assert not admin.is_ready()
        with pytest.raises(LocalBrokerError, match="has ended"):
            broker.pause()
        broker.restart()
        assert broker.pid != first
        assert (broker.service_url, broker.web_url) == urls
        assert "acme/tools" in admin.namespaces("acme")

        last, data_dir, watchdog = broker.pid, broker.data_dir, broker.process.watchdog_pid
        assert data_dir.exists()
    assert process_identity(last) is None
    assert process_identity(watchdog or 0) is None
    assert not data_dir.exists()
    broker.stop()  # again: nothing more happens
    assert said[-1].endswith(endpoint.service_url)


@pytest.mark.pulsar
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_the_right_token_is_let_in(secure: dict[str, Any], tls: bool) -> None:
    create_namespaces(Admin(secure["web_url"], secure["admin"]))
    client = client_of(
        secure["service_url_tls" if tls else "service_url"],
        authentication=pulsar.AuthenticationToken(secure["admin"]),
        tls_trust_certs_file_path=secure["ca_file"] if tls else None,
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
def test_a_missing_or_wrong_token_is_refused(secure: dict[str, Any], token: str) -> None:
    header, claims, _ = secure["admin"].split(".")
    text = f"{header}.{claims}.{'A' * 43}" if token == "forged" else None

    # The broker says so at once. pulsar-client 3.13 does not pass it on: it tries again until its operation timeout.
    assert b"Failed to authenticate" in handshake(secure["service_url"], text)
    authentication = None if text is None else pulsar.AuthenticationToken(text)
    client = client_of(secure["service_url"], authentication=authentication, operation_timeout_seconds=1)
    try:
        with pytest.raises(pulsar.PulsarException):
            client.create_producer("non-persistent://public/default/secret")
    finally:
        client.close()
    with pytest.raises(AdminError, match="use the token of a superuser") as caught:
        Admin(secure["web_url"], text).tenants()
    assert caught.value.status == 401


@pytest.mark.pulsar
def test_a_stranger_with_a_good_token_may_do_nothing(secure: dict[str, Any]) -> None:
    assert b"Pulsar Server" in handshake(secure["service_url"], secure["stranger"])
    client = client_of(secure["service_url"], authentication=pulsar.AuthenticationToken(secure["stranger"]))
    try:
        with pytest.raises(pulsar.AuthorizationError):
            client.create_producer("non-persistent://public/default/secret")
    finally:
        client.close()
    with pytest.raises(AdminError) as caught:
        Admin(secure["web_url"], secure["stranger"]).tenants()
    assert caught.value.status in (401, 403)


@pytest.mark.pulsar
def test_a_client_that_does_not_trust_our_authority_is_not_served(secure: dict[str, Any]) -> None:
    client = client_of(secure["service_url_tls"], authentication=pulsar.AuthenticationToken(secure["admin"]))
    try:
        with pytest.raises(pulsar.PulsarException):
            client.create_producer("non-persistent://public/default/secret")
    finally:
        client.close()


@pytest.mark.pulsar
def test_it_ends_with_its_owner_even_by_kill_9(secure: dict[str, Any]) -> None:
    broker, watchdog = Ending(secure["pid"]), Ending(secure["watchdog"])
    assert Path(secure["data_dir"]).exists()

    os.kill(secure["owner"].pid, signal.SIGKILL)

    assert broker.within(10)
    assert watchdog.within(10)
    assert not Path(secure["data_dir"]).exists()
