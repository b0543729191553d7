"""The demo: agents call tools on one broker for about 20 s while scenarios inject faults, and each checks the result.

``dispatch demo`` displays it; :class:`Demo` runs it without output.
"""

from dispatch.devtools.demo.run import Demo
from dispatch.devtools.demo.scoreboard import Scoreboard
from dispatch.devtools.demo.summary import Summary

__all__ = ["Demo", "Scoreboard", "Summary"]
