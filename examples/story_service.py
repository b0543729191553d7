"""A tool service that streams: a story arrives word by word and can be displayed as it is generated.

An async generator makes the reply a stream. The caller receives it as chunks or as one text:
    async for chunk in dispatcher.stream("tell-story", {"subject": "a goat"}): print(chunk, end="")
    text = await dispatcher.call("tell-story", {"subject": "a goat"})

    python examples/story_service.py --broker pulsar://localhost:6650
    dispatch call tell-story 'subject=a lighthouse keeper' --stream \\
        --broker pulsar://localhost:6650 --catalog examples/tools
Or serve it without main():
    dispatch serve examples/story_service.py:Story --service story --broker pulsar://localhost:6650
"""

import argparse
import asyncio
import itertools
import logging
import sys

import dispatch

DEFAULT_WORDS, MAX_WORDS = 40, 500
BEGINNING = "Once upon a time there was {subject}."
MIDDLE = "Every evening the wind came up from the sea and brought news of a ship that was waiting for a letter."


class Story(dispatch.ToolService):
    def __init__(self, pause: float = 0.03) -> None:
        self.pause = pause  # seconds between two words, about the pace of a language model

    async def invoke(self, config, arguments):
        subject, count = arguments.get("subject"), arguments.get("words", DEFAULT_WORDS)
        if not isinstance(subject, str) or not subject.strip():
            raise dispatch.ToolError("missing-subject", 'Pass the subject of the story: {"subject": "a goat"}.')
        if type(count) is not int or not 1 <= count <= MAX_WORDS:
            raise dispatch.ToolError("invalid-words", f"'words' must be a whole number from 1 to {MAX_WORDS}.")
        words = itertools.chain(BEGINNING.format(subject=subject.strip()).split(), itertools.cycle(MIDDLE.split()))
        for index, word in enumerate(itertools.islice(words, count)):
            yield word if index == 0 else f" {word}"
            await asyncio.sleep(self.pause)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="pulsar://localhost:6650", help="URL of the broker (default: %(default)s)")
    broker = parser.parse_args().broker
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # logs the topics to standard error
    try:
        asyncio.run(dispatch.serve(Story(), broker, service="story"))
    except KeyboardInterrupt:
        sys.exit(130)
    except dispatch.DispatchError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
