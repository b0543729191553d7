"""Client and service processes of the benchmarks. The driver starts each; a process ends when its stdin closes."""
