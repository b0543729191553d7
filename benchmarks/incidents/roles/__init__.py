"""What the worker processes run. Each module reads its spec from the driver, then one command after the other."""
