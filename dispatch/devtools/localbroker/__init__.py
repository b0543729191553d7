"""A genuine local Pulsar for development, tests and benchmarks.

Tests and benchmarks call `obtain`; `dispatch broker start|stop|status` calls `start_detached`, `stop_detached` and
`status`; chaos and security tests start a `LocalBroker` of their own.
"""

from __future__ import annotations

from .admin import DEFAULT_NAMESPACES, Admin, prepare
from .backend import Backend, choose_backend
from .distribution import VERSION, cache_dir, fetch_distribution, find_distribution
from .docker import IMAGE, DockerBroker
from .endpoint import Endpoint, from_environment, obtain
from .errors import AdminError, LocalBrokerError, LocalBrokerUnavailableError, PortInUseError, Report, quiet
from .ports import free_ports
from .process import LocalBroker
from .security import SUPER_USER, Security
from .state import DEFAULT_PORT, DEFAULT_WEB_PORT, State, start_detached, status, stop_detached

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
