"""One tool service behind two tools: questions about customers, and questions about products.

The service does not know the tools "query-customers" and "query-products": each of them sets the config value "collection",
and the model sees two tools with their own descriptions (examples/tools/tool/query-*.json). A real service would query a
vector store; this one counts common words and runs anywhere.

    python examples/custom_rag_service.py --broker pulsar://localhost:6650
    dispatch call query-products 'question=Which kettle is the quickest?' \\
        --broker pulsar://localhost:6650 --catalog examples/tools
Or serve it without main():
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


def find_words(text: str) -> set[str]:
    """Return the words of four letters or more, without a plural s."""
    return {word.removesuffix("s") for word in re.findall(r"\w{4,}", text.lower())}


class CustomRag(dispatch.ToolService):
    async def invoke(self, config, arguments):
        name, question = config.get("collection"), arguments.get("question")
        collection = COLLECTIONS.get(name)
        if collection is None:
            raise dispatch.ToolError(
                "unknown-collection", f"There is no collection '{name}'; there are: {', '.join(COLLECTIONS)}."
            )
        if not isinstance(question, str) or not question.strip():
            raise dispatch.ToolError("missing-question", 'Pass a question: {"question": "Which kettle is quickest?"}.')
        ranked = sorted(collection, key=lambda passage: len(find_words(passage) & find_words(question)), reverse=True)
        passages = [passage for passage in ranked[:2] if find_words(passage) & find_words(question)]
        return {"collection": name, "passages": passages}  # not a string: sent as JSON


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="pulsar://localhost:6650", help="URL of the broker (default: %(default)s)")
    broker = parser.parse_args().broker
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # logs the topics to standard error
    try:
        asyncio.run(dispatch.serve(CustomRag(), broker, service="custom-rag"))
    except KeyboardInterrupt:
        sys.exit(130)
    except dispatch.DispatchError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
