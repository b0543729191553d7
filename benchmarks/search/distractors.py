"""Synthetic tools beside MetaTool's: an action on an object with a detail, each combination once.

Their words are those of everyday tools, so that many are near to MetaTool's queries (weather, recipes, invoices), and none
answers one: recall among them shows how a search degrades in a large catalogue.
"""

from __future__ import annotations

import itertools
import random

from dispatch.catalog import ToolDescriptor

ACTIONS = {
    "create": "Creates a new",
    "delete": "Deletes a",
    "list": "Lists every",
    "search": "Searches for a",
    "update": "Updates the fields of a",
    "export": "Exports a",
    "import": "Imports a",
    "summarize": "Writes a short summary of a",
    "translate": "Translates the text of a",
    "compare": "Shows the differences between this and another",
    "share": "Sends a link to a",
    "schedule": "Chooses the date and time of a",
    "validate": "Checks the format of a",
    "archive": "Moves old versions of a",
    "approve": "Records the approval of a",
    "recommend": "Recommends a",
    "estimate": "Estimates the price of a",
    "track": "Reports the current status of a",
}
OBJECTS_TEXT = """
invoice, customer, calendar event, meeting, weather report, flight, hotel room, rental car, recipe, restaurant table,
playlist, song, video, podcast, photo, map route, news article, research paper, book, course, quiz, job offer, resume,
contract, email, chat message, support ticket, purchase order, parcel, gift, stock portfolio, crypto wallet, loan,
insurance claim, property, workout plan, medical record, prescription, pull request, database table, server,
domain name, web page, survey, blog post, advertisement, coupon, movie ticket, garden plant, pet profile
"""
DETAILS_TEXT = """
in a spreadsheet, for a team, with its history, from a link, for a given user, in another language, with a template,
as a PDF file, in the cloud, within a budget, near a place, by its identifier
"""
OBJECTS, DETAILS = (tuple(each.strip() for each in text.split(",")) for text in (OBJECTS_TEXT, DETAILS_TEXT))
SEED = 11


def make_distractors(count: int) -> list[ToolDescriptor]:
    """Return ``count`` different tools, always the same ones.

    Raises:
        ValueError: there are not so many combinations.
    """
    combinations = list(itertools.product(ACTIONS, OBJECTS, DETAILS))
    if count > len(combinations):
        raise ValueError(f"at most {len(combinations)} synthetic tools can be made")
    random.Random(SEED).shuffle(combinations)
    return [
        ToolDescriptor(
            f"{action}_{thing}_{detail}".replace(" ", "_"), f"{ACTIONS[action]} {thing} {detail}.", "metatool"
        )
        for action, thing, detail in combinations[:count]
    ]
