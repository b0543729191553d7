"""What a broker needs on this machine: Java, and Pulsar's server distribution."""
