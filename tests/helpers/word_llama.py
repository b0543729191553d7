"""Where WordLlama, the embedder of the extra `search`, can be installed."""

from __future__ import annotations

import sys

import pytest

needs_word_llama = pytest.mark.skipif(sys.version_info >= (3, 14), reason="WordLlama has no wheel for Python 3.14")
