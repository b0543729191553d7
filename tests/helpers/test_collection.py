"""Which tests pytest runs, and with which fixtures, does not depend on the order of its arguments."""

from __future__ import annotations

import subprocess
import sys

# The first and the last use fixtures of tests/unit/cli/conftest.py.
INTERLEAVED = ("tests/unit/cli/test_init.py", "tests/unit/test_errors.py", "tests/unit/cli/test_bench.py")


def test_fixtures_of_a_folder_are_found_whatever_stands_between_its_modules() -> None:
    command = [sys.executable, "-m", "pytest", "--setup-plan", "-q", "-p", "no:cacheprovider", *INTERLEAVED]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout[-2_000:]
