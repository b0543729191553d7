"""The broker is killed (SIGKILL) and restarted under load: requests that were sent are answered later, and executed once."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from dispatch.devtools.localbroker import Admin, LocalBroker, create_namespaces
from tests.helpers.call_records import End
from tests.helpers.fault_lab import FaultLab
from tests.integration.pulsar.test_broker_restart import first_lookup

pytestmark = pytest.mark.pulsar

CALLS = 10_000


@pytest.mark.slow
def test_calls_in_flight_survive_a_killed_broker(tmp_path: Path) -> None:
    with LocalBroker.start() as broker:
        create_namespaces(Admin(broker.web_url))
        with FaultLab(broker.service_url, tmp_path, CALLS) as lab:
            lab.start_instance()
            lab.start_dispatchers()
            lab.wait_executed(CALLS // 4)
            with lab.broker_away():
                broker.kill()
                broker.restart()
                first_lookup(broker.service_url)
            ready = time.monotonic()
            lab.wait_done()
            ends = lab.check()
            answered = [each for each in lab.record_file.records if each.end == End.ANSWERED]
            first = min(each.finished for each in answered if each.finished > ready)
            sys.stdout.write(f"\n{dict(ends)}, first answer {first - ready:.2f} s after the broker was back\n")
            assert max(each.finished for each in answered) > ready
