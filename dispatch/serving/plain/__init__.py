"""The plain exchange: requests and replies as messages with properties, for third-party peers and persistent topics."""
