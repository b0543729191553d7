"""Tool search: find the few tools of a large catalogue that answer a query."""

from dispatch.search.embedder import Embedder, QueryEmbedder
from dispatch.search.tool_search import Found, ToolSearch

__all__ = ["Embedder", "Found", "QueryEmbedder", "ToolSearch"]
