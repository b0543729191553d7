"""Processor time from ``/proc``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.workers import processor_time
from benchmarks.workers.processor_time import read_machine_time, read_processor_time


def test_times_are_summed_over_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_time, "PROC", tmp_path)
    ticks = os.sysconf("SC_CLK_TCK")
    for pid, user, system in ((7, 3 * ticks, ticks), (8, ticks, 0)):
        (tmp_path / str(pid)).mkdir()
        # The name of the program contains what separates fields.
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) R {' '.join('0' * 10)} {user} {system} 0 0")
    (tmp_path / "stat").write_text(f"cpu  {ticks} {ticks} {ticks} 9999 9999 0 {ticks} 0 0 0\ncpu0 1 1 1 1 1 1 1 1\n")
    assert read_processor_time([7, 8]) == 5.0
    assert read_processor_time([8]) == 1.0
    assert read_machine_time() == 4.0


def test_an_unknown_time_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_time, "PROC", tmp_path)
    assert read_processor_time([1]) is None
    assert read_processor_time([]) is None
    assert read_machine_time() is None
