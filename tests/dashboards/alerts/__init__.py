"""For each alert: what makes it fire, and near misses of that, which must not."""
