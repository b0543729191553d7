"""Programs of the worker processes. Each module reads its spec from the driver, then one command after the other."""
