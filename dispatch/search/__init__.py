"""Tool search: find the few tools of a large catalogue that answer a query."""

from dispatch.search.embedding import Embedder, QueryEmbedder
from dispatch.search.search import ToolSearch

__all__ = ["Embedder", "QueryEmbedder", "ToolSearch"]
