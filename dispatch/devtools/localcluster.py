"""A cluster of Pulsar brokers on free ports of loopback: ZooKeeper, a bookie and brokers of one distribution."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dispatch.devtools import localbroker

#: Name of the cluster, and of its metadata.
NAME = "local"

#: Memory of each kind of process, in options of the JVM: 3 brokers, a bookie and ZooKeeper stay below 3 GiB together.
MEMORY = {
    "zookeeper": "-Xms32m -Xmx96m",
    "bookie": "-Xms64m -Xmx192m -XX:MaxDirectMemorySize=192m",
    "broker": "-Xms128m -Xmx320m -XX:MaxDirectMemorySize=320m",
}
#: Without the optimizing compiler a start takes half the processor time.
_COMPILER = "-XX:TieredStopAtLevel=1"
_CONFIGURATION = {"zookeeper": "zookeeper.conf", "bookie": "bookkeeper.conf", "broker": "broker.conf"}
_VARIABLE = {"zookeeper": "PULSAR_ZK_CONF", "bookie": "PULSAR_BOOKKEEPER_CONF", "broker": "PULSAR_BROKER_CONF"}

#: Milliseconds until the topics of a killed or suspended broker go to another one: its session with ZooKeeper ends then.
#: Pulsar's default is 30 s. Below 2 s, a broker that collects garbage on a busy machine would lose its topics.
SESSION_MS = 2_000
#: Starts of a process that ends before it is ready, as a broker does whose session with ZooKeeper ends on a busy machine.
STARTS = 3

_READINESS_TIMEOUT = 2.0  # seconds for one readiness request


@dataclass
class Node:
    """A process of a cluster.

    Attributes:
        kind: `zookeeper`, `bookie` or `broker`.
        number: 1, 2, … within its kind.
        port: for clients.
        web_port: of a broker's admin interface; 0 for other kinds.
        pid: process id; 0 before the start.
        identity: distinguishes the process from a later one with the same id.
    """

    kind: str
    number: int
    port: int
    web_port: int = 0
    pid: int = 0
    identity: str | None = None

    @property
    def name(self) -> str:
        """Return for example `broker 2`."""
        return f"{self.kind} {self.number}"

    @property
    def url(self) -> str:
        """Return the URL for clients of a broker."""
        return f"pulsar://{localbroker.LOOPBACK}:{self.port}"

    @property
    def web_url(self) -> str:
        """Return the URL of a broker's admin interface."""
        return f"http://{localbroker.LOOPBACK}:{self.web_port}"


class LocalCluster:
    """A cluster with its own data. As a context manager it stops the cluster on exit.

    Created by `LocalCluster.start`. Unless detached, its processes end with this one, even if that is killed by SIGKILL. The
    methods block; from asyncio call them in a thread. Brokers are numbered from 1.
    """

    def __init__(self, folder: Path, nodes: list[Node], *, detached: bool, settings: Mapping[str, str]) -> None:
        """Internal: use `start` or `find_detached`."""
        self.folder = folder
        self.nodes = nodes
        self.is_started = False
        """Whether it has been ready; a start that was killed leaves some of its processes."""
        self._detached = detached
        self._settings = dict(settings)
        self._processes: dict[str, localbroker.ManagedProcess] = {}

    @classmethod
    def start(
        cls,
        *,
        brokers: int = 3,
        settings: Mapping[str, str] | None = None,
        folder: Path | None = None,
        report: localbroker.Report = localbroker.ignore_progress,
    ) -> LocalCluster:
        """Start a cluster with the tenant and namespaces of dispatch, and wait until every broker is ready: 20 to 40 s.

        Args:
            brokers: number of brokers.
            settings: settings of the brokers that differ from Pulsar's `broker.conf`.
            folder: folder of data and logs of a cluster that outlives this process; default: a temporary one. It is deleted
                when the cluster stops.
            report: receives progress lines.

        Raises:
            LocalBrokerError: a process did not start; the message names the cause.
        """
        if problems := localbroker.find_process_problems():
            raise localbroker.LocalBrokerUnavailableError(problems, f"For a cluster, {localbroker.INSTALL}")
        home = localbroker.fetch_distribution(report)
        detached = folder is not None
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="tool-dispatch-cluster-")).resolve()
        ports = iter(localbroker.find_free_ports(2 + 2 * brokers))
        nodes = [Node("zookeeper", 1, next(ports)), Node("bookie", 1, next(ports))]
        nodes += [Node("broker", number, next(ports), next(ports)) for number in range(1, brokers + 1)]
        cluster = cls(folder, nodes, detached=detached, settings=settings or {})
        start = time.monotonic()
        try:
            report(f"starting a cluster of Pulsar {localbroker.VERSION}: {brokers} brokers, a bookie, ZooKeeper")
            cluster._launch(home, nodes[0])
            cluster._initialize(home)
            cluster._launch(home, nodes[1])
            with ThreadPoolExecutor(brokers) as threads:
                list(threads.map(lambda node: cluster._launch(home, node), cluster.brokers))
            localbroker.create_namespaces(cluster.admin())
            cluster.is_started = True
            cluster._save()
        except BaseException:
            cluster.stop()
            raise
        report(f"the cluster is ready after {time.monotonic() - start:.1f} s: {cluster.service_url}")
        return cluster

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def brokers(self) -> list[Node]:
        """Return the brokers, running or not."""
        return [node for node in self.nodes if node.kind == "broker"]

    @property
    def service_url(self) -> str:
        """Return the URL for clients, with all brokers."""
        return f"pulsar://{','.join(f'{localbroker.LOOPBACK}:{node.port}' for node in self.brokers)}"

    def broker(self, number: int) -> Node:
        """Return the broker of that number; raises `LocalBrokerError` if there is none."""
        for node in self.brokers:
            if node.number == number:
                return node
        raise localbroker.LocalBrokerError(f"the cluster has no broker {number}: use 1 to {len(self.brokers)}")

    def process(self, node: Node) -> localbroker.ManagedProcess:
        """Return the process of `node`."""
        return self._processes.get(node.name) or localbroker.ManagedProcess(node.pid, node.identity)

    def is_ready(self, node: Node) -> bool:
        """Return whether the broker answers."""
        return self.process(node).is_alive() and localbroker.Admin(node.web_url, timeout=_READINESS_TIMEOUT).is_ready()

    def state(self, node: Node) -> str:
        """Return `not running`, `ready`, or that a running broker does not answer."""
        if not self.process(node).is_alive():
            return "not running"
        return "ready" if node.kind != "broker" or self.is_ready(node) else "running, does not answer"

    def admin(self) -> localbroker.Admin:
        """Create a client of the admin interface of a broker that answers; raises `LocalBrokerError` if none does."""
        for node in self.brokers:
            if self.is_ready(node):
                return localbroker.Admin(node.web_url)
        raise localbroker.LocalBrokerError("no broker of the cluster answers: see 'dispatch broker cluster status'")

    def kill(self, number: int) -> bool:
        """Kill a broker (SIGKILL) like a crash; its ports are kept for `restart`. Return whether it was running."""
        return self.process(self.broker(number)).kill()

    def restart(self, number: int) -> None:
        """Stop a broker (SIGTERM) if it is running, start it on the same ports, and wait until it is ready.

        Raises:
            LocalBrokerError: the broker did not start.
        """
        node = self.broker(number)
        self.process(node).terminate(localbroker.STOP_GRACE)
        self._launch(localbroker.fetch_distribution(), node)

    def unload(self, namespace: str) -> None:
        """Unload `tenant/namespace`: every bundle of its topics is assigned to a broker again."""
        self.admin().unload(namespace)

    def stop(self) -> None:
        """Kill all processes and delete their data. Idempotent."""
        try:
            for node in reversed(self.nodes):
                if node.pid:
                    self.process(node).kill()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            if self._detached:
                _state_file().unlink(missing_ok=True)

    def _launch(self, home: Path, node: Node) -> None:
        """Start a process and wait until it is ready."""
        folder = self._folder(node)
        name = _CONFIGURATION[node.kind]
        localbroker.write_configuration(home, folder, name, self._node_settings(node))

        def spawned(child: localbroker.ManagedProcess) -> None:
            node.pid, node.identity = child.pid, child.identity
            self._processes[node.name] = child
            self._save()

        logs = [folder / "logs" / "console.log", folder / "logs" / "broker.log"]
        is_ready: Callable[[], bool] = partial(localbroker.is_listening, node.port)
        if node.kind == "broker":
            is_ready = localbroker.Admin(node.web_url, timeout=_READINESS_TIMEOUT).is_ready
        for left in reversed(range(STARTS)):
            child = localbroker.spawn(
                [str(home / "bin" / "pulsar"), node.kind],
                log=folder / "logs" / "console.log",
                environ={
                    **localbroker.java_environment(folder, f"{MEMORY[node.kind]} {_COMPILER}"),
                    _VARIABLE[node.kind]: str(folder / "conf" / name),
                },
                remove=None if self._detached else self.folder,
                detached=self._detached,
                on_spawn=spawned,
            )
            try:
                localbroker.wait_until_ready(is_ready, child.wait, logs=logs, what=node.name)
                return
            except localbroker.LocalBrokerError:
                if not left or child.is_alive():
                    raise

    def _initialize(self, home: Path) -> None:
        """Write the metadata of the cluster into ZooKeeper."""
        folder = self._folder(self.nodes[0])
        first, log = self.brokers[0], folder / "logs" / "initialize.log"
        command = [str(home / "bin" / "pulsar"), "initialize-cluster-metadata", "--cluster", NAME]
        command += ["--metadata-store", self._metadata, "--configuration-store", self._metadata]
        command += ["--web-service-url", first.web_url, "--broker-service-url", first.url]
        child = localbroker.spawn(
            command, log=log, environ=localbroker.java_environment(folder, f"{MEMORY['zookeeper']} {_COMPILER}")
        )
        ended = child.wait(localbroker.READY_TIMEOUT)
        child.kill()
        if not ended or child.returncode:
            raise localbroker.LocalBrokerError(
                f"the metadata of the cluster could not be written:\n{localbroker.extract_errors([log])}"
            )

    @property
    def _metadata(self) -> str:
        return f"zk:{localbroker.LOOPBACK}:{self.nodes[0].port}"

    def _folder(self, node: Node) -> Path:
        return self.folder / node.name.replace(" ", "-")

    def _node_settings(self, node: Node) -> dict[str, str]:
        folder = self._folder(node)
        if node.kind == "zookeeper":
            return {
                "dataDir": str(folder / "data"),
                "clientPort": str(node.port),
                "clientPortAddress": localbroker.LOOPBACK,
                "admin.enableServer": "false",
                "metricsProvider.className": "org.apache.zookeeper.metrics.impl.NullMetricsProvider",
                "forceSync": "no",
                # ZooKeeper grants sessions of two ticks or longer.
                "tickTime": str(SESSION_MS // 4),
            }
        if node.kind == "bookie":
            return {
                "bookiePort": str(node.port),
                "advertisedAddress": localbroker.LOOPBACK,
                "listeningInterface": localbroker.loopback_interface(),
                "allowLoopback": "true",
                "journalDirectory": str(folder / "journal"),
                "ledgerDirectories": str(folder / "ledgers"),
                "zkServers": f"{localbroker.LOOPBACK}:{self.nodes[0].port}",
                "metadataServiceUri": f"metadata-store:{self._metadata}",
                "statsProviderClass": "org.apache.bookkeeper.stats.NullStatsProvider",
                "autoRecoveryDaemonEnabled": "false",
                # By default the journal keeps five files of 2 GB, and RocksDB takes memory for a server's load.
                "journalMaxSizeMB": "256",
                "journalMaxBackups": "1",
                "logSizeLimit": str(256 * 1024 * 1024),
                "dbStorage_writeCacheMaxSizeMb": "32",
                "dbStorage_readAheadCacheMaxSizeMb": "16",
                "dbStorage_rocksDB_blockCacheSize": str(8 * 1024 * 1024),
                "dbStorage_rocksDB_writeBufferSizeMB": "8",
            }
        return {
            "clusterName": NAME,
            "metadataStoreUrl": self._metadata,
            "configurationMetadataStoreUrl": self._metadata,
            "brokerServicePort": str(node.port),
            "webServicePort": str(node.web_port),
            "bindAddress": localbroker.LOOPBACK,
            "advertisedAddress": localbroker.LOOPBACK,
            "managedLedgerDefaultEnsembleSize": "1",
            "managedLedgerDefaultWriteQuorum": "1",
            "managedLedgerDefaultAckQuorum": "1",
            "metadataStoreSessionTimeoutMillis": str(SESSION_MS),
            "brokerShutdownTimeoutMs": "3000",
            "webSocketServiceEnabled": "false",
            **self._settings,
        }

    def _save(self) -> None:
        """Write the state of a detached cluster, so that it can always be found and stopped."""
        if self._detached:
            nodes = [dataclasses.asdict(node) for node in self.nodes]
            localbroker.write_state(
                _state_file(), {"nodes": nodes, "settings": self._settings, "is_started": self.is_started}
            )


# The detached cluster of a user, for `dispatch broker cluster`.


def start_detached_cluster(brokers: int = 3, report: localbroker.Report = localbroker.ignore_progress) -> LocalCluster:
    """Start a cluster that outlives this process; or return the running one. Concurrent calls start one cluster.

    Raises:
        LocalBrokerError: the cluster did not start, or one with another number of brokers is running.
    """
    with _lock(report):
        running = find_detached_cluster()
        if running is not None and not running.is_started:
            report("the last start was killed; stopping what it has left")
            running.stop()
            running = None
        if running is None:
            folder = _state_file().parent / "data"
            shutil.rmtree(folder, ignore_errors=True)
            return LocalCluster.start(brokers=brokers, folder=folder, report=report)
        if len(running.brokers) != brokers:
            raise localbroker.LocalBrokerError(
                f"a cluster of {len(running.brokers)} brokers is running: stop it first with dispatch broker cluster stop"
            )
        report(f"a cluster is already running: {running.service_url}")
        return running


def find_detached_cluster() -> LocalCluster | None:
    """Return the detached cluster if one of its processes is running, or None."""
    try:
        state = localbroker.read_state(_state_file()) or {}
        nodes = [Node(**node) for node in state["nodes"]]
        cluster = LocalCluster(_state_file().parent / "data", nodes, detached=True, settings=state["settings"])
        cluster.is_started = state["is_started"]
    except (TypeError, KeyError):
        return None
    return cluster if any(cluster.process(node).is_alive() for node in nodes) else None


@contextmanager
def detached_cluster(report: localbroker.Report = localbroker.ignore_progress) -> Iterator[LocalCluster]:
    """Provide the detached cluster to one process at a time.

    Raises:
        LocalBrokerError: no cluster is running.
    """
    with _lock(report):
        cluster = find_detached_cluster()
        if cluster is None:
            raise localbroker.LocalBrokerError("no cluster is running: start one with dispatch broker cluster start")
        yield cluster


def _lock(report: localbroker.Report) -> AbstractContextManager[None]:
    waiting = "another 'dispatch broker cluster' is running; waiting for it"
    return localbroker.hold_lock(_state_file().with_name("lock"), waiting=waiting, report=report)


def _state_file() -> Path:
    return localbroker.cache_dir() / "cluster" / "state.json"
