from __future__ import annotations

import json

import pytest

import dispatch
from tests.examples.conftest import Load, Serving


async def test_two_tools_ask_two_collections_of_one_service(load: Load, serving: Serving) -> None:
    question = {"question": "Who bought copper kettles, and which is the quickest?"}
    async with serving(load("custom_rag_service").CustomRag(), "custom-rag") as dispatcher:
        customers = json.loads(await dispatcher.call("query-customers", question))
        products = json.loads(await dispatcher.call("query-products", question))
    assert customers["collection"] == "customers"
    assert customers["passages"][0].startswith("Amira Haddad bought three copper kettles")
    assert products["collection"] == "products"
    assert products["passages"][0].startswith("The copper kettle boils a litre in 150 seconds")


async def test_nothing_fits(load: Load, serving: Serving) -> None:
    async with serving(load("custom_rag_service").CustomRag(), "custom-rag") as dispatcher:
        text = await dispatcher.call("query-products", {"question": "Ist das Wetter schön?"})
    assert json.loads(text) == {"collection": "products", "passages": []}


@pytest.mark.parametrize("arguments", [{}, {"question": " "}, {"question": 1}])
async def test_a_question_is_needed(load: Load, serving: Serving, arguments: dict[str, object]) -> None:
    async with serving(load("custom_rag_service").CustomRag(), "custom-rag") as dispatcher:
        with pytest.raises(dispatch.ToolError) as caught:
            await dispatcher.call("query-customers", arguments)
    assert caught.value.type == "missing-question"


async def test_a_collection_that_is_none(load: Load) -> None:
    with pytest.raises(dispatch.ToolError, match=r"customers, products") as caught:
        await load("custom_rag_service").CustomRag().invoke({"collection": "staff"}, {"question": "Who?"})
    assert caught.value.type == "unknown-collection"
