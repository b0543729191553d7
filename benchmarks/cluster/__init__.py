"""Calls over a cluster of brokers while brokers fail: ``make bench-cluster`` writes docs/explanation/cluster.md."""
