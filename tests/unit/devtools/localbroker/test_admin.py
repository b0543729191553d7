from __future__ import annotations

import json

import pytest

from dispatch.devtools.localbroker import DEFAULT_NAMESPACES, Admin, AdminError, create_namespaces
from tests.unit.devtools.localbroker.fakes import AdminStandIn, serve_admin


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

    assert Admin(admin_stand_in.url, "sesame").tenants() == ["public"]
    with pytest.raises(AdminError, match="HTTP 401: Authentication required; use the token of a superuser") as caught:
        Admin(admin_stand_in.url).tenants()

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
