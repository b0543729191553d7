"""Names with hyphens in the sentences of pages exist: policy keys, error types, message properties, states."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from dispatch.adapters import FRAMEWORKS, Style
from dispatch.permissions.grants import Reason
from dispatch.relay import RelayConfig
from dispatch.resilience.breaker import State
from dispatch.telemetry.gauges import REJECTIONS
from docs.generators.pages import GENERATORS
from tests.docs.pages import PAGES, page_id, prose

NAME = re.compile(r'"?[a-z]+(?:-[a-z]+)+"?')
OTHERS = {
    *("pulsar-client", "prometheus-client", "opentelemetry-api", "jsonschema-rs", "trustgraph-flow"),  # packages
    *("tool-service", "request-queue", "response-queue", "config-params", "output-schema", "read-only"),  # descriptors
    *("input-schema", "applicable-states"),  # descriptors
    *("mcp-tool", "on-change"),  # a type of TrustGraph's tools, a key of mcp.json
    *("dispatch-overview", "dispatch-tool", "dispatch-instances"),  # uids of dashboards
    *("call-off", "rejected-call"),  # rows of `python -m benchmarks.micro.guards`
    *("forged-agent", "forged-open", "short-lived", "ours-defaults"),  # scenarios and contenders
    *("item-refused", "item-shadowed", "change-held", "broker-lost", "broker-back"),  # kinds of events
    *(name.replace("_", "-") for name in FRAMEWORKS),  # extras
    *Style,  # forms of the APIs of models
    "dispatch-quota",  # a subscription
    "getkeys-all-ws",  # an operation of TrustGraph's config service
    "injected-fault",  # the type of a fault's tool error
    "stream-idle",
    "stream-reader",  # values of `CallTimeoutError.limit_name`
}


def known() -> set[str]:
    """The names of the generated reference, and those of :data:`OTHERS`."""
    reference = "\n".join(make() for name, make in GENERATORS.items() if name != "changelog")
    return (
        {name.strip('"`') for name in re.findall(r"`[^`\n]+`", reference)}
        | {str(state) for state in State}
        | OTHERS
        | {*RelayConfig.__struct_encode_fields__}
        | {*get_args(Reason), *REJECTIONS}
    )


@pytest.fixture(scope="module")
def names() -> set[str]:
    return known()


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "changelog.md"], ids=page_id)
def test_the_names_with_hyphens_of_a_page_exist(page: Path, names: set[str]) -> None:
    written = {code.strip('"') for code in re.findall(r"`([^`\n]+)`", prose(page)) if NAME.fullmatch(code)}
    assert written - names == set()
