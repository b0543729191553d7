from __future__ import annotations

from pathlib import Path

import pytest

from dispatch.devtools.localbroker import (
    DEFAULT_NAMESPACES,
    AdminError,
    LocalBrokerError,
    broker,
    provide_broker,
    read_environment,
)
from tests.unit.devtools.localbroker.fakes import AdminStandIn, docker_calls


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
    environ = {
        "PULSAR_URL": "pulsar://127.0.0.1:1",
        "PULSAR_ADMIN_URL": admin_stand_in.url,
        "PULSAR_TOKEN": "sesame",
    }

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
    monkeypatch.setattr(broker, "choose_launcher", lambda: "docker")

    with provide_broker(environ={}) as endpoint:
        assert endpoint.broker is None
        assert set(endpoint.admin().namespaces("tg")) == set(DEFAULT_NAMESPACES)

    with pytest.raises(AdminError):
        endpoint.admin().clusters()
    assert docker_calls(docker)[-1].startswith("stop ")
