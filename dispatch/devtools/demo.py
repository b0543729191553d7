"""The demo: agents call tools on one broker for about 20 s while scenarios inject faults, and each checks the result.

``dispatch demo`` displays it; :class:`Demo` runs it without output. Its world (services and their faults, agents
and scripts, catalogue, times and counts) comes first, then the scenarios, then a run.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import operator
import random
import secrets
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import cycle
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from dispatch.admin import Admin
from dispatch.catalog import Catalog
from dispatch.dispatcher import Dispatcher
from dispatch.errors import DispatchError, ErrorType, Outcome, ToolError, TransportError
from dispatch.messaging.wire import Property, decode_request
from dispatch.policy import DEFAULT_POLICY, Policy, RateLimit
from dispatch.resilience.breaker import BreakerRules, State
from dispatch.resilience.instances import InstanceView
from dispatch.results import CallResult
from dispatch.server import ToolServer
from dispatch.serving.plain import ReplyRouter
from dispatch.serving.tool_service import ToolService
from dispatch.transports import Message, Mode, Security, Transport, open_transport

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


# The scenarios. Each injects a fault, observes the dispatcher's guards, and checks their reaction.


POLL_S: Final = 0.02
"""Poll interval for the state of the guards: far shorter than the shortest state."""
STATE_TIMEOUT_S: Final = 15.0
"""Additional time to wait for an expected state, beyond its usual time; afterwards it is a deviation."""


class Event(NamedTuple):
    """An event, ``at`` seconds after the start of the run."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class ScenarioContext:
    """Shared objects of the scenarios: dispatcher, counts, times, and the events of the run in order."""

    dispatcher: Dispatcher
    board: Scoreboard
    time_scale: TimeScale
    events: list[Event] = field(default_factory=list)
    clock: Callable[[], float] = field(default_factory=lambda: asyncio.get_running_loop().time)
    started_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    def record(self, text: str) -> None:
        """Record an event with the current time."""
        self.events.append(Event(self.clock() - self.started_at, text))

    def create_agent(self, name: str) -> Agent:
        """Create an agent."""
        return Agent(name, self.dispatcher, self.board)


class Scenario(ABC):
    """One scenario.

    Attributes:
        title: its subject, in a few words.
        tools: tools that only this scenario calls; it checks the outcomes of their calls.
        agents: names of its agents.
        is_running: whether its agents continue to call.
    """

    title: ClassVar[str]
    tools: ClassVar[frozenset[str]] = frozenset()
    agents: ClassVar[Sequence[str]] = ()

    def __init__(self, context: ScenarioContext) -> None:
        self.context = context
        self.is_running = True

    async def run(self) -> None:
        """Run the steps while the agents call; calls in flight at the end are completed."""
        async with asyncio.TaskGroup() as group:
            for name in self.agents:
                group.create_task(self.call_as(name))
            try:
                await self.run_steps()
            finally:
                self.is_running = False

    async def call_as(self, name: str) -> None:  # noqa: B027 - optional: not every scenario has agents
        """Call as the agent ``name`` until :attr:`is_running` becomes false."""

    @abstractmethod
    async def run_steps(self) -> None:
        """Inject the fault, wait for the guards' reaction, and remove the fault."""

    def record_states(self) -> None:  # noqa: B027 - optional: not every scenario changes the state of a guard
        """Record state changes of the guards; called while the scenario waits."""

    async def wait_until(self, condition: Callable[[], bool], usual: float = 0.0) -> bool:
        """Poll until ``condition()``; return False if it does not hold within ``usual`` + :data:`STATE_TIMEOUT_S` s."""
        clock = self.context.clock
        limit = clock() + usual + STATE_TIMEOUT_S
        while True:
            self.record_states()
            if condition():
                return True
            if clock() >= limit:
                return False
            await asyncio.sleep(POLL_S)

    async def wait_for_state(self, states: Sequence[str], number: int, usual: float = 0.0) -> bool:
        """Wait until ``states`` has its item ``number``; :meth:`record_states` or a callback appends to it."""
        return await self.wait_until(lambda: len(states) > number, usual)

    async def wait(self, seconds: float) -> None:
        """Wait ``seconds`` while recording state changes."""
        end = self.context.clock() + seconds
        await self.wait_until(lambda: self.context.clock() >= end, seconds)

    @abstractmethod
    def find_deviations(self) -> list[str]:
        """List deviations from the expected reaction."""

    @abstractmethod
    def describe_result(self) -> str:
        """Describe the result with its figures, in sentences."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values."""


def format_states(states: Iterable[str]) -> str:
    """Format states in their order."""
    return " → ".join(states)


# One call or a few for every outcome, so that the expected counts are known.


EXPECTED_OUTCOMES: Final = {
    Outcome.TOOL_ERROR: 1,
    Outcome.INVALID_ARGUMENTS: 1,
    Outcome.THROTTLED: 2,
    Outcome.TIMEOUT: 1,
    Outcome.TRANSPORT: 1,
    Outcome.CANCELLED: 1,
    Outcome.REJECTED: 1,
}
"""Expected count of each outcome except success, over all tools that no other scenario calls."""


class EveryOutcome(Scenario):
    """Produces every outcome.

    Args:
        context: shared objects.
        elsewhere: tools that other scenarios call; their outcomes are not counted here.
    """

    title = "Every outcome"

    def __init__(self, context: ScenarioContext, elsewhere: Iterable[str] = ()) -> None:
        super().__init__(context)
        self._elsewhere = frozenset(elsewhere)
        self._agent = context.create_agent("mallory")
        weather = partial(self._agent.call, "weather")
        self.steps: tuple[tuple[str, Callable[[], Awaitable[object]]], ...] = (
            ("an unknown tool with a similar name", partial(self._agent.call, "tell-jokes", {"topic": "cats"})),
            ("a tool's own error", partial(self._agent.call, "calculate", {"expression": "1 / 0"})),
            ("arguments that are not an object", partial(self._agent.call, "tell-joke", ["cats"])),
            ("a service with a malformed reply", partial(weather, {"place": "Tromsø"}, WARM_UP_TIMEOUT_S)),
            ("a service that does not reply", partial(weather, {"place": "Atlantis"})),
            ("three calls of a printer with concurrency 1", self._overload),
            ("an agent that cancels its call", self._cancellation),
        )
        """Title and action of each step, in order."""

    async def run_steps(self) -> None:
        clock = self.context.clock
        began, pause = clock(), self.context.time_scale.every_outcome / len(self.steps)
        for number, (title, run_step) in enumerate(self.steps):
            await asyncio.sleep(max(0.0, began + number * pause - clock()))
            self.context.record(f"{title[0].upper()}{title[1:]}.")
            await run_step()

    def find_deviations(self) -> list[str]:
        outcomes = self.count_outcomes()
        return [
            f"{outcome}: {outcomes[outcome]} instead of {number}"
            for outcome, number in EXPECTED_OUTCOMES.items()
            if outcomes[outcome] != number
        ]

    def count_outcomes(self) -> dict[Outcome, int]:
        """Return the outcomes of calls to all tools that no other scenario calls."""
        tools = self.context.board.tools.items()
        return {
            outcome: sum(score.outcomes[outcome] for name, score in tools if name not in self._elsewhere)
            for outcome in Outcome
        }

    def describe_result(self) -> str:
        produced = sum(count > 0 for count in self.count_outcomes().values())
        return f"{len(self.steps)} steps produced {produced} of {len(Outcome)} outcomes."

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "outcomes": {str(outcome): count for outcome, count in self.count_outcomes().items()},
        }

    async def _overload(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in (1, 2, 3):
                group.create_task(self._agent.call("print-label", {"text": f"parcel {number}"}))

    async def _cancellation(self) -> None:
        # The archive needs 350 ms for this year: the call is in flight when it is cancelled.
        calling = asyncio.ensure_future(self._agent.call("search-archive", {"year": 1990}))
        await asyncio.sleep(0.05)
        calling.cancel()
        await asyncio.wait([calling])


# One instance becomes slow. Outlier detection ejects it, slow start brings it back, and every call succeeds.


SLOW_SERVICE: Final = "translate-service"
SLOW_TOOL: Final = "translate"
SLOW_INSTANCE: Final = "translate-2"
INSTANCE_STATES: Final = ("up", "ejected", "warming", "up")
TRANSLATE_CALLERS: Final = ("ines", "jonas", "karin")
TRANSLATE_PAUSE_S: Final = 0.03


class SlowInstance(Scenario):
    """A slow instance is ejected and returns.

    Args:
        context: shared objects.
        translators: services by instance id.

    Attributes:
        states_by_instance: states of each instance, in order.
        calls, retried: number of calls; those with more than one attempt.
        results_while_ejected: successful calls while the instance was ejected.
    """

    title = "A slow instance"
    tools = frozenset({SLOW_TOOL})
    agents = TRANSLATE_CALLERS

    def __init__(self, context: ScenarioContext, translators: Mapping[str, Translator]) -> None:
        super().__init__(context)
        self._translators = translators
        self._views: tuple[InstanceView, ...] = ()
        self.states_by_instance: dict[str, list[str]] = {}
        self.calls = self.succeeded = self.retried = self.results_while_ejected = 0
        self.slowest = 0.0

    async def call_as(self, name: str) -> None:
        agent = self.context.create_agent(name)
        for word in cycle(WORDS):
            if not self.is_running:
                return
            result = await agent.call(SLOW_TOOL, {"word": word})
            self.calls += 1
            self.succeeded += result.outcome is Outcome.SUCCESS
            self.retried += result.attempts > 1
            self.slowest = max(self.slowest, result.duration)
            self.results_while_ejected += (
                result.ok and self.states_by_instance.get(SLOW_INSTANCE, [""])[-1] == "ejected"
            )
            await asyncio.sleep(TRANSLATE_PAUSE_S)

    async def run_steps(self) -> None:
        time_scale, record = self.context.time_scale, self.context.record
        slow = self._translators[SLOW_INSTANCE]
        ready = await self.wait_until(
            lambda: len(self._views) == len(self._translators) and all(view.state == "up" for view in self._views),
            time_scale.slow_start_window,  # new instances begin in slow start
        )
        if not ready:
            return
        self.states_by_instance = {view.id: [view.state] for view in self._views}
        await self.wait(time_scale.steady_period)
        slow.is_slow = True
        record(f"{SLOW_INSTANCE} becomes slow: {slow.SLOW_S:g} s per call instead of at most {slow.NORMAL_S[1]:g} s.")
        for number, usual in enumerate((0.0, time_scale.ejection_time, time_scale.slow_start_window), 1):
            if not await self.wait_for_state(self.states_by_instance[SLOW_INSTANCE], number, usual):
                break
            if INSTANCE_STATES[number] == "ejected":
                await self.wait(time_scale.ejection_time / 2)
                slow.is_slow = False
                record(f"{SLOW_INSTANCE} has recovered; the dispatcher does not know yet.")
        slow.is_slow = False
        await self.wait(time_scale.steady_period)

    def record_states(self) -> None:
        self._views = self.context.dispatcher.instances(SLOW_SERVICE)
        for view in self._views:
            states = self.states_by_instance.get(view.id)
            if states is None or states[-1] == view.state:
                continue
            self.context.record(f"{view.id}: {states[-1]} → {view.state}{_describe_state(view)}")
            states.append(view.state)

    def find_deviations(self) -> list[str]:
        found = []
        if not self.states_by_instance:
            found.append(
                f"the instances of {SLOW_SERVICE} were not all up but {format_states([v.state for v in self._views])}"
            )
        for id, states in self.states_by_instance.items():
            planned = INSTANCE_STATES if id == SLOW_INSTANCE else INSTANCE_STATES[:1]
            if tuple(states) != planned:
                found.append(f"{id} was {format_states(states)} instead of {format_states(planned)}")
        if self.succeeded != self.calls:
            found.append(f"{self.calls - self.succeeded} of {self.calls} calls of {SLOW_TOOL} did not succeed")
        if not self.results_while_ejected:
            found.append(f"no call of {SLOW_TOOL} succeeded while {SLOW_INSTANCE} was ejected")
        return found

    def describe_result(self) -> str:
        return (
            f"{SLOW_INSTANCE} became slow: {format_states(self.states_by_instance.get(SLOW_INSTANCE, []))}. "
            f"{self.succeeded} of {self.calls} calls of {SLOW_TOOL} succeeded, {self.retried} of them by a retry at "
            f"another instance after an attempt timeout; the slowest took {self.slowest:.2f} s."
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "instances": self.states_by_instance,
            "calls": self.calls,
            "succeeded": self.succeeded,
            "results_while_ejected": self.results_while_ejected,
            "retried": self.retried,
            "slowest_ms": round(self.slowest * 1000, 3),
        }


def _describe_state(view: InstanceView) -> str:
    if view.state == "ejected" and view.seconds_left is not None:
        return f" for {view.seconds_left:.1f} s, after {view.failures} consecutive failures"
    if view.state == "warming":
        return ": its share of the calls grows during slow start"
    return ""


# A service hangs. The circuit breaker opens, rejections name an alternative tool, half-open calls close it.


HANGING_TOOL: Final = "exchange-rate"
ALTERNATIVE: Final = "last-known-rate"
CIRCUIT_STATES: Final = (State.CLOSED, State.OPEN, State.HALF_OPEN, State.CLOSED)
RATE_CALLERS: Final = ("lena", "mario")
RATE_PAUSE_S: Final = 0.12
HANGING_OUTCOMES: Final = frozenset({Outcome.SUCCESS, Outcome.TIMEOUT, Outcome.REJECTED})


class OpenCircuit(Scenario):
    """The circuit breaker opens, half-opens and closes.

    Args:
        context: shared objects.
        service: the tool's service.

    Attributes:
        states: states of the circuit breaker, in order.
        outcomes: outcomes of the tool's calls.
        rejection: message of the first rejection, as a model reads it.
        alternative_results: successful calls of the alternative tool that a rejection named.
    """

    title = "A service hangs"
    tools = frozenset({HANGING_TOOL, ALTERNATIVE})
    agents = RATE_CALLERS

    def __init__(self, context: ScenarioContext, service: Rates) -> None:
        super().__init__(context)
        self._service = service
        self.states: list[str] = []
        self.outcomes: Counter[Outcome] = Counter()
        self.rejection: str | None = None
        self.longest_rejection = 0.0
        self.sent = 0
        self.alternative_results = 0

    async def call_as(self, name: str) -> None:
        agent = self.context.create_agent(name)
        for pair in cycle(RATES):
            if not self.is_running:
                return
            result = await agent.call(HANGING_TOOL, {"pair": pair})
            self.outcomes[result.outcome] += 1
            if result.outcome is Outcome.REJECTED and result.error is not None:
                self.longest_rejection = max(self.longest_rejection, result.duration)
                self.sent += bool(result.request_id)
                if self.rejection is None:
                    self.rejection = result.error.message
                    self.context.record(f"{name}'s model reads: “{self.rejection}”")
                for other in result.error.alternatives[:1]:  # as a model would do
                    result = await agent.call(other, {"pair": pair})
                    self.alternative_results += result.ok
            await asyncio.sleep(RATE_PAUSE_S)

    async def run_steps(self) -> None:
        time_scale, record = self.context.time_scale, self.context.record
        breaker = self.context.dispatcher.breaker(HANGING_TOOL)
        self.states = [str(breaker.state)]
        former = breaker.on_transition

        def on_transition(old: State, new: State, why: str) -> None:
            self.states.append(str(new))
            left = breaker.retry_after
            time = "" if left is None else f" for {left:.1f} s"
            record(f"{HANGING_TOOL}: {old} → {new}{time} ({why.replace('-', ' ')})")
            if former is not None:
                former(old, new, why)

        breaker.on_transition = on_transition
        try:
            await self.wait(time_scale.steady_period)
            self._service.is_hanging = True
            record(f"The service of {HANGING_TOOL} hangs: it receives requests and does not reply.")
            for number, usual in enumerate((0.0, time_scale.open_duration, 0.0), 1):
                if not await self.wait_for_state(self.states, number, usual):
                    break
                if CIRCUIT_STATES[number] is State.OPEN:
                    await self.wait(time_scale.open_duration / 2)
                    self._service.is_hanging = False
                    record("The service has recovered; the dispatcher does not know yet.")
            self._service.is_hanging = False
            await self.wait(time_scale.steady_period)
        finally:
            breaker.on_transition = former

    def find_deviations(self) -> list[str]:
        found = []
        if tuple(self.states) != CIRCUIT_STATES:
            found.append(
                f"the circuit breaker of {HANGING_TOOL} was {format_states(self.states)} instead of "
                f"{format_states(CIRCUIT_STATES)}"
            )
        for outcome in sorted(HANGING_OUTCOMES - self.outcomes.keys()):
            found.append(f"no call of {HANGING_TOOL} ended with {outcome}")
        for outcome in sorted(self.outcomes.keys() - HANGING_OUTCOMES):
            found.append(f"{self.outcomes[outcome]} calls of {HANGING_TOOL} ended with {outcome}")
        if self.sent:
            found.append(f"{self.sent} calls of {HANGING_TOOL} were sent, although they were rejected")
        if self.rejection is not None and not self.alternative_results:
            found.append(f"no rejection led to a successful call of {ALTERNATIVE}")
        return found

    def describe_result(self) -> str:
        count = self.outcomes
        return (
            f"The service of {HANGING_TOOL} hung: {format_states(self.states)}. {count[Outcome.TIMEOUT]} calls timed out; "
            f"{count[Outcome.REJECTED]} were rejected within {self.longest_rejection * 1000:.1f} ms, {self.sent} of them "
            f"sent; {self.alternative_results} rejected callers got a result from {ALTERNATIVE}. The model reads: "
            f"“{self.rejection}”"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "tool": HANGING_TOOL,
            "states": self.states,
            "outcomes": {str(outcome): count for outcome, count in self.outcomes.items()},
            "rejection": self.rejection,
            "longest_rejection_ms": round(self.longest_rejection * 1000, 3),
            "alternative_results": self.alternative_results,
        }


# One user calls without pauses. Its rate limit rejects the excess, and other users are not affected.


LIMITED_TOOL: Final = "search-web"
NOISY_USER: Final = "noisy"
OTHERS: Final = ("nora", "otto", "petra")
NOISY_USER_PAUSE_S: Final = 0.01
"""Without a pause the loop of immediately rejected calls would starve the event loop."""
OTHERS_PAUSE_S: Final = 0.35


class NoisyUser(Scenario):
    """A noisy user is limited to its own rate.

    Attributes:
        seconds: from the first call to the last.
        unexpected: calls with an outcome other than success and the rejection by the rate limit.
    """

    title = "A noisy user"
    tools = frozenset({LIMITED_TOOL})
    agents = (NOISY_USER, *OTHERS)

    def __init__(self, context: ScenarioContext) -> None:
        super().__init__(context)
        self.unexpected = 0
        self.rejection: str | None = None
        self._began = self.seconds = 0.0

    async def call_as(self, name: str) -> None:
        pause = NOISY_USER_PAUSE_S if name == NOISY_USER else OTHERS_PAUSE_S
        agent, users = self.context.create_agent(name), self.context.board.users
        while self.is_running:
            result = await agent.call(LIMITED_TOOL, {"query": f"news for {name}"})
            if result.ok:
                users[name].admitted += 1
            elif (
                result.outcome is Outcome.THROTTLED
                and result.error is not None
                and result.error.type == ErrorType.RATE_LIMITED
            ):
                users[name].rejected += 1
                if self.rejection is None:
                    self.rejection = result.error.message
                    self.context.record(f"{name}'s model reads: “{self.rejection}”")
            else:
                self.unexpected += 1
            self.seconds = self.context.clock() - self._began
            await asyncio.sleep(pause)

    async def run_steps(self) -> None:
        self.context.board.track_users(self.agents)
        self._began = self.context.clock()  # before the first step of the agents
        self.context.record(
            f"{NOISY_USER} calls {LIMITED_TOOL} up to {1 / NOISY_USER_PAUSE_S:.0f} times a second, {len(OTHERS)} others "
            f"rarely; each user's limit is {USER_RATE.rate}."
        )
        await self.wait(self.context.time_scale.noisy_user)
        noisy = self.context.board.users[NOISY_USER]
        await self.wait_until(lambda: bool(noisy.rejected))  # on a busy machine its calls take longer

    async def run(self) -> None:
        await super().run()
        noisy, (admitted, rejected) = self.context.board.users[NOISY_USER], self._others()
        self.context.record(
            f"{NOISY_USER}: {noisy.admitted} calls admitted, {noisy.rejected} rejected. "
            f"Other users: {admitted} and {rejected}."
        )

    def _others(self) -> tuple[int, int]:
        others = [self.context.board.users[name] for name in OTHERS]
        return sum(each.admitted for each in others), sum(each.rejected for each in others)

    def find_deviations(self) -> list[str]:
        users = self.context.board.users
        if NOISY_USER not in users:
            return [f"{NOISY_USER} did not call"]
        found = []
        most = USER_RATE.capacity + USER_RATE.per_second * self.seconds
        noisy = users[NOISY_USER]
        if not noisy.rejected:
            found.append(f"{NOISY_USER} was not limited")
        if not USER_RATE.capacity <= noisy.admitted <= most + 1e-6:
            found.append(f"{noisy.admitted} calls of {NOISY_USER} were admitted in {self.seconds:.2f} s")
        for name in OTHERS:
            if users[name].rejected or not users[name].admitted:
                found.append(f"{name}: {users[name].admitted} calls admitted, {users[name].rejected} rejected")
        if self.unexpected:
            found.append(
                f"{self.unexpected} calls of {LIMITED_TOOL} ended with neither success nor a rejection by the rate limit"
            )
        return found

    def describe_result(self) -> str:
        users = self.context.board.users
        if NOISY_USER not in users:
            return f"{NOISY_USER} did not call."
        noisy, (admitted, rejected) = users[NOISY_USER], self._others()
        return (
            f"{NOISY_USER} called {LIMITED_TOOL} {noisy.admitted + noisy.rejected} times in {self.seconds:.1f} s with a "
            f"limit of {USER_RATE.rate} per user: {noisy.admitted} admitted, {noisy.rejected} rejected. "
            f"{', '.join(OTHERS)}: {admitted} admitted, {rejected} rejected. The model reads: “{self.rejection}”"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "tool": LIMITED_TOOL,
            "user_rate_limit": str(USER_RATE.rate),
            "seconds": round(self.seconds, 3),
            "rejection": self.rejection,
            "users": {name: asdict(score) for name, score in self.context.board.users.items()},
        }


# A run of the demo: services, agents and one dispatcher on one broker, and four scenarios in sequence.


# Result of a run and its deviations from the expected one.


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a run. Durations are in seconds.

    Attributes:
        broker: URL of the broker.
        seconds: total duration.
        note: which times of the guards were shortened, for people.
        board: the counts.
        scenarios: the scenarios, in order.
        pending: requests still pending in the dispatcher; 0 unless one leaked.
        replies: number of replies by disposition.
    """

    broker: str
    seconds: float
    note: str
    board: Scoreboard
    scenarios: Sequence[Scenario]
    pending: int
    replies: dict[str, int]

    @property
    def deviations(self) -> list[str]:
        """List deviations from the expected run, one line each; empty for a successful run."""
        found = [deviation for scenario in self.scenarios for deviation in scenario.find_deviations()]
        if not self.board.outcomes[Outcome.SUCCESS]:
            found.append("no call succeeded")
        if self.board.wrong_searches:
            found.append(f"{self.board.wrong_searches} of {self.board.searches} searches found another tool first")
        if self.pending:
            found.append(f"{self.pending} requests are still pending")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for ``--json``."""
        return {
            "broker": self.broker,
            "seconds": round(self.seconds, 3),
            "calls": self.board.calls,
            "pending": self.pending,
            "replies": self.replies,
            "searches": self.board.searches,
            "tools": {name: score.as_dict() for name, score in self.board.tools.items()},
            "outcomes": {str(outcome): self._outcome(outcome) for outcome in self.board.outcomes},
            "scenarios": [scenario.as_dict() for scenario in self.scenarios],
            "deviations": self.deviations,
        }

    def _outcome(self, outcome: Outcome) -> dict[str, Any]:
        example = self.board.examples.get(outcome)
        shown = {} if example is None else {"example": asdict(example)}
        return {"count": self.board.outcomes[outcome], **shown}


TRANSLATORS: Final = ("translate-1", "translate-2", "translate-3")
_SEED: Final = 20_250


class Demo:
    """One run of the demo.

    Args:
        broker: ``memory://``, or the URL of a Pulsar broker with the namespaces tg/request and tg/response.
        seconds: approximate duration of the scenarios; times of the guards are scaled to it. Start and shutdown take one
            or two seconds more.
        security: token and TLS settings; None: from the environment.
        admin: the admin endpoint of its dispatcher; None: off.
        on_admin: receives the URL of the endpoint.

    Attributes:
        board: the counts, updated during the run.
        time_scale: the times of the guards.
        scenario_number: number of the current scenario, from 1; 0 before the first.
        scenario_count: number of scenarios.
        phase: the current activity, in a few words.
    """

    scenario_count: Final = 4

    def __init__(
        self,
        broker: str,
        seconds: float = DEFAULT_SECONDS,
        *,
        security: Security | None = None,
        admin: Admin | None = None,
        on_admin: Callable[[str], object] = lambda url: None,
    ) -> None:
        self._admin = admin
        self._on_admin = on_admin
        self._id = f"demo-{secrets.token_hex(4)}"
        self.broker = f"memory://{self._id}" if broker == "memory://" else broker
        self.board = Scoreboard()
        self.time_scale = TimeScale(seconds)
        self.scenario_number = 0
        self.phase = "connecting"
        self._security = security
        self._context: ScenarioContext | None = None
        self._dispatcher: Dispatcher | None = None
        self._guards: dict[str, list[dict[str, Any]]] = {}
        self._is_running = True
        self._done = False
        self._translators: dict[str, Translator] = {}
        self._rates = Rates()

    @property
    def progress(self) -> float:
        """Return the completed share of the run, 0 to 1; below 1 until it has ended."""
        if self._done or self._context is None:
            return float(self._done)
        passed = self._context.clock() - self._context.started_at
        return min(0.99, passed / self.time_scale.total)

    @property
    def events(self) -> list[Event]:
        """Return the events so far."""
        return [] if self._context is None else self._context.events

    @property
    def guards(self) -> dict[str, list[dict[str, Any]]]:
        """Return the state of instances, circuits and users, as rows in the form of the admin API; after the run, their last
        state."""
        dispatcher, users = self._dispatcher, self.board.users.items()
        if dispatcher is None:
            return self._guards
        breakers = {tool: dispatcher.breaker(tool) for tool in dispatcher.catalog.tools}
        return {
            "instances": [msgspec.to_builtins(view) for view in dispatcher.instances(SLOW_SERVICE)],
            "circuits": [
                {"tool": tool, "state": str(breaker.state), "retry_after": breaker.retry_after}
                for tool, breaker in breakers.items()
            ],
            "users": [{"user": name, "calls": score.admitted, "refused": score.rejected} for name, score in users],
        }

    async def run(self) -> Summary:
        """Run the demo. A cancellation stops everything that the run started.

        Raises:
            TransportError: the broker is not reachable, or a namespace is missing; the message names the fix.
        """
        clock = asyncio.get_running_loop().time
        started = clock()
        catalog = demo_catalog(self._id, self.time_scale)
        async with contextlib.AsyncExitStack() as stack:
            serving = self._transport()
            stack.push_async_callback(serving.close)
            await serving.start()
            await self._serve(stack, serving, catalog)
            chance = random.Random(_SEED)
            dispatcher = await stack.enter_async_context(
                Dispatcher(
                    self._transport(),
                    catalog,
                    # No jitter: a single dispatcher needs no spread, and the open time on the screen is that of the policy.
                    policy=Policy(breaker=BreakerRules(jitter=0.0)),
                    randomness=random.Random(chance.random()).random,
                    admin=self._admin,
                )
            )
            if dispatcher.admin_url is not None:
                self._on_admin(dispatcher.admin_url)
            dispatcher.search.use_embedder(None)  # terms only: two runs are alike, whatever is installed
            await self._warm_up(dispatcher)
            self._context = context = ScenarioContext(dispatcher, self.board, self.time_scale)
            self._dispatcher = dispatcher
            stack.callback(self._store_snapshot)
            async with asyncio.TaskGroup() as group:
                for name in SCRIPTS:
                    work = Agent(name, dispatcher, self.board).run_script(
                        lambda: self._is_running, random.Random(chance.random())
                    )
                    group.create_task(work)
                scenarios = await self._run_scenarios(context)
                self._is_running = False
            self.phase = "done"
            self._done = True
            replies = dispatcher.reply_counts()
            return Summary(
                self.broker,
                clock() - started,
                self.time_scale.note,
                self.board,
                scenarios,
                dispatcher.pending_requests,
                replies,
            )

    async def _run_scenarios(self, context: ScenarioContext) -> tuple[Scenario, ...]:
        guarded: tuple[Scenario, ...] = (
            SlowInstance(context, self._translators),
            OpenCircuit(context, self._rates),
            NoisyUser(context),
        )
        scenarios: tuple[Scenario, ...] = (
            EveryOutcome(context, {tool for each in guarded for tool in each.tools}),
            *guarded,
        )
        assert len(scenarios) == self.scenario_count
        for self.scenario_number, scenario in enumerate(scenarios, 1):
            self.phase = scenario.title
            await scenario.run()
        self.phase = "All guards back to normal"
        await asyncio.sleep(self.time_scale.steady_period)
        return scenarios

    def _store_snapshot(self) -> None:
        """Store the state of the guards before the dispatcher closes."""
        self._guards, self._dispatcher = self.guards, None

    def _transport(self) -> Transport:
        return open_transport(self.broker, security=self._security)

    async def _serve(self, stack: contextlib.AsyncExitStack, transport: Transport, catalog: Catalog) -> None:
        self.phase = "starting the services"
        chance = random.Random(_SEED)
        self._translators = {name: Translator(chance) for name in TRANSLATORS}
        limits: dict[str, dict[str, int]] = {"printer-1": {"concurrency": 1, "max_queue": 0}}
        services: dict[str, ToolService] = {
            "joke-1": Joke(chance),
            "calculator-1": Calculator(),
            "rag-1": CustomRag(chance),
            "story-1": Story(),
            "archive-1": Archive(),
            "printer-1": Printer(),
            "rates-1": self._rates,
            "ledger-1": Ledger(),
            "search-1": Search(),
            **self._translators,
        }
        for instance, service in services.items():
            descriptor = catalog.service(f"{instance.partition('-')[0]}-service")
            server = ToolServer(
                service,
                transport,
                request_queue=descriptor.request_queue,
                response_queue=descriptor.response_queue,
                instance=instance,
                **limits.get(instance, {}),  # type: ignore[arg-type] # keys and values are ToolServer's own
            )
            await stack.enter_async_context(server)
        broken = catalog.service("weather-service")
        topics = broken.request_queue, broken.response_queue
        await stack.enter_async_context(broken_service(transport, *topics))

    async def _warm_up(self, dispatcher: Dispatcher) -> None:
        """Call each service once; these calls are counted as all others.

        Raises:
            TransportError: a first call failed.
        """
        self.phase = "calling each service for the first time"
        first = Agent("mallory", dispatcher, self.board)
        async with asyncio.TaskGroup() as group:
            for step in WARM_UP:
                group.create_task(first.run_step(step, WARM_UP_TIMEOUT_S))
        for outcome, example in self.board.examples.items():
            raise TransportError(
                example.type, f"The first call of '{example.tool}' ended with {outcome}: {example.message}"
            )
