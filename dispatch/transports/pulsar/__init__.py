"""The transport over a genuine Pulsar broker. Only ``link`` and ``logs`` import pulsar-client."""
