"""A tool service written for TrustGraph: TrustGraph's published class and launcher, without dispatch.

dispatch calls it unchanged. It uses the topics of examples/joke_service.py, so the tool "tell-joke" of examples/tools
reaches it.

    pip install trustgraph-base==2.11.1
    python examples/trustgraph_service.py --broker pulsar://localhost:6650
    dispatch call tell-joke topic=cats --broker pulsar://localhost:6650 --catalog examples/tools

TrustGraph needs the namespaces tg/request, tg/response and tg/notify; `dispatch broker start` creates them.
"""

from argparse import ArgumentParser

from trustgraph.base import DynamicToolService


class Joke(DynamicToolService):
    async def invoke(self, config, arguments):
        return f"A {config.get('style', 'joke')} about {arguments['topic']}, told by a service of TrustGraph."

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        DynamicToolService.add_args(parser)
        parser.add_argument("--broker", dest="pulsar_host", metavar="URL", help="same as --pulsar-host")
        # Off for local use: --metrics and --loki-enabled enable the metrics port and the log collector.
        parser.set_defaults(
            topic="joke", pulsar_host="pulsar://localhost:6650", metrics=False, loki_enabled=False, log_level="WARNING"
        )


if __name__ == "__main__":
    Joke.launch("joke-service", __doc__)
