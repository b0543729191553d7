"""One tool service behind two tools: questions about customers, and questions about products.

What it shows: the two tiers. The service knows nothing of "query-customers" and "query-products"; each of these tools sets
the config value "collection", and the model sees two tools with a description each (examples/tools/tool/query-*.json).
A real one would ask a vector store; this one counts words in common, to run anywhere.

    python examples/custom_rag_service.py --broker pulsar://localhost:6650
    dispatch call query-products 'question=Which kettle is the quickest?' \\
        --broker pulsar://localhost:6650 --catalog examples/tools
Or serve it with:
    dispatch serve examples/custom_rag_service.py:CustomRag --service custom-rag --broker pulsar://localhost:6650
"""

import argparse
import asyncio
import logging
import re
import sys

import dispatch

COLLECTIONS = {
    "customers": [
        "Amira Haddad bought three copper kettles in May and praised the quick delivery.",
        "Jonas Weber complained in June that the handle of his glass teapot became too hot.",
        "Sofia Rossi returned a toaster in July because its lever was broken.",
        "The complaint that came up most often last month was a late delivery, in 14 of 31 letters.",
    ],
    "products": [
        "The copper kettle boils a litre in 150 seconds, the quickest of our kettles, and costs 89 euros.",
        "The steel kettle boils a litre in 210 seconds and costs 39 euros.",
        "The glass teapot holds 1.2 litres, keeps tea warm for an hour and costs 45 euros.",
        "The toaster has two slots, six levels and a crumb tray; it costs 35 euros.",
    ],
}


def words(text: str) -> set[str]:
    """The words that say something (the longer ones), without the ending that makes kettles of a kettle."""
    return {word.removesuffix("s") for word in re.findall(r"\w{4,}", text.lower())}


class CustomRag(dispatch.ToolService):
    async def invoke(self, config, arguments):
        name, question = config.get("collection"), arguments.get("question")
        collection = COLLECTIONS.get(name)
        if collection is None:
            raise dispatch.ToolError("unknown-collection", f"There is no '{name}', but: {', '.join(COLLECTIONS)}.")
        if not isinstance(question, str) or not question.strip():
            raise dispatch.ToolError("missing-question", 'Ask something: {"question": "Which kettle is quickest?"}.')
        ranked = sorted(collection, key=lambda passage: len(words(passage) & words(question)), reverse=True)
        passages = [passage for passage in ranked[:2] if words(passage) & words(question)]
        return {"collection": name, "passages": passages}  # not a string: it travels as JSON


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="pulsar://localhost:6650", help="its address (%(default)s)")
    broker = parser.parse_args().broker
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # says what it serves, on standard error
    try:
        asyncio.run(dispatch.serve(CustomRag(), broker, service="custom-rag"))
    except KeyboardInterrupt:
        sys.exit(130)
    except dispatch.DispatchError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
