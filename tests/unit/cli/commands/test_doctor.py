"""``dispatch doctor``: what is missing, and the command that mends it."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatch.catalog import Catalog
from dispatch.cli.doctor import default_admin_url, list_namespaces
from dispatch.devtools.localbroker import DetachedBroker, Endpoint
from tests.helpers.cli_processes import WAIT_S, started
from tests.helpers.secured_broker import SUPER_USER, SecuredBroker
from tests.unit.cli.conftest import Ended, Run, write_catalog

NOBODY = "http://127.0.0.1:1"


def statuses(end: Ended) -> dict[str, str]:
    return {check["name"]: check["status"] for check in end.json["checks"]}


def finding(end: Ended, name: str) -> dict[str, Any]:
    (found,) = [check for check in end.json["checks"] if check["name"] == name]
    return dict(found)


@contextlib.contextmanager
def no_pulsar() -> Iterator[str]:
    """The URL of a server that hangs up on everyone."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        yield f"pulsar://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(WAIT_S)


def test_without_a_broker_it_names_the_command_that_starts_one(run: Run) -> None:
    end = run("doctor", "--broker", "pulsar://127.0.0.1:1")
    assert end.code == 1
    assert "failed   connection: nothing answers at 127.0.0.1:1" in end.out
    assert "fix: dispatch broker start" in end.out
    assert end.out.endswith("1 failed.\n")


def test_something_else_at_that_port(run: Run) -> None:
    with no_pulsar() as url:
        end = run("doctor", "--broker", url, "--admin", NOBODY, "--json")
    assert end.code == 1
    assert statuses(end) == {"connection": "ok", "admin interface": "skipped", "handshake": "failed"}
    assert "does not speak the Pulsar protocol" in finding(end, "handshake")["detail"]
    assert "pulsar+ssl://" in finding(end, "handshake")["fix"]


def test_repair_without_the_admin_interface_is_a_failure(run: Run) -> None:
    with no_pulsar() as url:
        end = run("doctor", "--broker", url, "--admin", NOBODY, "--fix", "--json")
    assert end.code == 1
    assert statuses(end)["repair"] == "failed"
    assert "--admin URL" in finding(end, "repair")["fix"]


@pytest.mark.parametrize("address", ["localhost:6650", "pulsar://"])
def test_an_address_that_is_none(run: Run, address: str) -> None:
    end = run("doctor", "--broker", address)
    assert end.code == 2
    assert "is not a broker address" in end.err


def test_an_admin_address_that_is_none(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_ADMIN", "0.0.0.0:9464")  # where other commands listen: not the broker's interface
    assert run("doctor", "--broker", "pulsar://127.0.0.1:1", "--json").json["admin"] == "http://127.0.0.1:8080"
    end = run("doctor", "--broker", "pulsar://127.0.0.1:1", "--admin", "localhost:8080")
    assert end.code == 2
    assert "is not an admin URL" in end.err
    assert "change --admin" in end.err


def test_mistakes_in_the_catalogue_are_one_of_its_lines(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools", service="another")
    end = run("doctor", "--broker", "pulsar://127.0.0.1:1", "--json")
    assert statuses(end) == {"catalogue": "failed", "connection": "failed"}
    assert finding(end, "catalogue")["fix"] == "dispatch check tools"


@pytest.mark.parametrize(
    ("broker", "admin"),
    [
        ("pulsar://example.org", "http://example.org:8080"),
        ("pulsar+ssl://one:1,two:2", "http://one:8080"),
        ("pulsar://[::1]:6650", "http://[::1]:8080"),
    ],
)
def test_the_admin_interface_is_looked_for_on_the_brokers_host(
    monkeypatch: pytest.MonkeyPatch, broker: str, admin: str
) -> None:
    monkeypatch.setattr("dispatch.devtools.localbroker.status", lambda: None)
    assert default_admin_url(broker) == admin


def test_that_of_our_own_broker_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    state = DetachedBroker("process", "pulsar://127.0.0.1:7650", "http://127.0.0.1:7080")
    monkeypatch.setattr("dispatch.devtools.localbroker.status", lambda: state)
    assert default_admin_url("pulsar://localhost:7650") == "http://127.0.0.1:7080"
    assert default_admin_url("pulsar://127.0.0.1:7650") == "http://127.0.0.1:7080"
    assert default_admin_url("pulsar://localhost:6650") == "http://localhost:8080"
    assert default_admin_url("pulsar://elsewhere:7650") == "http://elsewhere:8080"


def test_namespaces_are_those_of_the_catalogues_topics() -> None:
    assert list_namespaces(None) == ["tg/request", "tg/response", "tg/flow", "tg/notify"]
    queues = {"request-queue": "non-persistent://a/b/x", "response-queue": "persistent://a/c/x"}
    further = {"id": "2", "request-queue": "non-persistent://d/e/x", "response-queue": "non-persistent://a/b/y"}
    assert list_namespaces(Catalog.of([{"id": "s", **queues, "instances": [further]}])) == ["a/b", "a/c", "d/e"]


# -- on a genuine broker --------------------------------------------------------------------------------------------


@pytest.fixture
def options(pulsar_endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Where the broker is."""
    if pulsar_endpoint.token is not None:
        monkeypatch.setenv("DISPATCH_TOKEN", pulsar_endpoint.token)
    return ("--broker", pulsar_endpoint.service_url, "--admin", pulsar_endpoint.web_url)


@pytest.fixture
def missing(tmp_path: Path, pulsar_endpoint: Endpoint) -> Iterator[str]:
    """A tenant that is not there, and a catalogue in ``tools/`` that needs it."""
    tenant = f"doctor-{secrets.token_hex(4)}"
    folder = write_catalog(tmp_path / "tools")
    service = folder / "tool-service" / "joke-service.json"
    service.write_text(service.read_text().replace("://tg/", f"://{tenant}/"))
    yield tenant
    namespaces = [f"namespaces/{tenant}/request", f"namespaces/{tenant}/response"]
    for path in (*namespaces, f"tenants/{tenant}"):
        request = urllib.request.Request(f"{pulsar_endpoint.web_url}/admin/v2/{path}", method="DELETE")
        if pulsar_endpoint.token is not None:
            request.add_header("Authorization", f"Bearer {pulsar_endpoint.token}")
        with contextlib.suppress(urllib.error.HTTPError):  # a test that did not make it has nothing to take away
            urllib.request.urlopen(request, timeout=WAIT_S).close()


@pytest.mark.pulsar
def test_where_nothing_is_missing_all_is_well(run: Run, options: tuple[str, ...]) -> None:
    end = run("doctor", *options)
    assert (end.code, end.err) == (0, "")
    assert end.out.endswith("All checks passed.\n")
    as_json = run("doctor", *options, "--json")
    assert as_json.code == 0
    assert as_json.json["ok"] is True
    assert statuses(as_json) == dict.fromkeys(
        (
            "connection",
            "admin interface",
            "handshake",
            "tenant tg",
            "namespace tg/request",
            "namespace tg/response",
            "namespace tg/flow",
            "namespace tg/notify",
            "round trip tg/request → tg/response",
        ),
        "ok",
    )


@pytest.mark.pulsar
def test_a_tenant_that_is_missing_is_told_and_made(run: Run, options: tuple[str, ...], missing: str) -> None:
    end = run("doctor", *options, "--json")
    assert end.code == 1
    assert statuses(end) == {
        "catalogue": "ok",
        "connection": "ok",
        "admin interface": "ok",
        "handshake": "ok",
        f"tenant {missing}": "failed",
        f"namespace {missing}/request": "failed",
        f"namespace {missing}/response": "failed",
        f"round trip {missing}/request → {missing}/response": "skipped",
        "service joke-service": "warning",
        "sessions of joke-service": "skipped",
    }
    assert f"pulsar-admin tenants create {missing}" in finding(end, f"tenant {missing}")["fix"]
    assert "dispatch doctor --fix" in finding(end, f"namespace {missing}/request")["fix"]
    mended = run("doctor", *options, "--fix", "--json")
    assert mended.code == 0, mended.out
    assert finding(mended, "repair")["detail"] == f"created {missing}, {missing}/request, {missing}/response"
    assert statuses(mended)[f"round trip {missing}/request → {missing}/response"] == "ok"
    assert run("doctor", *options, "--fix", "--json").code == 0


@pytest.mark.pulsar
def test_without_the_admin_interface_the_broker_itself_tells(
    run: Run, pulsar_endpoint: Endpoint, options: tuple[str, ...], missing: str
) -> None:
    end = run("doctor", "--broker", pulsar_endpoint.service_url, "--admin", NOBODY, "--json")
    assert end.code == 1
    assert statuses(end)["admin interface"] == "skipped"
    found = finding(end, f"namespace {missing}/request")
    assert (found["status"], found["detail"]) == ("failed", "does not exist")
    assert f"pulsar-admin namespaces create {missing}/request" in found["fix"]
    assert f"pulsar-admin tenants create {missing}" in found["fix"]


@pytest.mark.pulsar
def test_who_listens(run: Run, options: tuple[str, ...], tmp_path: Path) -> None:
    topic = f"cli-{secrets.token_hex(6)}"
    folder = write_catalog(tmp_path / "tools", topic=topic)
    nobody = finding(run("doctor", *options, "--json"), "service joke-service")
    assert nobody["status"] == "warning"
    assert nobody["fix"] == f"dispatch serve MODULE:CLASS --service {topic}"
    (tmp_path / "jokes.py").write_text(
        "class Joke:\n    async def invoke(self, config, arguments):\n        return ''\n"
    )
    with started("serve", f"{tmp_path}/jokes.py:Joke", "--service", topic, *options[:2]) as service:
        service.err.wait_for("Ctrl-C drains")
        end = run("doctor", *options, "--catalog", str(folder), "--json")
        somebody = finding(end, "service joke-service")
    (session,) = finding(end, "sessions of joke-service")["sessions"]
    assert session["instance"].startswith(topic)
    assert 0 < session["rtt_ms"] < 1000
    assert (somebody["status"], somebody["detail"]) == ("ok", f"1 consuming non-persistent://tg/request/{topic}")


@pytest.mark.pulsar
def test_tokens_and_certificates(
    run: Run, secured_broker: SecuredBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_catalog(tmp_path / "catalogue")
    (tmp_path / "right").write_text(secured_broker.token(SUPER_USER))
    (tmp_path / "wrong").write_text("not-a-token")
    (tmp_path / "stranger").write_text(secured_broker.token("stranger"))
    plain = ("--broker", secured_broker.service_url, "--admin", secured_broker.web_url)
    tls = ("--broker", secured_broker.service_url_tls, "--admin", secured_broker.web_url)
    trusted = ("--trust-certs", str(secured_broker.ca_file))

    def checks(*arguments: str) -> dict[str, Any]:
        return {check["name"]: check for check in run("doctor", *arguments, "--json").json["checks"]}

    assert run("doctor", *plain, "--token-file", "right", "--json").json["ok"] is True
    assert run("doctor", *tls, *trusted, "--token-file", "right", "--json").json["ok"] is True
    for token in ((), ("--token-file", "wrong")):
        handshake = checks(*plain, *token)["handshake"]
        assert handshake["status"] == "failed"
        assert "DISPATCH_TOKEN" in handshake["fix"]
    assert "--trust-certs" in checks(*tls, "--token-file", "right")["handshake"]["fix"]
    foreign = checks(*plain, "--token-file", "stranger")["namespace tg/request"]
    assert foreign["status"] == "failed"
    assert "whose role has permission for tg/request" in foreign["fix"]

    monkeypatch.setenv("DISPATCH_TOKEN_FILE", "wrong")
    end = run("call", "tell-joke", "topic=cats", "--catalog", "catalogue", "--broker", secured_broker.service_url)
    assert end.code == 4
    assert "outcome transport · type unauthorized" in end.err
    assert "not-a-token" not in end.err
