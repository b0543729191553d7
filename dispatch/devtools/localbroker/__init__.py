"""A local Pulsar broker for development, tests and benchmarks.

Tests and benchmarks use `provide_broker`; `dispatch broker start|stop|status` uses `start_detached`, `stop_detached` and
`status`; tests of faults and security start their own `LocalBroker`.
"""

from __future__ import annotations

from dispatch.devtools.localbroker.broker import (
    DEFAULT_PORT,
    DEFAULT_WEB_PORT,
    DetachedBroker,
    Endpoint,
    provide_broker,
    read_environment,
    start_detached,
    status,
    stop_detached,
)
from dispatch.devtools.localbroker.cluster import (
    LocalCluster,
    Node,
    detached_cluster,
    find_detached_cluster,
    start_detached_cluster,
)
from dispatch.devtools.localbroker.launch import (
    DEFAULT_NAMESPACES,
    IMAGE,
    SUPER_USER,
    VERSION,
    Admin,
    DockerBroker,
    Launcher,
    LocalBroker,
    Security,
    cache_dir,
    choose_launcher,
    create_namespaces,
    fetch_distribution,
    find_distribution,
)
from dispatch.devtools.localbroker.processes import (
    AdminError,
    LocalBrokerError,
    LocalBrokerUnavailableError,
    PortInUseError,
    Report,
    find_free_ports,
    ignore_progress,
)

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
    "LocalCluster",
    "Node",
    "PortInUseError",
    "Report",
    "Security",
    "cache_dir",
    "choose_launcher",
    "create_namespaces",
    "detached_cluster",
    "fetch_distribution",
    "find_detached_cluster",
    "find_distribution",
    "find_free_ports",
    "ignore_progress",
    "provide_broker",
    "read_environment",
    "start_detached",
    "start_detached_cluster",
    "status",
    "stop_detached",
]
