"""The function that creates a dispatcher."""

from __future__ import annotations

from pathlib import Path

from dispatch._internal.arguments import explain_keywords
from dispatch.catalog.live.source_list import CatalogLike
from dispatch.dispatcher.dispatcher import Dispatcher
from dispatch.permissions import Grants, GrantsFunction
from dispatch.policy import DEFAULT_POLICY, PolicyLike
from dispatch.telemetry.settings import DEFAULT_TELEMETRY, Telemetry
from dispatch.transports import Security, open_transport


@explain_keywords
def connect(
    broker: str,
    catalog: CatalogLike | None = None,
    *,
    policy: PolicyLike = DEFAULT_POLICY,
    grants: Grants | GrantsFunction | None = None,
    approvals: str | Path | None = None,
    security: Security | None = None,
    publish_window: int = 64,
    client_id: str | None = None,
    telemetry: Telemetry = DEFAULT_TELEMETRY,
) -> Dispatcher:
    """Create a dispatcher on ``broker``; use it with ``async with``, or ``await start()`` and ``close()``.

    Args:
        broker: ``pulsar://HOST:PORT``, ``pulsar+ssl://HOST:PORT``, or ``memory://[NAME]`` (embedded, in process).
        catalog: a :class:`Catalog`, a folder with ``tool-service/ID.json`` and ``tool/NAME.json``, a source
            (:class:`Folder`, :class:`TrustGraphConfig`, :class:`Functions`, :class:`ToolPackage`), or a list of them:
            where two have a tool of the same name, that of the first one is used.
        policy: defaults under the policies of services and tools: a :class:`Policy`, or an object of its keys as in a
            descriptor, over the defaults: ``{"timeout": 10}``.
        grants: permissions of users: :class:`Grants`, or a callable ``user -> list of grants``, also a coroutine function,
            asked at most once a minute for each user, for at most 1 s. None: tools with permissions are refused.
        approvals: file of the approved definitions of sources with ``on_change="hold"``.
        security: token and TLS settings; None: from the environment (``DISPATCH_TOKEN`` …).
        publish_window: publishes in flight to the broker at once, over the whole connection; further ones are queued. 64
            (measured): larger bursts make a broker drop messages on non-persistent topics.
        client_id: the dispatcher's id, part of the names of its reply topics; default: 12 random hex digits.
        telemetry: settings of metrics, traces and logs.

    Raises:
        CatalogError: the folder has invalid descriptors; the message lists every problem with file, key and fix.
        PolicyError: ``policy`` is invalid together with the policy of a service or a tool.
        TransportError: the scheme of ``broker`` is unknown.
    """
    transport = open_transport(broker, security=security, publish_window=publish_window)
    return Dispatcher(
        transport, catalog, policy=policy, grants=grants, approvals=approvals, client_id=client_id, telemetry=telemetry
    )
