"""The demo: agents call tools on one broker for about 20 s while scenarios inject faults, and each checks the result.

``dispatch demo`` displays it; :class:`Demo` runs it without output.
"""

from dispatch.devtools.demo.run import Demo, Summary
from dispatch.devtools.demo.world import Scoreboard

__all__ = ["Demo", "Scoreboard", "Summary"]
