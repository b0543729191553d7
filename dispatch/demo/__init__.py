"""The demonstration: a few agents, a few tools, everything that can happen to a call, in some ten seconds.

``dispatch demo`` shows it; :class:`Demo` runs it without showing anything.
"""

from dispatch.demo.run import Demo, Summary
from dispatch.demo.scoreboard import Scoreboard

__all__ = ["Demo", "Scoreboard", "Summary"]
