"""Services announce themselves: the messages, whom to trust, and the source :class:`Announced`. The publisher is
:mod:`dispatch.serving.announcer`."""
