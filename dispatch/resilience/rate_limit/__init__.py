"""Rate limits, with a fair queue and a bucket for each user."""
