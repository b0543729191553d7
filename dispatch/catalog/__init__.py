"""The catalogue of tools and their services.

Descriptors have TrustGraph's two tiers (a *tool service* with its topics, *tools* that refer to it) and load unchanged;
dispatch adds keys of its own. Loading is atomic: if any descriptor is invalid, there is no new catalogue. A catalogue is
immutable.
"""

from dispatch.catalog.catalog import (
    Catalog,
    UnknownServiceError,
    UnknownToolError,
    VersionMismatchError,
    check_items,
    load_items,
)
from dispatch.catalog.descriptors import (
    ARGUMENT_TYPES,
    Argument,
    CatalogError,
    ConfigParam,
    Instance,
    ServiceDescriptor,
    ToolDescriptor,
)
from dispatch.catalog.folder import Folder, check_directory, load_directory
from dispatch.catalog.items import Item
from dispatch.documents import Problem, Severity
from dispatch.messaging.wire import TopicError, TopicName

__all__ = [
    "ARGUMENT_TYPES",
    "Argument",
    "Catalog",
    "CatalogError",
    "ConfigParam",
    "Folder",
    "Instance",
    "Item",
    "Problem",
    "ServiceDescriptor",
    "Severity",
    "ToolDescriptor",
    "TopicError",
    "TopicName",
    "UnknownServiceError",
    "UnknownToolError",
    "VersionMismatchError",
    "check_directory",
    "check_items",
    "load_directory",
    "load_items",
]
