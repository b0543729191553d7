"""The form of packets and frames, and the proof of a handshake."""
