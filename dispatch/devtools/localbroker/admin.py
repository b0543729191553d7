"""Pulsar's admin interface over HTTP: the few calls dispatch needs. The Python client has none."""

from __future__ import annotations

import ipaddress
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable
from http.client import HTTPException, HTTPMessage
from typing import IO, Any
from urllib.parse import quote, urlsplit

from dispatch.devtools.localbroker.errors import AdminError

#: What TrustGraph, and therefore dispatch, expects: a tenant and its four namespaces.
DEFAULT_NAMESPACES = ("tg/request", "tg/response", "tg/flow", "tg/notify")

_LARGEST_ANSWER = 16 * 1024 * 1024  # bytes; the statistics of a topic with thousands of consumers stay below


class Admin:
    """A client of one broker's admin interface. It keeps no connection open; use it from any thread.

    Args:
        web_url: for instance `http://127.0.0.1:8080`.
        token: a super user's (or tenant administrator's) token, where the broker asks for one.
        ca_file: certificates to trust for https, in PEM; the system's by default.
        timeout: seconds for one request. 10: a local broker answers in milliseconds, a busy one in a second.

    Every method that talks to the broker raises `AdminError` if it refuses or does not answer.
    """

    def __init__(
        self, web_url: str, token: str | None = None, *, ca_file: str | None = None, timeout: float = 10.0
    ) -> None:
        parts = urlsplit(web_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{web_url!r} is no admin address: it looks like http://127.0.0.1:8080")
        self.web_url = web_url.rstrip("/")
        self._token = token
        self._timeout = timeout
        handlers: list[urllib.request.BaseHandler] = [_SameMethodRedirect()]
        if _is_loopback(parts.hostname):
            handlers.append(urllib.request.ProxyHandler({}))  # no proxy reaches our loopback
        if parts.scheme == "https":
            handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_file)))
        self._opener = urllib.request.build_opener(*handlers)

    def ready(self) -> bool:
        """Whether the broker is up and its default namespace is served. Raises nothing for a broker that is not."""
        try:
            self._request("GET", "namespaces/public/default")
        except AdminError:
            return False
        return True

    def clusters(self) -> list[str]:
        """The names of the clusters; one, `standalone`, on a local broker."""
        return _names(self._request("GET", "clusters"))

    def tenants(self) -> list[str]:
        """The names of all tenants."""
        return _names(self._request("GET", "tenants"))

    def namespaces(self, tenant: str) -> list[str]:
        """The tenant's namespaces as `tenant/namespace`; `AdminError` 404 if there is no such tenant."""
        return _names(self._request("GET", f"namespaces/{_segment(tenant)}"))

    def topics(self, namespace: str) -> list[str]:
        """Whole names of the topics of `tenant/namespace`, persistent and non-persistent, without Pulsar's own."""
        return sorted(_names(self._request("GET", f"namespaces/{_namespace(namespace)}/topics?mode=ALL")))

    def stats(self, topic: str) -> dict[str, Any]:
        """A topic's statistics, by its whole name, as the broker gives them.

        For a non-persistent topic, `publishers[].msgDropRate`, `subscriptions.*.msgDropRate` and
        `subscriptions.*.consumers[].availablePermits` are the only place where silently dropped messages show.
        """
        kind, separator, name = topic.partition("://")
        parts = name.split("/", 2)
        if not separator or kind not in ("persistent", "non-persistent") or len(parts) != 3 or not all(parts):
            raise ValueError(f"{topic!r} is no whole topic name: it looks like non-persistent://tg/request/joke")
        answer = self._request("GET", f"{kind}/{'/'.join(_segment(part) for part in parts)}/stats")
        if not isinstance(answer, dict):
            raise AdminError(200, "the answer is no JSON object", f"GET {kind} stats")
        return answer

    def ensure_tenant(self, tenant: str) -> bool:
        """Make the tenant, allowed on every cluster, unless it is there. Whether it was made."""
        try:
            self.namespaces(tenant)  # needs no super user, unlike a list of the tenants
        except AdminError as error:
            if error.status != 404:
                raise
        else:
            return False
        return self._create(f"tenants/{_segment(tenant)}", {"adminRoles": [], "allowedClusters": self.clusters()})

    def ensure_namespace(self, namespace: str) -> bool:
        """Make the namespace, given as `tenant/namespace`, unless it is there. Whether it was made."""
        path = _namespace(namespace)
        if namespace in self.namespaces(namespace.partition("/")[0]):
            return False
        return self._create(f"namespaces/{path}", {})

    def _create(self, path: str, body: dict[str, Any]) -> bool:
        try:
            self._request("PUT", path, body)
        except AdminError as error:
            if error.status == 409:  # somebody else was quicker
                return False
            raise
        return True

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        url = f"{self.web_url}/admin/v2/{path}"
        request = urllib.request.Request(url, method=method, headers={"Accept": "application/json"})
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        what = f"{method} {url}"
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                raw = answer.read(_LARGEST_ANSWER + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise AdminError(error.code, _reason(error), what) from error
        except (OSError, HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            raise AdminError(None, str(cause) or type(cause).__name__, what) from error
        if len(raw) > _LARGEST_ANSWER:
            raise AdminError(200, f"the answer is longer than {_LARGEST_ANSWER} bytes", what)
        if not raw:
            return None
        try:
            return json.loads(raw)
        except ValueError as error:
            raise AdminError(200, "the answer is no JSON: is this Pulsar's admin address?", what) from error


def prepare(admin: Admin, namespaces: Iterable[str] = DEFAULT_NAMESPACES) -> list[str]:
    """Make what is missing of these namespaces (`tenant/namespace`) and their tenants; returns what was made.

    Topics make themselves, tenants and namespaces never do. Safe to call again, and from several processes at once.
    """
    wanted = list(dict.fromkeys(namespaces))
    made = [
        tenant for tenant in dict.fromkeys(name.partition("/")[0] for name in wanted) if admin.ensure_tenant(tenant)
    ]
    return made + [name for name in wanted if admin.ensure_namespace(name)]


class _SameMethodRedirect(urllib.request.HTTPRedirectHandler):
    """A broker that does not own a namespace redirects (307) to the one that does; urllib follows only for GET."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if code not in (307, 308) or req.get_method() == "GET":
            return super().redirect_request(req, fp, code, msg, headers, newurl)
        return urllib.request.Request(
            newurl, data=req.data, headers=req.headers, method=req.get_method(), unverifiable=True
        )


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        text = error.read(4096).decode(errors="replace")
    except (OSError, HTTPException):
        text = ""
    try:
        text = str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        if "<" in text:  # an HTML page says nothing the status does not
            text = ""
    return " ".join(text.split())[:500] or str(error.reason)


def _names(answer: Any) -> list[str]:
    if not isinstance(answer, list):
        raise AdminError(200, "the answer is no JSON list: is this Pulsar's admin address?")
    return [str(name) for name in answer]


def _namespace(name: str) -> str:
    tenant, separator, namespace = name.partition("/")
    if not tenant or not separator or not namespace or "/" in namespace:
        raise ValueError(f"{name!r} is no namespace: it looks like tg/request")
    return f"{_segment(tenant)}/{_segment(namespace)}"


def _segment(text: str) -> str:
    return quote(text, safe="")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
