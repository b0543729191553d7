"""The world of the demo: its services and their faults, agents and scripts, catalogue, times and counts."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import operator
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Final

from dispatch.catalog import Catalog
from dispatch.dispatcher import Dispatcher
from dispatch.errors import DispatchError, ErrorType, Outcome, ToolError
from dispatch.messaging.wire import Property, decode_request
from dispatch.policy import DEFAULT_POLICY, RateLimit
from dispatch.result import CallResult
from dispatch.serving.plain import ReplyRouter
from dispatch.serving.tool_service import ToolService
from dispatch.transports import Message, Mode, Transport

WORDS: Final = {"cat": "gato", "cheese": "queso", "lighthouse": "faro", "kettle": "hervidor"}
RATES: Final = {"EUR/USD": "1.08", "EUR/JPY": "162.40", "GBP/EUR": "1.17"}


class Translator(ToolService):
    """Translates a word in 20 to 50 ms; one instance of several.

    Attributes:
        is_slow: it takes :data:`SLOW_S` instead.
    """

    SLOW_S: Final = 2.0
    NORMAL_S: Final = (0.02, 0.05)

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.is_slow = False

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        await asyncio.sleep(self.SLOW_S if self.is_slow else self._chance.uniform(*self.NORMAL_S))
        word = str(arguments.get("word", ""))
        return WORDS.get(word, f"(no word for {word!r})")


class Rates(ToolService):
    """Returns current exchange rates.

    Attributes:
        is_hanging: it receives requests and never replies.
    """

    def __init__(self) -> None:
        self.is_hanging = False

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        if self.is_hanging:
            await asyncio.Event().wait()  # until the server cancels it at the caller's deadline
        await asyncio.sleep(0.01)
        return _rate(arguments)


class Ledger(ToolService):
    """Returns yesterday's exchange rates: the alternative while the rates service hangs."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return f"{_rate(arguments)} (yesterday)"


class Search(ToolService):
    """Searches pages. Its tool has a rate limit per user."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        await asyncio.sleep(0.02)
        return f"{len(str(arguments.get('query', ''))) * 7} pages"


def _rate(arguments: dict[str, Any]) -> str:
    pair = str(arguments.get("pair", ""))
    return RATES.get(pair, f"no rate for {pair}")


# Times of the guards and scenarios, scaled to the duration of the demo.


DEFAULT_SECONDS: Final = 20.0
"""Long enough to read the events, short enough to watch completely."""
MIN_SECONDS: Final = 5.0
"""Minimum duration: below it the guards' times approach the duration of a call and the scenarios fail."""
USER_RATE: Final = RateLimit("5/s", max_wait=0.01)
"""Rate limit per user of the tool that the noisy user calls. The short wait makes rejections visible."""

_WAITED_S: Final = 2.4
"""Duration of timeouts and print jobs, which does not scale."""


class TimeScale:
    """Times in seconds, as shares of the total.

    Args:
        seconds: approximate total duration.

    Attributes:
        ejection_time: of an instance.
        slow_start_window: after an ejection.
        open_duration: of a circuit breaker.
        every_outcome, noisy_user: durations of these scenarios.
        steady_period: before and after each fault.
        total: the expected total duration.
    """

    def __init__(self, seconds: float) -> None:
        shares = (0.1, 0.1, 0.12, 0.2, 0.17, 0.03)
        times = [round(seconds * share, 2) for share in shares]
        self.ejection_time, self.slow_start_window, self.open_duration = times[:3]
        self.every_outcome, self.noisy_user, self.steady_period = times[3:]
        self.total = sum(times[:5]) + 5 * self.steady_period + _WAITED_S

    @property
    def note(self) -> str:
        """Describe the times that are shorter than the defaults, for people."""
        outliers, breaker = DEFAULT_POLICY.outlier_detection, DEFAULT_POLICY.breaker
        assert breaker is not None  # the defaults have all of them
        assert outliers is not None
        assert outliers.slow_start_window is not None
        return (
            f"Shortened: ejected {self.ejection_time:g} s (default {outliers.base_ejection_time:g}), slow start "
            f"{self.slow_start_window:g} s ({outliers.slow_start_window:g}), open "
            f"{self.open_duration:g} s ({breaker.open_duration:g})"
        )


# Counts of the demo by tool, outcome and user. No I/O, no clock.


MAX_LATENCIES: Final = 4_096
"""Latest durations stored per tool: more than a demo makes calls."""
SNIPPET_CHARS: Final = 48


@dataclass
class ToolScore:
    """Counts of one tool. Durations are in seconds. ``latest``: number, over all tools, of its last call that began."""

    calls: int = 0
    latest: int = 0
    in_flight: int = 0
    chunks: int = 0
    last: str = ""
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_LATENCIES))
    first_chunks: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_LATENCIES))

    @property
    def ok(self) -> int:
        """Return the number of successful calls."""
        return self.outcomes[Outcome.SUCCESS]

    @property
    def errors(self) -> int:
        """Return the number of calls that ended otherwise."""
        return self.outcomes.total() - self.ok

    def percentile(self, share: float) -> float | None:
        """Return the percentile ``share`` (0 to 1) of successful durations, by nearest rank; None without any."""
        return nearest_rank(self.durations, share)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; durations in milliseconds."""
        return {
            "calls": self.calls,
            "ok": self.ok,
            "errors": self.errors,
            "p50_ms": _milliseconds(self.percentile(0.5)),
            "p95_ms": _milliseconds(self.percentile(0.95)),
            "chunks": self.chunks,
            "first_chunk_p50_ms": _milliseconds(nearest_rank(self.first_chunks, 0.5)),
        }


@dataclass
class UserScore:
    """Calls of one user to a tool with a rate limit per user."""

    admitted: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class Example:
    """The first error of an outcome, as an example of its message."""

    tool: str
    type: str
    message: str


class Scoreboard:
    """Counts calls as they start and end."""

    def __init__(self) -> None:
        self.tools: dict[str, ToolScore] = {}
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.examples: dict[Outcome, Example] = {}
        self.users: dict[str, UserScore] = {}
        self.searches = 0
        self.wrong_searches = 0
        self._begun = 0

    def record_search(self, is_right: bool) -> None:
        """Record a search for a tool. ``is_right``: the first tool found is the expected one."""
        self.searches += 1
        self.wrong_searches += not is_right

    def track_users(self, names: Iterable[str]) -> None:
        """Start counting the calls of these users."""
        self.users = {name: UserScore() for name in names}

    def record_start(self, tool: str) -> None:
        """Record the start of a call of ``tool``."""
        score = self.tools.setdefault(tool, ToolScore())
        score.calls += 1
        score.in_flight += 1
        self._begun += 1
        score.latest = self._begun

    def record_chunk(self, tool: str, text: str, first_after: float | None = None) -> None:
        """Record a chunk.

        Args:
            text: the reply so far.
            first_after: for the first chunk, seconds since the start of the call.
        """
        score = self.tools[tool]
        score.chunks += 1
        if first_after is not None:
            score.first_chunks.append(first_after)
        score.last = f"…{snippet(text[-40:])}"

    def record_cancellation(self, tool: str) -> None:
        """Record a cancelled call."""
        error = DispatchError(ErrorType.CANCELLED, "The agent cancelled the call.")
        self.record_end(tool, CallResult(tool, Outcome.CANCELLED, error=error))

    def record_end(self, tool: str, result: CallResult) -> None:
        """Record a call that has ended."""
        score, error = self.tools[tool], result.error
        self.outcomes[result.outcome] += 1
        score.outcomes[result.outcome] += 1
        score.in_flight -= 1
        if error is None:
            score.durations.append(result.duration)
            score.last = snippet(result.text)
        else:
            score.last = f"✗ {error.type}"
            self.examples.setdefault(result.outcome, Example(tool, error.type, error.message))

    @property
    def calls(self) -> int:
        """Return the number of calls started."""
        return sum(score.calls for score in self.tools.values())

    @property
    def in_flight(self) -> int:
        """Return the number of calls in flight."""
        return sum(score.in_flight for score in self.tools.values())


def nearest_rank(values: deque[float], share: float) -> float | None:
    """Return the smallest value that at least ``share`` (0 to 1) of ``values`` do not exceed; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]


def snippet(text: str) -> str:
    """Return the beginning of ``text`` in one line."""
    line = " ".join(text.split())
    return line if len(line) <= SNIPPET_CHARS else line[: SNIPPET_CHARS - 1] + "…"


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


# The demo's agents and their scripts.


Step = tuple[str, dict[str, Any]]

QUERIES: Final = {"alice": "a short joke about cats", "dave": "work out an arithmetic expression"}
"""What these agents search for before each call: they know no tool by name."""

SCRIPTS: Final[dict[str, tuple[Step, ...]]] = {
    "alice": (("tell-joke", {"topic": "cats"}),),
    "bob": (("calculate", {"expression": "(17.5 + 3) * 12 / 4"}), ("calculate", {"expression": "2 * 21"})),
    "carol": (("query-customers", {"question": "Any complaint?"}), ("search-archive", {"year": 2019})),
    "dave": (("calculate", {"expression": "1 / 8"}),),
    "erin": (("search-archive", {"year": 2012}), ("query-products", {"question": "Which bulb for the lamp?"})),
    "frank": (
        ("tell-story", {"subject": "a lighthouse keeper"}),
        ("query-customers", {"question": "How many returns?"}),
    ),
}
"""The calls that each agent with a script repeats."""

STREAMED: Final = frozenset({"tell-story"})

WARM_UP: Final[tuple[Step, ...]] = (
    ("tell-joke", {"topic": "programming"}),
    ("calculate", {"expression": "1 + 1"}),
    ("query-products", {"question": "Which products are new?"}),
    ("tell-story", {"subject": "a first call"}),
    ("search-archive", {"year": 2025}),
    ("print-label", {"text": "fragile"}),
    ("translate", {"word": "cat"}),
    ("exchange-rate", {"pair": "EUR/USD"}),
    ("last-known-rate", {"pair": "EUR/USD"}),
    ("search-web", {"query": "pulsar"}),
)
"""One call per service: the first call opens the topics, which takes up to a second on a Pulsar broker."""

WARM_UP_TIMEOUT_S: Final = 15.0


class Agent:
    """An agent: calls tools and counts the calls on the scoreboard."""

    def __init__(self, name: str, dispatcher: Dispatcher, board: Scoreboard) -> None:
        self.name = name
        self._dispatcher = dispatcher
        self._board = board

    async def call(self, tool: str, arguments: Any, timeout: float | None = None) -> CallResult:
        """Call a tool, record its outcome and return the result."""
        self._board.record_start(tool)
        try:
            result = await self._dispatcher.execute(tool, arguments, user=self.name, timeout=timeout)
        except asyncio.CancelledError:
            self._board.record_cancellation(tool)
            raise
        self._board.record_end(tool, result)
        return result

    async def stream(self, tool: str, arguments: dict[str, Any], timeout: float | None = None) -> None:
        """Call a tool, receive its reply as a stream, and record its outcome."""
        self._board.record_start(tool)
        clock = asyncio.get_running_loop().time
        started, text = clock(), ""
        try:
            async for chunk in self._dispatcher.stream(tool, arguments, user=self.name, timeout=timeout):
                self._board.record_chunk(tool, text + chunk, None if text else clock() - started)
                text += chunk
            result = CallResult(tool, Outcome.SUCCESS, text, duration=clock() - started)
        except DispatchError as error:
            result = CallResult(tool, error.outcome, error=error)
        except asyncio.CancelledError:
            self._board.record_cancellation(tool)
            raise
        self._board.record_end(tool, result)

    async def find_tool(self, step: Step) -> Step:
        """Return the step with the tool that a search finds, if the agent searches."""
        query = QUERIES.get(self.name)
        if query is None:
            return step
        (found,) = await self._dispatcher.find(query, limit=1, user=self.name)
        self._board.record_search(found.name == step[0])
        return found.name, step[1]

    async def run_step(self, step: Step, timeout: float | None = None) -> None:
        """Run one step of a script."""
        tool, arguments = step
        await (self.stream if tool in STREAMED else self.call)(tool, arguments, timeout)

    async def run_script(self, is_running: Callable[[], bool], chance: random.Random) -> None:
        """Repeat the script while ``is_running()``, with short pauses between the calls."""
        for step in cycle(SCRIPTS[self.name]):
            if not is_running():
                return
            await self.run_step(await self.find_tool(step))
            await asyncio.sleep(chance.uniform(0.01, 0.06))


# The demo's catalogue: services and tools, in the notation of descriptor files.


WEATHER_TIMEOUT_S: Final = 0.8
"""Timeout of a call of the weather service: short, to show a timeout."""

RATES_TIMEOUT_S: Final = 0.4
"""Timeout of a call of the rates service: its callers wait this long until its circuit breaker opens."""
TRANSLATE_ATTEMPT_S: Final = 0.4
"""Attempt timeout of a translation, after which another instance is tried: ten times its usual duration."""

SERVICES: Final = (
    *("joke", "calculator", "rag", "story", "archive", "printer", "weather"),
    *("translate", "rates", "ledger", "search"),
)


def demo_catalog(run: str, time_scale: TimeScale) -> Catalog:
    """Build the catalogue of one run.

    Args:
        run: part of the topic names, which separates runs on one broker.
        time_scale: the times of the policies.
    """
    services: dict[str, dict[str, Any]] = {name: _service(name, run) for name in SERVICES}
    services["joke"]["config-params"] = [{"name": "style"}]
    services["rag"]["config-params"] = [{"name": "collection", "required": True}]
    services["weather"]["policy"] = {"timeout": WEATHER_TIMEOUT_S}
    services["printer"]["policy"] = {"retry": 1}  # a throttled call reaches its caller instead of being retried
    services["translate"]["policy"] = {
        "attempt-timeout": TRANSLATE_ATTEMPT_S,
        "outlier-detection": {
            "consecutive-failures": 3,
            "base-ejection-time": time_scale.ejection_time,
            "slow-start-window": time_scale.slow_start_window,
        },
    }
    services["rates"]["policy"] = {
        "timeout": RATES_TIMEOUT_S,
        "breaker": {"consecutive-failures": 3, "open-duration": time_scale.open_duration, "half-open-calls": 1},
    }
    services["search"]["policy"] = {"user-rate-limit": USER_RATE.as_document(), "retry": 1}
    question = _text("question", "A whole question.")
    pair = _text("pair", "Two currencies, for example: EUR/USD")
    tools = [
        _tool("tell-joke", "joke", "Tell one short joke about a topic.", _text("topic", "One word."), style="pun"),
        _tool(
            "calculate",
            "calculator",
            "Work out an arithmetic expression exactly.",
            _text("expression", "For example: (17.5 + 3) * 12 / 4"),
        ),
        _tool("query-products", "rag", "Answer a question about products.", question, collection="products"),
        _tool("query-customers", "rag", "Answer a question about customers.", question, collection="customers"),
        _tool("tell-story", "story", "Tell a short story as a stream.", _text("subject", "Its main character.")),
        _tool(
            "search-archive",
            "archive",
            "Search the archive. The older the year, the longer it takes.",
            {"name": "year", "type": "integer", "description": "For example: 2020", "required": True},
        ),
        _tool("print-label", "printer", "Print a label. There is one printer.", _text("text", "Text on the label.")),
        _tool("weather", "weather", "Tell the weather of a place.", _text("place", "A town.")),
        {
            # Read-only: a slow attempt may be retried at another instance.
            **_tool("translate", "translate", "Translate a word into Spanish.", _text("word", "An English word.")),
            "read-only": True,
        },
        {**_tool("exchange-rate", "rates", "The rate of this moment.", pair), "category": "money"},
        {**_tool("last-known-rate", "ledger", "The rate of yesterday.", pair), "category": "money"},
        _tool("search-web", "search", "Search the web.", _text("query", "A few words.")),
    ]
    return Catalog.of(services.values(), tools)


def _service(name: str, run: str) -> dict[str, Any]:
    return {
        "id": f"{name}-service",
        "request-queue": f"non-persistent://tg/request/{run}-{name}",
        "response-queue": f"non-persistent://tg/response/{run}-{name}",
    }


def _tool(name: str, service: str, description: str, *arguments: dict[str, Any], **config: str) -> dict[str, Any]:
    return {
        "type": "tool-service",
        "name": name,
        "description": description,
        "service": f"{service}-service",
        "arguments": list(arguments),
        **config,
    }


def _text(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "type": "string", "description": description, "required": True}


# The demo's tool services, written as a user would write them; sleeps stand for real work.


JOKES: Final = {
    "cats": "Why do cats never play poker in the jungle? Too many cheetahs.",
    "cheese": "What do you call cheese that is not yours? Nacho cheese.",
    "programming": "There are 10 kinds of people: those who count in binary, and those who do not.",
}
SHELVES: Final = {
    "products": {"kettle": "The K-2 boils a litre in 2 min 40 s.", "lamp": "The lamp takes an E14 bulb of up to 40 W."},
    "customers": {
        "complaint": "Most complaints of last month were about late parcels.",
        "returns": "One order in nineteen comes back.",
    },
}


class Joke(ToolService):
    """Tells a joke in 5 to 40 ms, like a nearby HTTP service."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        await asyncio.sleep(self._chance.uniform(0.005, 0.04))
        topic = str(arguments.get("topic", ""))
        known = f"I know no {config.get('style', 'joke')} about {topic}, and that is no joke."
        return JOKES.get(topic, known)


_OPERATORS: Final[dict[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}


class Calculator(ToolService):
    """Evaluates an expression. Its errors reach the caller as tool errors with their type."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> float:
        return _value(ast.parse(str(arguments["expression"])[:200], mode="eval").body)


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Div) and right == 0:
            raise ToolError("division-by-zero", "The expression divides by zero: change the divisor.")
        return float(_OPERATORS[type(node.op)](left, right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return float(_OPERATORS[type(node.op)](_value(node.operand)))
    raise ToolError("unknown-syntax", "The expression may contain numbers, + - * / and parentheses.")


class CustomRag(ToolService):
    """Answers questions from a collection: one service behind two tools, distinguished by their config."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> dict[str, str]:
        await asyncio.sleep(self._chance.uniform(0.03, 0.12))
        shelf = SHELVES[config["collection"]]
        question = str(arguments.get("question", "")).lower()
        answer = next((text for word, text in shelf.items() if word in question), "Nothing about that.")
        return {"collection": config["collection"], "answer": answer}


class Story(ToolService):
    """Tells a story word by word: an async generator makes the reply a stream."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> AsyncIterator[str]:
        story = f"Once {arguments.get('subject', 'a keeper')} kept a light burning for ships that never came, until one did."
        for word in story.split():
            yield f"{word} "
            await asyncio.sleep(0.02)


class Archive(ToolService):
    """Searches slowly: 10 ms per year before 2025."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        year = int(arguments["year"])
        await asyncio.sleep(min(5.0, max(0, 2025 - year) * 0.01))
        return f"{(year * 7) % 90 + 10} papers of {year}"


class Printer(ToolService):
    """Prints one label at a time: served with concurrency 1 and no queue."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        await asyncio.sleep(0.4)
        return f"printed: {arguments.get('text', '')}"


@contextlib.asynccontextmanager
async def broken_service(transport: Transport, request_queue: str, response_queue: str) -> AsyncIterator[None]:
    """Reply with an HTML page inside the context, like a misconfigured proxy: a malformed reply. Requests for Atlantis get
    none.

    Args:
        transport: a started transport.
        request_queue, response_queue: the topics.
    """
    replies = ReplyRouter(transport, response_queue)

    def answer(message: Message) -> None:
        properties = message.properties()
        if "Atlantis" not in decode_request(message.data()).arguments.values():
            replies.send(properties, b"<html>502 Bad Gateway</html>", {Property.ID: properties[Property.ID]})

    await replies.start()
    subscription = await transport.subscribe(request_queue, answer, mode=Mode.SHARED, name="weather-request")
    try:
        yield
    finally:
        await subscription.close()
        await replies.close()
