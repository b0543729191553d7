"""The same faults for dispatch and its peers: what happens to calls under one load."""
