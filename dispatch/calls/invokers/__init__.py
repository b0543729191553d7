"""What executes an attempt: an instance of the tool's service, or this process."""
