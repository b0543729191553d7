"""Values as admin endpoints return them: two dispatchers that call two services, and one service."""

from __future__ import annotations

from typing import Any

AT = 1_795_710_000.0
"""A point in time, in seconds since the epoch."""
A, B, C = "http://127.0.0.1:9464", "http://127.0.0.1:9465", "http://127.0.0.1:9466"


def process(url: str, **facts: Any) -> dict[str, Any]:
    base = {"kind": "dispatcher", "name": "5d0c3be19a42", "version": "0.9.0", "host": "agents-1", "pid": 4711}
    load = {"uptime": 3600.5, "ready": True, "reasons": [], "calls": 81_234, "failed": 12, "in_flight": 3, "rate": 22.5}
    return {**base, **load, "url": url, "state": "ready", "problem": "", **facts}


def tool(name: str, service: str = "shop", **facts: Any) -> dict[str, Any]:
    counts = {"calls": 8_123, "failed": 2, "refused": 5, "in_flight": 1, "queued": 0, "rate": 12.5}
    times = {"failure_rate": 0.001, "p50": 0.012, "p95": 0.04, "p99": None}
    health = {"circuit": "closed", "instances": 3, "instances_up": 3}
    return {"name": name, "version": "1.4.0", "service": service, **counts, **times, **health, "url": A, **facts}


def instance(id: str, state: str = "up", **facts: Any) -> dict[str, Any]:
    load = {"weight": 1.0, "in_flight": 2, "seconds_left": None, "failures": 0, "ejections": 0, "latency": 0.012}
    own = dict.fromkeys(("queued", "concurrency", "requests", "errors", "refused"))
    base = {"id": id, "service": "shop", "state": state, "version": "1.4.0", "kind": "session", "is_held": False}
    return {**base, **load, **own, "url": A, **facts}


def circuit(tool: str, state: str = "closed", **facts: Any) -> dict[str, Any]:
    rates = {"retry_after": None, "failure_rate": 0.0, "slow_call_rate": 0.0, "until": None}
    return {"tool": tool, "version": "1.4.0", "instance": None, "state": state, **rates, "url": A, **facts}


def user(name: str, **facts: Any) -> dict[str, Any]:
    return {
        "user": name,
        "calls": 321,
        "failed": 1,
        "refused": 0,
        "rate": 0.5,
        "last": AT,
        "tools": None,
        "url": A,
        **facts,
    }


def call(id: str, tool: str = "price", outcome: str = "success", **facts: Any) -> dict[str, Any]:
    base = {
        "id": id,
        "at": AT,
        "tool": tool,
        "version": "1.4.0",
        "user": "alice",
        "outcome": outcome,
        "rejected_by": None,
    }
    times = {"duration": 0.0123, "wait": 0.0, "attempts": 1, "instance": "shop-1", "trace_id": ""}
    error = None if outcome == "success" else outcome
    return {**base, "error": error, "ran": "yes", **times, "url": A, "process": "5d0c3be19a42", **facts}


def timed_out_call() -> dict[str, Any]:
    """A call that waited for a place, was tried at two instances, and timed out."""
    first = {"number": 1, "reason": "first", "request_id": "r-1", "instance": "shop-2", "start": 0.1, "duration": 1.0}
    second = {"number": 2, "reason": "retry", "request_id": "r-2", "instance": "shop-1", "start": 1.2, "duration": 0.8}
    return call(
        "8124",
        outcome="timeout",
        ran="maybe",
        duration=2.0,
        wait=0.1,
        attempts=2,
        instance="shop-2",
        trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
        service="shop",
        message="Tool 'price' did not reply within 2 s. It may have been executed.",
        chunks=0,
        arguments=None,
        waits=[{"start": 0.0, "duration": 0.1}],
        trail=[
            {**first, "outcome": "transport", "error": "instance-lost", "sent": True},
            {**second, "outcome": "timeout", "error": "timeout", "sent": True},
        ],
    )


def values() -> dict[str, list[dict[str, Any]]]:
    """Values of all tables, merged."""
    return {
        "processes": [
            process(A),
            process(B, name="7bb1", rate=2.0),
            process(C, kind="service", name="shop-2", state="unreachable", problem=f"{C} does not answer: refused"),
        ],
        "tools": [
            tool("find", rate=3.0),
            tool("price", failed=212, failure_rate=0.26, p95=1.2, circuit="open", instances_up=2),
            tool("translate", "words", refused=0, failed=0, failure_rate=0.0, circuit=None, instances=None),
        ],
        "instances": [
            instance("shop-1"),
            instance("shop-2", "ejected", seconds_left=12.3, failures=5, ejections=2, latency=None),
            instance("words-1", service="words", in_flight=0, queued=3, requests=912, errors=0),
        ],
        "circuits": [
            circuit("find"),
            circuit("price", "open", retry_after=3.2, failure_rate=0.6),
            circuit("translate"),
        ],
        "users": [user("alice"), user("bob", calls=4_000, refused=912, rate=11.0)],
        "sessions": [
            {"service": "shop", "peer": "shop-1", "state": "open", "rtt": 0.0004, "window": 1, "in_flight_bytes": 0}
            | {"queued_bytes": 0, "packets_sent": 120, "packets_received": 118, "retransmissions": 0, "duplicates": 0}
        ],
        "calls": [
            call("8124", outcome="timeout", ran="maybe", duration=2.0, attempts=2, instance="shop-2"),
            call("8123"),
            call("8122", "find", user=""),
        ],
        "events": [
            {
                "event": "instance",
                "at": AT,
                "service": "shop",
                "instance": "shop-2",
                "change": "ejected",
                "reason": "5 failures",
            },
            {"event": "circuit", "at": AT + 1, "tool": "price", "instance": None, "old": "closed", "new": "open"}
            | {"reason": "failure rate", "version": "1.4.0"},
        ],
    }
