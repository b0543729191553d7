"""Request and reply: correlation, deadlines, retransmission."""
