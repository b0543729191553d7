"""The processes that are measured, and those that answer them. Each is started by the driver and ends with its stdin."""
