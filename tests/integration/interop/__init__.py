"""dispatch and TrustGraph's published package (trustgraph-base 2.11.1), in both directions, on a genuine broker."""
