"""What a broker of ours is started with: its configuration files, command line and environment. Pure, but for `write`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dispatch.devtools.localbroker.errors import LocalBrokerError
from dispatch.devtools.localbroker.ports import LOOPBACK, loopback_interface
from dispatch.devtools.localbroker.security import Security

#: Enough for tens of thousands of messages a second of 1 kB; 430 MiB resident after the start.
MEMORY = "-Xms256m -Xmx512m -XX:MaxDirectMemorySize=768m"

# G1 starts faster than the script's ZGC on two cores; PerfDisableSharedMem leaves no file in the temporary folder.
JVM_OPTIONS = "-XX:+UseG1GC -XX:+PerfDisableSharedMem"

# Variables of the start script which would change the broker behind our back.
_FOREIGN = re.compile(r"(PULSAR|BOOKIE|BK|JAVA_TOOL|_JAVA|JDK_JAVA)_|(OPTS|CLASSPATH|ZK_OPTS)$")

# To a file that is bounded: a broker may run for weeks. At once: the last lines matter most when it dies.
_LOGGING = """\
<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="ERROR" name="dispatch">
  <Appenders>
    <RollingFile name="File" fileName="${sys:pulsar.log.dir}/broker.log"
                 filePattern="${sys:pulsar.log.dir}/broker.%i.log" immediateFlush="true">
      <PatternLayout pattern="%d{ISO8601_OFFSET_DATE_TIME_HHMM} [%t] %-5level %logger{36} - %msg%n"/>
      <Policies><SizeBasedTriggeringPolicy size="16 MB"/></Policies>
      <DefaultRolloverStrategy max="3"/>
    </RollingFile>
  </Appenders>
  <Loggers>
    <Root level="info"><AppenderRef ref="File"/></Root>
  </Loggers>
</Configuration>
"""

_COOKIE_PORT = re.compile(r'^bookieHost: "[^"]*:(\d+)"', re.MULTILINE)


@dataclass(frozen=True)
class Ports:
    """Where one broker listens, on the loopback. `tls` only with security."""

    broker: int
    web: int
    bookie: int
    tls: int | None = None


def rewrite(text: str, settings: Mapping[str, str]) -> str:
    """A properties file with these settings: in the place of the key where it has one, else at the end.

    Comments and order stay. A commented-out key is not a key; a key that occurs twice is set twice, as the last counts.
    """
    missing = dict(settings)
    lines = []
    for line in text.splitlines():
        key, separator, _ = line.partition("=")
        key = key.strip()
        if separator and key in settings and not line.lstrip().startswith("#"):
            missing.pop(key, None)
            lines.append(f"{key}={settings[key]}")
        else:
            lines.append(line)
    lines.extend(f"{key}={value}" for key, value in missing.items())
    return "\n".join(lines) + "\n"  # Pulsar's own file has no newline at its end


def kept_bookie_port(data_dir: Path) -> int | None:
    """The port which the data in `data_dir` belongs to: a bookie's address is part of its identity. None if it is new."""
    try:
        cookie = (data_dir / "bk" / "current" / "VERSION").read_text()
    except OSError:
        return None
    found = _COOKIE_PORT.search(cookie)
    return int(found[1]) if found else None


@dataclass(frozen=True)
class Configuration:
    """One broker: the unpacked distribution, the folder of its data, its ports, and security if it has any."""

    home: Path
    data_dir: Path
    ports: Ports
    security: Security | None = None

    @property
    def log_file(self) -> Path:
        """What the broker logs: four files of 16 MB at most."""
        return self.data_dir / "logs" / "broker.log"

    @property
    def console_file(self) -> Path:
        """What the start script and Java itself have to say."""
        return self.data_dir / "logs" / "console.log"

    def settings(self) -> dict[str, str]:
        """What differs from Pulsar's own `standalone.conf`."""
        settings = {
            "brokerServicePort": str(self.ports.broker),
            "webServicePort": str(self.ports.web),
            "bindAddress": LOOPBACK,
            "webSocketServiceEnabled": "false",
            # Without these two the bookie listens on every interface, on a port it picks itself.
            "listeningInterface": loopback_interface(),
            "allowEphemeralPorts": "true",
            # A graceful stop waits out a share of this: 5 s with the default of a minute, 1 s so.
            "brokerShutdownTimeoutMs": "3000",
            # The journal would grow to 2 GB, five times, before its files go.
            "journalMaxSizeMB": "256",
            "journalMaxBackups": "1",
            "logSizeLimit": str(256 * 1024 * 1024),
        }
        if self.security is not None:
            if self.ports.tls is None:
                raise ValueError("security needs a port for TLS")
            settings.update(self.security.settings(self.ports.tls))
        return settings

    def write(self) -> None:
        """Write the configuration files, make the folders the broker expects, put the logs of the last start aside.

        Raises:
            LocalBrokerError: a path has white space, which Pulsar's start script cannot take.
        """
        for path, fix in ((self.home, "set DISPATCH_CACHE"), (self.data_dir, "set TMPDIR, or take a data folder,")):
            if re.search(r"\s", str(path)):
                raise LocalBrokerError(
                    f"Pulsar's start script cannot take a path with white space: {str(path)!r}; {fix} to one without"
                )
        for folder in ("conf", "logs", "tmp"):
            (self.data_dir / folder).mkdir(parents=True, exist_ok=True)
        for log in (self.log_file, self.console_file):
            if log.exists():
                log.replace(log.with_suffix(".previous.log"))
        original = (self.home / "conf" / "standalone.conf").read_text(encoding="utf-8")
        (self.data_dir / "conf" / "standalone.conf").write_text(rewrite(original, self.settings()), encoding="utf-8")
        (self.data_dir / "conf" / "log4j2.xml").write_text(_LOGGING, encoding="utf-8")

    def command(self) -> list[str]:
        """The start script with its arguments; it `exec`s Java, so that its process id is the broker's."""
        return [
            str(self.home / "bin" / "pulsar"),
            "standalone",
            *("--no-functions-worker", "--no-stream-storage"),
            *("--advertised-address", LOOPBACK),
            *("--bookkeeper-port", str(self.ports.bookie)),
            *("--metadata-dir", str(self.data_dir / "meta")),
            *("--bookkeeper-dir", str(self.data_dir / "bk")),
        ]

    def environment(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """`environ` without what would change the broker, and with what it needs."""
        return {
            **{name: value for name, value in environ.items() if not _FOREIGN.match(name)},
            "PULSAR_STANDALONE_CONF": str(self.data_dir / "conf" / "standalone.conf"),
            "PULSAR_LOG_CONF": str(self.data_dir / "conf" / "log4j2.xml"),
            "PULSAR_LOG_DIR": str(self.data_dir / "logs"),
            "PULSAR_GC_LOG": "-Xlog:disable",
            "PULSAR_MEM": MEMORY,
            "PULSAR_GC": JVM_OPTIONS,
            # Native libraries are unpacked into the temporary folder, and stay there if the broker is killed.
            "PULSAR_EXTRA_OPTS": f"-Djava.io.tmpdir={self.data_dir / 'tmp'} -Dpulsar.allocator.exit_on_oom=true",
        }
