"""Tool search: find the few tools of a large catalogue that answer a query."""
