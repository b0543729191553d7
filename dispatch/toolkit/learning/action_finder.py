"""Finds the action that a text is about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dispatch.search.bm25_index import BM25Index
from dispatch.search.tokenizer import split_terms
from dispatch.toolkit.action import Action

NAME_WEIGHT = 2
"""A term of the name counts as two of the description."""


class ActionFinder:
    """An index of actions by name and description."""

    def __init__(self) -> None:
        self._index = BM25Index()
        self._actions: list[Action] = []
        self._keys: dict[str, int] = {}

    def find(self, text: str, actions: Iterable[Action]) -> str | None:
        """Return the id of the action whose id or name is ``text``, else of the most similar one; None: no term in common.

        Args:
            actions: all actions; only those that have changed since the last call are indexed again.
        """
        current = {action.id: action for action in actions}
        if text in current:
            return text
        named = [action.id for action in current.values() if action.name == text]
        if named:
            return named[0]
        self._update(current)
        scores = self._index.score(dict.fromkeys(split_terms(text), 1.0))
        return self._actions[max(scores, key=lambda key: (scores[key], -key))].id if scores else None

    def _update(self, current: dict[str, Action]) -> None:
        for id in [id for id in self._keys if id not in current]:
            self._index.remove(self._keys.pop(id))
        for id, action in current.items():
            key = self._keys.get(id)
            if key is None:
                key = self._keys[id] = len(self._actions)
                self._actions.append(action)
            elif (self._actions[key].name, self._actions[key].description) == (action.name, action.description):
                continue
            self._actions[key] = action
            self._index.add(key, Counter([*split_terms(action.name) * NAME_WEIGHT, *split_terms(action.description)]))
