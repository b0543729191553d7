"""TrustGraph's configuration as a source: the protocol of its config service, and its tools and services as items."""

from dispatch.catalog.sources.trustgraph.config_client import ConfigServiceError
from dispatch.catalog.sources.trustgraph.config_topics import ConfigTopics
from dispatch.catalog.sources.trustgraph.trustgraph_config import TrustGraphConfig

__all__ = ["ConfigServiceError", "ConfigTopics", "TrustGraphConfig"]
