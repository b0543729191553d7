"""The version of the distribution, in one place."""

from __future__ import annotations

__version__ = "0.1.0"
