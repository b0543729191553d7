"""The transport over a genuine Pulsar broker. Only ``client``, ``client_logging`` and ``reader`` import pulsar-client."""
