"""A genuine local Pulsar for development, tests and benchmarks.

Tests and benchmarks call `obtain`; `dispatch broker start|stop|status` calls `start_detached`, `stop_detached` and
`status`; chaos and security tests start a `LocalBroker` of their own.
"""

from __future__ import annotations

from dispatch.devtools.localbroker.admin import DEFAULT_NAMESPACES, Admin, prepare
from dispatch.devtools.localbroker.broker_fixture import Endpoint, from_environment, obtain
from dispatch.devtools.localbroker.detached_broker import (
    DEFAULT_PORT,
    DEFAULT_WEB_PORT,
    State,
    start_detached,
    status,
    stop_detached,
)
from dispatch.devtools.localbroker.errors import (
    AdminError,
    LocalBrokerError,
    LocalBrokerUnavailableError,
    PortInUseError,
    Report,
    quiet,
)
from dispatch.devtools.localbroker.install.distribution import VERSION, cache_dir, fetch_distribution, find_distribution
from dispatch.devtools.localbroker.launchers.docker import IMAGE, DockerBroker
from dispatch.devtools.localbroker.launchers.launcher_choice import Backend, choose_backend
from dispatch.devtools.localbroker.launchers.standalone import LocalBroker
from dispatch.devtools.localbroker.ports import free_ports
from dispatch.devtools.localbroker.security import SUPER_USER, Security

__all__ = [
    "DEFAULT_NAMESPACES",
    "DEFAULT_PORT",
    "DEFAULT_WEB_PORT",
    "IMAGE",
    "SUPER_USER",
    "VERSION",
    "Admin",
    "AdminError",
    "Backend",
    "DockerBroker",
    "Endpoint",
    "LocalBroker",
    "LocalBrokerError",
    "LocalBrokerUnavailableError",
    "PortInUseError",
    "Report",
    "Security",
    "State",
    "cache_dir",
    "choose_backend",
    "fetch_distribution",
    "find_distribution",
    "free_ports",
    "from_environment",
    "obtain",
    "prepare",
    "quiet",
    "start_detached",
    "status",
    "stop_detached",
]
