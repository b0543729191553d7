"""A tool service: tells a joke about a topic, in a style, and greets the user by name.

The three values of a request:
    config      set by the operator in the tool's descriptor: "style" (examples/tools/tool/tell-joke.json)
    arguments   set by the model: "topic". The service must validate them
    user        the user on whose behalf the tool is called

Serve it, then call it from another terminal:
    python examples/joke_service.py --broker pulsar://localhost:6650
    dispatch call tell-joke topic=cats --user alice --broker pulsar://localhost:6650 --catalog examples/tools
Or serve it without main():
    dispatch serve examples/joke_service.py:Joke --service joke --broker pulsar://localhost:6650
"""

import argparse
import asyncio
import logging
import sys

import dispatch

JOKES = {
    "programming": {
        "pun": "There are 10 kinds of people: those who know binary, and those who do not.",
        "one-liner": "I would tell you a joke about UDP, but you might not get it.",
    },
    "cats": {
        "pun": "The cat joined the Red Cross: it wanted to be a first-aid kit.",
        "one-liner": "My cat knows every keyboard shortcut, and none of them on purpose.",
    },
    "cheese": {
        "pun": "What do you call cheese that is not yours? Nacho cheese.",
        "one-liner": "The second mouse gets the cheese.",
    },
}
ELSE = {
    "pun": "I had a pun about {topic}, but it was not up to scratch.",
    "one-liner": "A {topic} walks into a bar; it was not invited.",
}


class Joke(dispatch.ToolService):
    async def invoke(self, config, arguments, user=""):
        topic = arguments.get("topic")
        if not isinstance(topic, str) or not topic.strip():
            raise dispatch.ToolError("missing-topic", 'Pass the topic of the joke: {"topic": "cats"}.')
        style = config.get("style", "one-liner")
        if style not in ELSE:
            raise dispatch.ToolError("unknown-style", f"There is no style '{style}'; there are: {', '.join(ELSE)}.")
        joke = JOKES.get(topic.strip().lower(), ELSE)[style].format(topic=topic.strip())
        return f"Hello {user}! {joke}" if user else joke


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="pulsar://localhost:6650", help="URL of the broker (default: %(default)s)")
    broker = parser.parse_args().broker
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # logs the topics to standard error
    try:
        asyncio.run(dispatch.serve(Joke(), broker, service="joke"))
    except KeyboardInterrupt:
        sys.exit(130)
    except dispatch.DispatchError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
