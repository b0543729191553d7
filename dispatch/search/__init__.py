"""Tool search: find the few tools of a large catalogue that answer a query."""

from dispatch.search.embedding import Embedder, QueryEmbedder
from dispatch.search.search import Found, ToolSearch

__all__ = ["Embedder", "Found", "QueryEmbedder", "ToolSearch"]
