"""Freed memory that is kept: a process of its own counts its page faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, resource, sys
from dispatch.transports.pulsar.transport import keep_freed_memory
is_set = sys.argv[1] == "keep" and keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    blocks = [bytearray(1_000_000) for _ in range(32)]
use()
before = faults()
for _ in range(10):
    use()
print(json.dumps([is_set, faults() - before]))
"""
PAGES = 10 * 32 * 1_000_000 // 4_096

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the allocator of another system")


def run(what: str, **environment: str) -> tuple[bool, int]:
    command = [sys.executable, "-c", PROGRAM, what]
    output = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, check=True, text=True)
    is_set, faults = json.loads(output.stdout)
    return is_set, faults


def test_freed_memory_is_kept() -> None:
    is_set, kept = run("keep")
    assert is_set, "the C library has no mallopt"
    _, returned = run("leave")
    assert kept < PAGES / 20
    assert returned > PAGES / 2, "nothing was returned without it, so that this test shows nothing"


@pytest.mark.parametrize("name", ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"])
def test_settings_of_the_environment_are_left_as_they_are(name: str) -> None:
    is_set, _ = run("keep", **{name: "1000000"})
    assert not is_set


def test_tunables_of_glibc_are_left_as_they_are() -> None:
    is_set, _ = run("keep", GLIBC_TUNABLES="glibc.malloc.trim_threshold=1000000")
    assert not is_set
