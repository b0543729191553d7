"""An agent without a model: it calls the tools of the catalogue once a second, for two users, and reports each failure.

``DISPATCH_ADMIN`` and ``DISPATCH_ADMIN_TOKENS`` are the address of its admin endpoint and the file of its tokens, as for
commands.
"""

import asyncio
import json
import os
import signal
from pathlib import Path

import dispatch

CALLS = {"calculate": {"expression": "(17.5 + 3) * 12 / 4"}, "tell-joke": {"topic": "cats"}}


def read_admin() -> dispatch.Admin:
    """Return the settings of the admin endpoint."""
    file = os.environ.get("DISPATCH_ADMIN_TOKENS")
    tokens = {} if file is None else json.loads(Path(file).read_text())
    return dispatch.Admin(os.environ.get("DISPATCH_ADMIN", "127.0.0.1:9464"), **tokens)


async def main() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    catalog = os.environ.get("DISPATCH_CATALOG", "tools")
    async with dispatch.connect(catalog=catalog, admin=read_admin()) as dispatcher:
        while not stop.is_set():
            for user in ("alice", "bob"):
                for tool, arguments in CALLS.items():
                    result = await dispatcher.execute(tool, arguments, user=user, timeout=5)
                    print(f"{user} {tool}: {result.text if result.error is None else result.error}", flush=True)
            try:
                await asyncio.wait_for(stop.wait(), 1)
            except TimeoutError:
                continue


if __name__ == "__main__":
    asyncio.run(main())
