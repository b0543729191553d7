"""The demonstration: a few agents, a few tools, everything that can happen to a call, and how it survives: some 20 seconds.

``dispatch demo`` shows it; :class:`Demo` runs it without showing anything.
"""

from dispatch.devtools.demo.run import Demo
from dispatch.devtools.demo.scoreboard import Scoreboard
from dispatch.devtools.demo.summary import Summary

__all__ = ["Demo", "Scoreboard", "Summary"]
