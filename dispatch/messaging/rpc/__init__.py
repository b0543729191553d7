"""Request and reply: correlation and deadlines; requests in sessions."""
