"""A local Pulsar broker for development, tests and benchmarks.

Tests and benchmarks use `provide_broker`; `dispatch broker start|stop|status` uses `start_detached`, `stop_detached` and
`status`; tests of faults and security start their own `LocalBroker`.
"""

from __future__ import annotations

from dispatch.devtools.localbroker.admin import DEFAULT_NAMESPACES, Admin, create_namespaces
from dispatch.devtools.localbroker.broker_fixture import Endpoint, provide_broker, read_environment
from dispatch.devtools.localbroker.detached_broker import (
    DEFAULT_PORT,
    DEFAULT_WEB_PORT,
    DetachedBroker,
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
    ignore_progress,
)
from dispatch.devtools.localbroker.install.distribution import VERSION, cache_dir, fetch_distribution, find_distribution
from dispatch.devtools.localbroker.launchers.docker import IMAGE, DockerBroker
from dispatch.devtools.localbroker.launchers.launcher_choice import Launcher, choose_launcher
from dispatch.devtools.localbroker.launchers.standalone import LocalBroker
from dispatch.devtools.localbroker.ports import find_free_ports
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
    "DetachedBroker",
    "DockerBroker",
    "Endpoint",
    "Launcher",
    "LocalBroker",
    "LocalBrokerError",
    "LocalBrokerUnavailableError",
    "PortInUseError",
    "Report",
    "Security",
    "cache_dir",
    "choose_launcher",
    "create_namespaces",
    "fetch_distribution",
    "find_distribution",
    "find_free_ports",
    "ignore_progress",
    "provide_broker",
    "read_environment",
    "start_detached",
    "status",
    "stop_detached",
]
