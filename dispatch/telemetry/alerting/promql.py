"""Builders of PromQL expressions that the rules share."""

from __future__ import annotations

from collections.abc import Callable

from dispatch.telemetry.alerting.slo import BAD_OUTCOMES, UNCOUNTED_OUTCOME

PER_PROCESS = ("instance", "pod", "node")
"""Labels by which Prometheus distinguishes processes. Rules about a tool or service sum over them and keep the other labels
(job, namespace, cluster)."""
BAD_CALLS = f'outcome=~"{"|".join(BAD_OUTCOMES)}"'
COUNTED_CALLS = f'outcome!="{UNCOUNTED_OUTCOME}"'
USER_LIMITED = 'scope="user"'
"""Matches calls that ended at their user's own rate limit, in ``dispatch_rate_limited_total``. They are throttled calls, and
neither good nor bad (:func:`exclude_user_limited`)."""
KNOWN_TOOLS = 'tool!="_OTHER"'
"""Matches tools of the catalogue: ``_OTHER`` counts calls of unknown names."""


def without(*labels: str) -> str:
    """Return a ``without (...)`` clause with ``labels`` and the labels of processes."""
    return f"without ({', '.join((*PER_PROCESS, *labels))})"


def series(metric: str, *matchers: str) -> str:
    """Return a selector of ``metric`` with these matchers."""
    return f"{metric}{{{','.join(matchers)}}}" if matchers else metric


def rate(metric: str, window: str, *matchers: str, over: tuple[str, ...]) -> str:
    """Return the rate per second, summed over processes and the labels ``over``."""
    return f"sum {without(*over)} (rate({series(metric, *matchers)}[{window}]))"


def increase(metric: str, window: str, *matchers: str, over: tuple[str, ...]) -> str:
    """Return the increase within ``window``, summed over processes and the labels ``over``."""
    return f"sum {without(*over)} (increase({series(metric, *matchers)}[{window}]))"


def exclude_user_limited(calls: str, change: Callable[..., str], window: str, *matchers: str) -> str:
    """Return the number or rate ``calls`` without the calls that ended at their user's own rate limit: the limit protects
    all other users, and one user alone must not spend the tool's error budget.

    Args:
        calls: expression by tool, in which these calls are included.
        change: :func:`rate` or :func:`increase`, as in ``calls``.
        window, matchers: as in ``calls``, without outcomes.
    """
    return subtract(calls, change("dispatch_rate_limited_total", window, *matchers, USER_LIMITED, over=("scope",)))


def subtract(calls: str, limited: str) -> str:
    """Return ``calls`` - ``limited``, at least 0; ``limited`` may have no series."""
    return f"clamp_min({calls} - ({limited} or 0 * {calls}), 0)"


def quote(value: str) -> str:
    """Quote ``value`` as a PromQL string."""
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'
