"""The wire format: payloads, message properties, topic names, fragments."""
