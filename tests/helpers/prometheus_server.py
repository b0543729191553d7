"""A genuine Prometheus that scrapes what a test says, on loopback, and ends with the test."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import Empty, Queue

from dashboards.prometheus_api import PrometheusApi
from tests.helpers.prometheus_binaries import find

ROOT = Path(__file__).parents[2]
DIE_WITH_PARENT = ROOT / "tests" / "helpers" / "die_with_parent.py"
SCRAPE_S = 1
"""How often it looks. Prometheus' own default is a minute."""
PATIENCE_S = 120.0
"""For anything that is waited for; what comes, comes within a few seconds where nothing else runs."""
LOOK_EVERY_S = 0.2
JOB = "dispatch"


class Prometheus(PrometheusApi):
    """Use it with ``with``.

    Args:
        targets: ports on loopback that it scrapes.
        folder: for its configuration and data.
        rules: files with rules that it evaluates.
        every: how often it looks, in whole seconds.

    Attributes:
        url: where its HTTP API is.
    """

    def __init__(
        self, targets: Iterable[int], folder: Path, rules: Iterable[Path] = (), *, every: int = SCRAPE_S
    ) -> None:
        self._program = find("prometheus")
        self._folder = folder
        # JSON is YAML, too.
        self._config = {
            "global": {"scrape_interval": f"{every}s", "evaluation_interval": f"{every}s"},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [
                {"job_name": JOB, "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in targets]}]}
            ],
        }
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._said: list[str] = []
        super().__init__("")  # known when it has started

    def __enter__(self) -> Prometheus:
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "prometheus.yml"
        config.write_text(json.dumps(self._config))
        self._process = subprocess.Popen(
            [
                *(sys.executable, str(DIE_WITH_PARENT), self._program),
                *(f"--config.file={config}", f"--storage.tsdb.path={self._folder / 'data'}"),
                *("--web.listen-address=127.0.0.1:0", "--enable-feature=exemplar-storage"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        found: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._listen, args=(found,), daemon=True)
        self._reader.start()
        try:
            self.url = f"http://{found.get(timeout=PATIENCE_S)}"
        except Empty:
            self.__exit__()
            raise AssertionError(f"prometheus did not start: {''.join(self._said[-20:])}") from None
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._reader is not None:
            self._reader.join()
        if self._process is not None and self._process.stderr is not None:
            self._process.stderr.close()

    def _listen(self, found: Queue[str]) -> None:
        """It is asked to take a port that is free, and its log says which."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said = [*self._said[-100:], line]
            listening = re.search(r'"?Listening on"? address=(127\.0\.0\.1:[1-9]\d*)', line)
            if listening is not None:
                found.put(listening[1])


async def until(ask: Callable[[], object], what: str, lacking: Callable[[], object] = str) -> None:
    """Ask, on a thread, until the answer is yes.

    Args:
        what: is wanted, in words.
        lacking: what of it is not there yet.

    Raises:
        AssertionError: it never came.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE_S
    while not await asyncio.to_thread(ask):
        assert loop.time() < end, f"in vain: {what}; lacking: {lacking()}"
        await asyncio.sleep(LOOK_EVERY_S)
