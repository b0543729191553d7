"""Requirements of a broker on this machine: Java and Pulsar's server distribution."""
