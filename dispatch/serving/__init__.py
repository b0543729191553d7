"""The service side: requests in, replies out, within bounds."""
