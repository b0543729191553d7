"""The benchmarks: ``python -m benchmarks``, ``make bench`` or ``dispatch bench``. Ground rules: README.md."""
