"""When to ask again for an answer that should be here, and when to give its service instance up. Pure bookkeeping.

A message on a non-persistent topic can vanish, a request as well as its answer. Waiting for it costs the caller the whole
timeout. So a caller that has waited for longer than the tool usually takes asks the instance that has the request: it
answers that the tool runs, or with the answer it has kept, or runs the request now because it never came.
"""

from __future__ import annotations

MIN_PATIENCE_S = 0.05
"""However fast a tool is: a machine that is busy delays answers by some ten milliseconds, and asking adds to that."""
MAX_INTERVAL_S = 5.0
"""However slow it is: somebody at work is heard of every few seconds."""
MIN_REPEAT_S = 0.05
MAX_REPEAT_S = 1.0
"""Between questions that nobody answered: doubling from the least to the most."""
MIN_UNANSWERED = 4
"""Questions without an answer before an instance can be given up: at a loss of one in ten messages each way, five times
out of ten thousand; the time that must have passed as well makes it never."""
SUSPECT_AFTER = 2
"""Questions without an answer after which new calls go to other instances, if there are any."""


class Patience:
    """How long to wait for a tool before asking, learnt from how long it took: mean plus four times the mean deviation, the
    estimator of TCP's retransmission timer (Jacobson and Karels 1988; RFC 6298). Answers that were sent again are not looked
    at (Karn); unlike TCP's acknowledgements, they say so, so that a question asked too early does not hide how long it took.

    Args:
        first: seconds to wait while nothing is known, and at most: asking a tool that is at work costs next to nothing, and
            not to ask one that is dead costs its callers their calls.
    """

    __slots__ = ("_deviation", "_mean", "first", "samples")

    def __init__(self, first: float) -> None:
        self.first = first
        self._mean = 0.0
        self._deviation = 0.0
        self.samples = 0

    def learn(self, seconds: float) -> None:
        """A call was answered in ``seconds``, by the answer that was sent first."""
        if self.samples == 0:
            self._mean, self._deviation = seconds, seconds / 2
        else:
            error = seconds - self._mean
            self._mean += error / 8
            self._deviation += (abs(error) - self._deviation) / 4
        self.samples += 1

    @property
    def seconds(self) -> float:
        """How long to wait now."""
        if self.samples == 0:
            return self.first
        return min(max(self._mean + 4 * self._deviation, MIN_PATIENCE_S), self.first)


class Repair:
    """The questions about one request: when the next is due, and whether anybody is still there.

    Args:
        now: when the request was sent, in seconds.
        patience: seconds until the first question.
        give_up: seconds without a word after which the instance is given up.
    """

    __slots__ = ("_give_up", "_interval", "_patience", "heard_at", "next_at", "received", "transmissions", "unanswered")

    def __init__(self, now: float, patience: float, give_up: float) -> None:
        self._patience = patience
        self._interval = patience
        self._give_up = give_up
        self.heard_at = now
        self.next_at = now + patience
        self.received = False
        """The instance has the request: it said so."""
        self.transmissions = 1
        self.unanswered = 0

    def heard(self, now: float) -> None:
        """The instance gave a sign of life: the next question can wait, longer each time."""
        self.received = True
        self.unanswered = 0
        self.heard_at = now
        self._interval = min(2 * self._interval, MAX_INTERVAL_S)
        self.next_at = now + self._interval

    def chunk(self, now: float) -> None:
        """A part of the answer came: the next one will, as soon as ever."""
        self.received = True
        self.unanswered = 0
        self.heard_at = now
        self._interval = self._patience
        self.next_at = now + self._interval

    def hurry(self, now: float) -> bool:
        """Something is missing for certain: ask soon. True when that is sooner than planned."""
        soon = now + MIN_REPEAT_S / 2  # what merely overtook another is here by then
        if soon >= self.next_at:
            return False
        self.next_at = soon
        return True

    def postpone(self, now: float) -> None:
        """Asking makes no sense now, because the connection is down; that is no sign about the instance."""
        self.heard_at = now
        self.unanswered = 0
        self.next_at = now + MIN_REPEAT_S

    def ask(self, now: float, alive_at: float = 0.0) -> bool:
        """A question is due. True: ask it (its number is ``transmissions``). False: nobody is there any more. ``alive_at``:
        when the instance was last heard of at all; one with much to send may come to this request's answer late."""
        if self.unanswered >= MIN_UNANSWERED and now - max(self.heard_at, alive_at) >= self._give_up:
            return False
        self.transmissions += 1
        self.unanswered += 1
        self.next_at = now + min(MIN_REPEAT_S * 2 ** (self.unanswered - 1), MAX_REPEAT_S)
        return True
