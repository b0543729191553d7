"""An agent without a model: it calls the tools of the catalogue once a second, for two users, and reports each failure.

Its metrics are at http://HOST:9464/metrics; an agent of yours serves the same with ``dispatch.connect(admin=…)``.
"""

import asyncio
import os
import signal

import prometheus_client

import dispatch

CALLS = {"calculate": {"expression": "(17.5 + 3) * 12 / 4"}, "tell-joke": {"topic": "cats"}}


async def main() -> None:
    prometheus_client.start_http_server(int(os.environ.get("METRICS_PORT", "9464")))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with dispatch.connect(catalog=os.environ.get("DISPATCH_CATALOG", "tools")) as dispatcher:
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
