"""Every example is run: its services on the embedded broker, all of them as programs on a genuine one."""
