"""dispatch beside what a user would choose instead: a module for each system, also for ``benchmarks.faults``."""
