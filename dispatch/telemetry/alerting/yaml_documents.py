"""Rules as YAML. Needs PyYAML, which is an extra: only whoever makes files of rules does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dispatch.policy import Slo
from dispatch.telemetry.alerting.alerts import alert_groups
from dispatch.telemetry.alerting.burn_rate import burn_groups
from dispatch.telemetry.alerting.recording import recording_groups

YAML_EXTRA = "pip install 'tool-dispatch[yaml]'"
RECORDING, ALERTS, SLO = "recording.yml", "alerts.yml", "slo.yml"
"""Names of the files."""
_HEADS = {
    RECORDING: "Rates of every tool, for dashboards and queries.",
    ALERTS: "When somebody is told. Each alert has a section in docs/how-to/runbook.md.",
    SLO: "How fast the tools of a catalogue break what they promise ('slo' in their policy).",
}
_MADE = "Made by 'dispatch rules export': change what it is made from, not this file."


class YamlMissingError(Exception):
    """PyYAML is not installed; the text says how to get it."""

    def __init__(self) -> None:
        super().__init__(f"PyYAML is needed to write rules: {YAML_EXTRA}")


def documents(promises: Mapping[str, Slo] | None = None, grafana: str = "") -> dict[str, str]:
    """Each file's name and its text.

    Args:
        promises: of tools, by their label in metrics (see :func:`dispatch.telemetry.alerting.burn_rate.promises`); None or
            empty: there is no ``slo.yml``.
        grafana: see :meth:`dispatch.telemetry.alerting.alert.Alert.rule`.

    Raises:
        YamlMissingError: PyYAML is not installed.
    """
    made = {RECORDING: recording_groups(), ALERTS: alert_groups(grafana)}
    if promises:
        made[SLO] = burn_groups(promises)
    return {name: _text(_HEADS[name], groups) for name, groups in made.items()}


def _text(head: str, groups: Sequence[Mapping[str, Any]]) -> str:
    try:
        import yaml
    except ImportError:
        raise YamlMissingError from None

    class Dumper(yaml.SafeDumper):
        """Texts of several lines stay as they are."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def written(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, written)
    body = yaml.dump({"groups": list(groups)}, Dumper=Dumper, sort_keys=False, width=10_000, allow_unicode=True)
    return f"# {head}\n# {_MADE}\n\n{body}"
