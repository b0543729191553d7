"""Calls over a cluster of brokers while brokers fail: ``python -m benchmarks.cluster``. Results in docs/explanation/cluster.md."""
