"""Benchmark of tool search on the queries of MetaTool, and the training of its query map."""
