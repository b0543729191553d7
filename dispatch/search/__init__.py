"""Tool search: find the few tools of a large catalogue that answer a query."""

from dispatch.search.search import Embedder, QueryEmbedder, ToolSearch

__all__ = ["Embedder", "QueryEmbedder", "ToolSearch"]
