"""Reliable delivery of frames: packet numbers, acknowledgements, loss detection, flow control, fragments."""
