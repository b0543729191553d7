"""Plays a fault on a compared system: instances, a relay, a caller, and what happens to them."""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from benchmarks.faults.faults import Fault, Step
from benchmarks.faults.outcomes import Outcome, judge, records_of
from benchmarks.faults.systems import Compared
from benchmarks.harness.broker import read_environment
from benchmarks.harness.processes import ROOT, Child, start
from benchmarks.incidents.lab import wait_for_round_trip
from benchmarks.peers.servers import SERVERS
from benchmarks.peers.system import Place, load
from benchmarks.workers.proc import read_memory, read_processor_time
from dispatch.devtools.localbroker import LocalBroker, create_namespaces, find_free_ports

ANSWER_S = 60.0
"""Seconds until a process answers a command, at most."""
INSTANCES = 2


class Server(Protocol):
    """A broker or server that is killed and started again."""

    def kill(self) -> None: ...

    def restart(self) -> None: ...


@dataclass(frozen=True)
class Meeting:
    """What the processes of a system connect to: a server, or nothing."""

    url: str
    server: Server | None


@contextlib.contextmanager
def meet(kind: str, say: Callable[[str], None]) -> Iterator[Meeting]:
    """Start the server of a system, or take the broker of the environment, which is never killed.

    Args:
        kind: :attr:`benchmarks.peers.system.System.SERVER`.
        say: takes a line of progress.
    """
    if kind == "pulsar" and (broker_of_user := read_environment()) is not None:
        yield Meeting(broker_of_user.service_url, None)
    elif kind == "pulsar":
        with LocalBroker.start(report=say) as broker:
            create_namespaces(broker.admin())
            wait_for_round_trip(broker)
            yield Meeting(broker.service_url, broker)
    elif kind in SERVERS:
        with SERVERS[kind]() as server:
            yield Meeting(server.url, server)
    else:
        yield Meeting("", None)


class Play:
    """One fault on one system. :meth:`run` returns its figures and writes its journal.

    Args:
        system: name of the system.
        compared: the system.
        meeting: its running server.
        seed: of the times of the calls.
        folder: where records and journals are kept.
    """

    def __init__(
        self, fault: Fault, system: str, compared: Compared, meeting: Meeting, seed: int, folder: Path
    ) -> None:
        self._fault = fault
        self._share = compared.share
        self._name = system
        self._module = compared.module
        self._system = load(compared.module)
        self._meeting = meeting
        self._seed = seed
        self._folder = folder
        self._places: dict[int, Child] = {}
        self._journals: list[Path] = []
        self._used_s = 0.0

    def run(self) -> Outcome:
        """Play it.

        Raises:
            BenchmarkError: a process ended that should not, or gave no answer.
        """
        fault = self._fault
        with contextlib.ExitStack() as stack:
            self._scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            service, client, relayed = self._meet(stack)
            files = [service.listener] if service.listener >= 0 else []

            def launch(role: str, spec: dict[str, Any]) -> Child:
                inherited = files if role == "instance" else ()
                worker = start(role, stack, ROOT, package="benchmarks.faults.roles", files=inherited)
                stack.callback(worker.kill)  # before the stack would close it
                worker.send(spec)
                return worker

            replacements = sum(step.do == "serve" for step in fault.steps)
            instances = [launch("instance", self._instance_spec(service)) for _ in range(INSTANCES + replacements)]
            self._relay = launch("relay", relayed)
            for worker in (*instances, self._relay):
                worker.wait_for_answer(ANSWER_S)
            self._spares = instances
            for number in range(INSTANCES):
                self._serve(number)
            spec = {"place": asdict(client), "system": self._module, "seed": self._seed}
            self._caller = launch("caller", spec)
            self._caller.wait_for_answer(ANSWER_S)
            return self._load()

    def _load(self) -> Outcome:
        fault = self._fault
        before = self._processor_time()
        began = time.monotonic()
        self._caller.ask({"do": "begin", "rate": fault.rate * self._share}, ANSWER_S)
        over = fault.over
        for step in fault.steps:
            time.sleep(max(0.0, began + step.at - time.monotonic()))
            self._do(step)
            # A broker's start lasts: the fault is over when it is back.
            over = max(fault.over, time.monotonic() - began) if step.do == "restart-server" else over
        time.sleep(max(0.0, began + over + (fault.seconds - fault.over) - time.monotonic()))
        used = self._processor_time()
        total = read_memory(self._caller.pid) + sum(read_memory(each.pid) for each in self._places.values())
        rows = self._caller.ask({"do": "end"}, 2 * ANSWER_S)["records"]
        records = records_of(rows, began)
        lines = [[int(line) for line in path.read_text().split()] for path in self._journals if path.exists()]
        path = self._folder / f"{fault.name}-{self._name}.json"
        path.write_text(
            json.dumps({"seed": self._seed, "calls": [asdict(each) for each in records], "journals": lines})
        )
        return judge(
            fault,
            self._name,
            self._seed,
            records,
            [[number for number in journal if number >= 0] for journal in lines],
            [-number for journal in lines for number in journal if number < 0],
            over=over,
            rate=fault.rate * self._share,
            cpu_s=None if used is None or before is None else used - before + self._used_s,
            memory_mib=total,
        )

    def _meet(self, stack: contextlib.ExitStack) -> tuple[Place, Place, dict[str, Any]]:
        """Return where services and the client meet, and the spec of the relay between the client and the rest."""
        topic, fault, url = f"faults-{secrets.token_hex(4)}", self._fault, self._meeting.url
        if url:
            parts = urlsplit(url)
            port = find_port_like(parts.port or 0)
            through = parts._replace(netloc=f"{parts.hostname}:{port}").geturl()
            rewrite = (url, through) if parts.scheme == "pulsar" else None
            relayed = {"rewrite": rewrite, "ports": [(port, parts.port)]}
            return self._place(url, topic), self._place(through, topic), relayed
        listener = -1
        if self._system.SERVER == "http":
            shared = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1_024))
            listener, targets = shared.fileno(), [shared.getsockname()[1]]
        else:
            targets = list(find_free_ports(INSTANCES))
        ports = find_free_ports(len(targets))
        service = Place("", topic, tuple(targets), listener=listener, concurrency=fault.concurrency)
        client = Place("", topic, tuple(ports), concurrency=fault.concurrency)
        return service, client, {"rewrite": None, "ports": list(zip(ports, targets, strict=True))}

    def _place(self, url: str, topic: str) -> Place:
        return Place(url, topic, concurrency=self._fault.concurrency)

    def _instance_spec(self, place: Place) -> dict[str, Any]:
        journal = self._scratch / str(len(self._journals))
        self._journals.append(journal)
        fault = self._fault
        work_s = fault.work_s / self._share if fault.is_relative else fault.work_s
        return {"place": asdict(place), "system": self._module, "journal": str(journal), "work_s": work_s}

    def _serve(self, number: int) -> None:
        self._places[number] = worker = self._spares.pop(0)
        worker.ask({"instance": number}, ANSWER_S)

    def _do(self, step: Step) -> None:
        worker = self._places.get(step.instance)
        command = {"do": step.do, "value": step.value}
        match step.do:
            case "kill" | "stop" if worker is not None:
                self._used_s += read_processor_time([worker.pid]) or 0.0
                del self._places[step.instance]
                if step.do == "kill":
                    worker.kill()
                else:
                    worker.stop_gracefully()
            case "serve":
                self._serve(step.instance)
            case "pause" | "resume" if worker is not None:
                worker.signal(signal.SIGSTOP if step.do == "pause" else signal.SIGCONT)
            case "hang" | "slow" | "heal" | "block" if worker is not None:
                worker.ask(command, ANSWER_S)
            case "cut" | "restore" | "reset":
                self._relay.ask(command, ANSWER_S)
            case "kill-server" if self._meeting.server is not None:
                self._meeting.server.kill()
            case "restart-server" if self._meeting.server is not None:
                self._meeting.server.restart()
            case "rate":
                self._caller.ask({"do": "rate", "value": step.value * self._share}, ANSWER_S)
            case _:
                self._caller.ask(command, ANSWER_S)

    def _processor_time(self) -> float | None:
        return read_processor_time([self._caller.pid, *(each.pid for each in self._places.values())])


def find_port_like(port: int) -> int:
    """Return a free port with as many digits, so that addresses in a broker's messages keep their length."""
    least = 10 ** (len(str(port)) - 1)
    while True:
        candidate = random.randrange(max(1_024, least), min(10 * least, 32_768))
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", candidate)):
            return candidate


def choose_seed() -> int:
    """Return a seed for a run."""
    return random.SystemRandom().randrange(1 << 31)
