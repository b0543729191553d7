"""dispatch beside what a user would choose instead: one module for each system, used by this command and by ``benchmarks.faults``."""
