"""The public face of the calling side: :func:`connect`, :class:`Dispatcher` and :class:`Tool`."""

from dispatch.dispatcher.connection import connect
from dispatch.dispatcher.dispatcher import Dispatcher
from dispatch.dispatcher.tool import Tool

__all__ = ["Dispatcher", "Tool", "connect"]
