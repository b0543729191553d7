"""The embedder of the extra ``search``: WordLlama, whose weights are in its wheel. Nothing is downloaded."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatch._internal import missing_library

try:
    import numpy as np
except ImportError:
    raise missing_library("Search by meaning", "WordLlama", "search") from None

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUERY_MAP: Final = Path(__file__).with_name("query_map.npy")
"""A learned linear map from vectors of queries towards those of tools; ``benchmarks/search/query_map.py`` makes it."""


class WordLlamaEmbedder:
    """Means of the vectors of a text's tokens (256 dimensions). Some 50 µs for a query and 34 MB of memory.

    Vectors of queries pass a linear map that is learned from queries and the tools that answer them (docs/search.md).

    Args:
        query_map: another map, of shape (256, 256); None: the one of the package.

    Raises:
        ImportError: WordLlama is not installed.
    """

    def __init__(self, query_map: NDArray[np.float32] | None = None) -> None:
        model = _load_model()
        self._vectors: NDArray[np.float32] = model.embedding
        self._tokenizer = model.tokenizer
        self._tokenizer.no_padding()
        self._query_map: NDArray[np.float32] = (
            np.load(QUERY_MAP, allow_pickle=False).astype(np.float32) if query_map is None else query_map
        )
        self.id = f"wordllama-{version('wordllama')}-l2_supercat-256"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a unit vector for each text, of zeros for a text without tokens: shape (number of texts, 256)."""
        rows = np.zeros((len(texts), self._vectors.shape[1]), np.float32)
        for row, text in zip(rows, texts, strict=True):
            # One text at a time: encode_batch starts threads of its own, which do not survive a fork.
            tokens = self._tokenizer.encode(text, add_special_tokens=False).ids
            if tokens:
                self._vectors[tokens].mean(axis=0, out=row)
                row /= max(float(np.linalg.norm(row)), 1e-9)
        return rows

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of queries, of any length: shape (number of texts, 256)."""
        return self.encode(texts) @ self._query_map


def _load_model() -> Any:
    # wordllama calls logging.basicConfig when it is imported, which does nothing if the root logger has a handler.
    root = logging.getLogger()
    guard = logging.NullHandler()
    root.addHandler(guard)
    try:
        import wordllama
    except ImportError:
        raise missing_library("Search by meaning", "WordLlama", "search") from None
    finally:
        root.removeHandler(guard)
    # With downloads off, 0.4.0.post1 finds its tokenizer only in a cache folder: its own package has the same layout.
    return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
