"""Client of Pulsar's admin interface over HTTP, with the calls that dispatch needs; pulsar-client has none."""

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

#: The namespaces of TrustGraph, which dispatch uses as well.
DEFAULT_NAMESPACES = ("tg/request", "tg/response", "tg/flow", "tg/notify")

_MAX_RESPONSE_BYTES = 16 * 1024 * 1024  # statistics of a topic with thousands of consumers are smaller


class Admin:
    """Client of one broker's admin interface. It keeps no connection open and is thread-safe.

    Args:
        web_url: for instance `http://127.0.0.1:8080`.
        token: token of a superuser or tenant administrator, if the broker requires one.
        ca_file: trusted CA certificates for https, in PEM; default: those of the system.
        timeout: seconds for one request. 10: a local broker responds in milliseconds, a busy one in a second.

    Every request raises `AdminError` if the broker rejects it or does not respond.
    """

    def __init__(
        self, web_url: str, token: str | None = None, *, ca_file: str | None = None, timeout: float = 10.0
    ) -> None:
        parts = urlsplit(web_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{web_url!r} is not an admin URL: use for example http://127.0.0.1:8080")
        self.web_url = web_url.rstrip("/")
        self._token = token
        self._timeout = timeout
        handlers: list[urllib.request.BaseHandler] = [_SameMethodRedirect()]
        if _is_loopback(parts.hostname):
            handlers.append(urllib.request.ProxyHandler({}))  # a proxy cannot reach loopback
        if parts.scheme == "https":
            handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_file)))
        self._opener = urllib.request.build_opener(*handlers)

    def is_ready(self) -> bool:
        """Return whether the broker serves its default namespace; never raises `AdminError`."""
        try:
            self._request("GET", "namespaces/public/default")
        except AdminError:
            return False
        return True

    def clusters(self) -> list[str]:
        """List the clusters; a local broker has one, `standalone`."""
        return _names(self._request("GET", "clusters"))

    def tenants(self) -> list[str]:
        """List the tenants."""
        return _names(self._request("GET", "tenants"))

    def namespaces(self, tenant: str) -> list[str]:
        """List the tenant's namespaces as `tenant/namespace`; raises `AdminError` 404 for an unknown tenant."""
        return _names(self._request("GET", f"namespaces/{_segment(tenant)}"))

    def topics(self, namespace: str) -> list[str]:
        """List the full names of the topics of `tenant/namespace`, without Pulsar's system topics."""
        return sorted(_names(self._request("GET", f"namespaces/{_namespace(namespace)}/topics?mode=ALL")))

    def stats(self, topic: str) -> dict[str, Any]:
        """Return the statistics of a topic, given by its full name, as the broker reports them.

        For a non-persistent topic, `publishers[].msgDropRate`, `subscriptions.*.msgDropRate` and
        `subscriptions.*.consumers[].availablePermits` are the only indication of silently dropped messages.
        """
        kind, separator, name = topic.partition("://")
        parts = name.split("/", 2)
        if not separator or kind not in ("persistent", "non-persistent") or len(parts) != 3 or not all(parts):
            raise ValueError(f"{topic!r} is not a full topic name: use for example non-persistent://tg/request/joke")
        response = self._request("GET", f"{kind}/{'/'.join(_segment(part) for part in parts)}/stats")
        if not isinstance(response, dict):
            raise AdminError(200, "the response is not a JSON object", f"GET {kind} stats")
        return response

    def ensure_tenant(self, tenant: str) -> bool:
        """Create the tenant, allowed on every cluster, if it does not exist; return whether it was created."""
        try:
            self.namespaces(tenant)  # needs no superuser, unlike the list of tenants
        except AdminError as error:
            if error.status != 404:
                raise
        else:
            return False
        return self._create(f"tenants/{_segment(tenant)}", {"adminRoles": [], "allowedClusters": self.clusters()})

    def ensure_namespace(self, namespace: str) -> bool:
        """Create the namespace `tenant/namespace` if it does not exist; return whether it was created."""
        path = _namespace(namespace)
        if namespace in self.namespaces(namespace.partition("/")[0]):
            return False
        return self._create(f"namespaces/{path}", {})

    def _create(self, path: str, body: dict[str, Any]) -> bool:
        try:
            self._request("PUT", path, body)
        except AdminError as error:
            if error.status == 409:  # created concurrently
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
            with self._opener.open(request, timeout=self._timeout) as response:
                raw = response.read(_MAX_RESPONSE_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise AdminError(error.code, _reason(error), what) from error
        except (OSError, HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            raise AdminError(None, str(cause) or type(cause).__name__, what) from error
        if len(raw) > _MAX_RESPONSE_BYTES:
            raise AdminError(200, f"the response is longer than {_MAX_RESPONSE_BYTES} bytes", what)
        if not raw:
            return None
        try:
            return json.loads(raw)
        except ValueError as error:
            raise AdminError(200, "the response is not JSON: check that this is Pulsar's admin URL", what) from error


def create_namespaces(admin: Admin, namespaces: Iterable[str] = DEFAULT_NAMESPACES) -> list[str]:
    """Create missing namespaces (`tenant/namespace`) and tenants; return the created ones.

    The broker creates topics on use, but not tenants and namespaces. Idempotent, also from several processes at once.
    """
    wanted = list(dict.fromkeys(namespaces))
    created = [
        tenant for tenant in dict.fromkeys(name.partition("/")[0] for name in wanted) if admin.ensure_tenant(tenant)
    ]
    return created + [name for name in wanted if admin.ensure_namespace(name)]


class _SameMethodRedirect(urllib.request.HTTPRedirectHandler):
    """Follows redirects (307) to the broker that owns a namespace for all methods; urllib follows only GET."""

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
        if "<" in text:  # an HTML page adds nothing to the status
            text = ""
    return " ".join(text.split())[:500] or str(error.reason)


def _names(response: Any) -> list[str]:
    if not isinstance(response, list):
        raise AdminError(200, "the response is not a JSON list: check that this is Pulsar's admin URL")
    return [str(name) for name in response]


def _namespace(name: str) -> str:
    tenant, separator, namespace = name.partition("/")
    if not tenant or not separator or not namespace or "/" in namespace:
        raise ValueError(f"{name!r} is not a namespace: use for example tg/request")
    return f"{_segment(tenant)}/{_segment(namespace)}"


def _segment(text: str) -> str:
    return quote(text, safe="")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
