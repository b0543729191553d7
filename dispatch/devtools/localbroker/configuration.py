"""Configuration files, command line and environment of a local broker. Pure, except for `write`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dispatch.devtools.localbroker.errors import LocalBrokerError
from dispatch.devtools.localbroker.ports import LOOPBACK, loopback_interface
from dispatch.devtools.localbroker.security import Security

#: Sufficient for tens of thousands of 1 kB messages per second; 430 MiB resident after the start.
MEMORY = "-Xms256m -Xmx512m -XX:MaxDirectMemorySize=768m"

# G1 starts faster than the script's ZGC on two cores; PerfDisableSharedMem leaves no file in the temporary folder.
JVM_OPTIONS = "-XX:+UseG1GC -XX:+PerfDisableSharedMem"

# Variables of the start script that would change the broker unintentionally.
_FOREIGN = re.compile(r"(PULSAR|BOOKIE|BK|JAVA_TOOL|_JAVA|JDK_JAVA)_|(OPTS|CLASSPATH|ZK_OPTS)$")

# Bounded files, because a broker may run for weeks; immediate flush, because the last lines explain a crash.
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
    """Loopback ports of one broker. `tls` only with security."""

    broker: int
    web: int
    bookie: int
    tls: int | None = None


def apply_settings(text: str, settings: Mapping[str, str]) -> str:
    """Apply settings to a properties file: replace existing keys in place, append new ones.

    Comments and order are preserved; commented-out keys are ignored; a repeated key is replaced everywhere.
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
    return "\n".join(lines) + "\n"  # Pulsar's file has no final newline


def read_bookie_port(data_dir: Path) -> int | None:
    """Read the bookie port of existing data: the address is part of a bookie's identity. None for new data."""
    try:
        cookie = (data_dir / "bk" / "current" / "VERSION").read_text()
    except OSError:
        return None
    found = _COOKIE_PORT.search(cookie)
    return int(found[1]) if found else None


@dataclass(frozen=True)
class Configuration:
    """Configuration of one broker: distribution, data folder, ports, and optional security."""

    home: Path
    data_dir: Path
    ports: Ports
    security: Security | None = None

    @property
    def log_file(self) -> Path:
        """Return the broker's log: at most four files of 16 MB."""
        return self.data_dir / "logs" / "broker.log"

    @property
    def console_file(self) -> Path:
        """Return the file with the output of the start script and the JVM."""
        return self.data_dir / "logs" / "console.log"

    def settings(self) -> dict[str, str]:
        """Return the settings that differ from Pulsar's `standalone.conf`."""
        settings = {
            "brokerServicePort": str(self.ports.broker),
            "webServicePort": str(self.ports.web),
            "bindAddress": LOOPBACK,
            "webSocketServiceEnabled": "false",
            # Without these two the bookie listens on every interface at a random port.
            "listeningInterface": loopback_interface(),
            "allowEphemeralPorts": "true",
            # A graceful stop waits for a share of this: 5 s with the default of a minute, 1 s with this value.
            "brokerShutdownTimeoutMs": "3000",
            # By default the journal keeps five files of 2 GB.
            "journalMaxSizeMB": "256",
            "journalMaxBackups": "1",
            "logSizeLimit": str(256 * 1024 * 1024),
        }
        if self.security is not None:
            if self.ports.tls is None:
                raise ValueError("security requires a TLS port")
            settings.update(self.security.settings(self.ports.tls))
        return settings

    def write(self) -> None:
        """Write the configuration files, create the broker's folders, and rename the logs of the previous start.

        Raises:
            LocalBrokerError: a path contains white space, which Pulsar's start script does not support.
        """
        for path, fix in ((self.home, "set DISPATCH_CACHE"), (self.data_dir, "set TMPDIR, or choose a data folder,")):
            if re.search(r"\s", str(path)):
                raise LocalBrokerError(
                    f"Pulsar's start script does not support white space in a path: {str(path)!r}; {fix} to one without"
                )
        for folder in ("conf", "logs", "tmp"):
            (self.data_dir / folder).mkdir(parents=True, exist_ok=True)
        for log in (self.log_file, self.console_file):
            if log.exists():
                log.replace(log.with_suffix(".previous.log"))
        original = (self.home / "conf" / "standalone.conf").read_text(encoding="utf-8")
        (self.data_dir / "conf" / "standalone.conf").write_text(
            apply_settings(original, self.settings()), encoding="utf-8"
        )
        (self.data_dir / "conf" / "log4j2.xml").write_text(_LOGGING, encoding="utf-8")

    def command(self) -> list[str]:
        """Return the start command; it `exec`s Java, so its process id is that of the broker."""
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
        """Return the environment: `environ` without variables that change the broker, plus those that it needs."""
        return {
            **{name: value for name, value in environ.items() if not _FOREIGN.match(name)},
            "PULSAR_STANDALONE_CONF": str(self.data_dir / "conf" / "standalone.conf"),
            "PULSAR_LOG_CONF": str(self.data_dir / "conf" / "log4j2.xml"),
            "PULSAR_LOG_DIR": str(self.data_dir / "logs"),
            "PULSAR_GC_LOG": "-Xlog:disable",
            "PULSAR_MEM": MEMORY,
            "PULSAR_GC": JVM_OPTIONS,
            # Native libraries are unpacked into the temporary folder and remain there after a kill.
            "PULSAR_EXTRA_OPTS": f"-Djava.io.tmpdir={self.data_dir / 'tmp'} -Dpulsar.allocator.exit_on_oom=true",
        }
