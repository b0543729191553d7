from __future__ import annotations

import subprocess
import sys


def test_a_broker_is_had_without_the_client_and_without_the_command_line() -> None:
    script = (
        "import sys, dispatch.devtools.localbroker; print(*{'pulsar', '_pulsar', 'typer', 'rich'} & set(sys.modules))"
    )

    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert loaded.stdout.split() == []
