"""Tools of a dispatcher for the APIs of models, and for agent frameworks: one module for each, and one extra."""

from dispatch.adapters.dialects.fitted_schema import Style
from dispatch.adapters.native_calls import execute
from dispatch.adapters.specs import Specs, specs

__all__ = ["Specs", "Style", "execute", "specs"]
