"""``dispatch init``: create a folder with a service of two functions, its test and its policy."""

from __future__ import annotations

import keyword
from pathlib import Path
from typing import Annotated, Final

import typer

from dispatch.cli.base import CliError, Settings, print_out, with_settings

_SERVICE: Final = '''\
"""The tools of the service "{name}"."""

import dispatch

PRICES = {{"lamp": 19.5, "chair": 49.0}}


class Orders:
    """What was ordered. Replace it with your database."""

    def __init__(self):
        self.quantities = {{}}

    def add(self, product, quantity):
        self.quantities[product] = self.quantities.get(product, 0) + quantity
        return self.quantities[product]


dispatch.provide(Orders, Orders())  # for every parameter with this type; models do not see such a parameter


@dispatch.tool(read_only=True, policy={{"timeout": 3}})
def price(product: str) -> float:
    """Price of a product in euros. Use it before you order."""
    if product not in PRICES:
        raise dispatch.ToolError("unknown-product", f"The products are {{', '.join(PRICES)}}.")
    return PRICES[product]


@dispatch.tool
async def order(product: str, quantity: int, orders: Orders, context: dispatch.CallContext) -> str:
    """Order a product."""
    total = PRICES[product] * quantity
    ordered = orders.add(product, quantity)
    return f"{{context.user or 'Somebody'}} pays {{total:.2f}} euros; {{ordered}} ordered in all."
'''

_TEST: Final = '''\
"""Calls both tools as an agent does, through the service, on the embedded broker."""

import asyncio
import json
from pathlib import Path

import dispatch
import {name}

POLICY = json.loads(Path(__file__).with_name("policy.json").read_text())


async def call(tool, arguments):
    async with dispatch.ToolServer(functions={name}, broker="memory://test") as server:
        catalog = dispatch.Catalog.of([server.descriptors.service], server.descriptors.tools)
        async with dispatch.connect("memory://test", catalog, policy=POLICY) as dispatcher:
            return await dispatcher.execute(tool, arguments, user="alice")


def test_price():
    assert asyncio.run(call("price", {{"product": "lamp"}})).text == "19.5"


def test_unknown_product():
    error = asyncio.run(call("price", {{"product": "tree"}})).error
    assert error.type == "unknown-product"


def test_order():
    text = asyncio.run(call("order", {{"product": "chair", "quantity": 2}})).text
    assert text == "alice pays 98.00 euros; 2 ordered in all."
'''

_POLICY: Final = """\
{{
  "timeout": 10,
  "user-rate-limit": "20/s"
}}
"""

_COMPOSE: Final = """\
# A broker and this service on one machine: docker compose up --build
services:
  pulsar:
    image: apachepulsar/pulsar:4.0.7
    command: ["bin/pulsar", "standalone", "--no-functions-worker", "--no-stream-storage"]
    ports: ["127.0.0.1:6650:6650", "127.0.0.1:8080:8080"]
    healthcheck:
      test: ["CMD", "bin/pulsar-admin", "brokers", "healthcheck"]
      start_period: 30s
  {name}:
    build:
      context: .
      dockerfile_inline: |
        FROM python:3.13-slim
        RUN pip install --no-cache-dir 'tool-dispatch[cli,functions]' && useradd --uid 10001 --no-create-home dispatch
        WORKDIR /app
        COPY {name}.py .
        USER 10001
        ENTRYPOINT ["dispatch"]
    # The first start creates TrustGraph's tenant and namespaces.
    entrypoint: ["sh", "-c", "dispatch doctor --fix --admin http://pulsar:8080; exec dispatch serve {name}.py"]
    environment:
      DISPATCH_BROKER: pulsar://pulsar:6650
    depends_on:
      pulsar:
        condition: service_healthy
    stop_grace_period: 45s
    restart: unless-stopped
"""

_README: Final = """\
# {name}

Two tools, `price` and `order`, as functions in `{name}.py`.

```sh
pytest                                         # the test, without a broker
dispatch broker start                          # a broker for development, if there is none
dispatch serve {name}.py --watch               # serve the tools; each edit is in force at once
```

With Docker, `docker compose up --build` starts a broker and the service.

In another terminal:

```sh
dispatch call price product=lamp               # the service announces its tools
dispatch call order product=lamp quantity=2 --user alice --policy policy.json
dispatch export {name}.py --to tools           # their descriptors, for agents that do not use announcements
```

`policy.json` has the limits of an agent's calls, for `dispatch.connect(policy=…)` and `--policy`. A tool's own policy, as
in `@dispatch.tool(policy={{"timeout": 3}})`, overrides it.
"""

_FILES: Final = {
    "{name}.py": _SERVICE,
    "test_{name}.py": _TEST,
    "policy.json": _POLICY,
    "compose.yaml": _COMPOSE,
    "README.md": _README,
}


@with_settings()
def init(
    settings: Settings,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the service, of its file and of the folder.")],
) -> None:
    """Create a folder with a service of two functions, its test, its policy and a compose file.

    [bold]dispatch init shop && cd shop && pytest && dispatch serve shop.py --watch[/bold]
    """
    if not name.isidentifier() or keyword.iskeyword(name) or not name.isascii():
        raise CliError(f"'{name}' cannot be the name of a Python module.", "use letters, digits and '_', such as shop")
    folder = Path(name)
    if folder.exists():
        raise CliError(f"'{name}' exists already.", "choose another name, or remove it")
    folder.mkdir()
    for file, text in _FILES.items():
        (folder / file.format(name=name)).write_text(text.format(name=name), encoding="utf-8")
    print_out(f"{name}/ has {', '.join(file.format(name=name) for file in _FILES)}.")
    print_out(f"Next: cd {name} && pytest && dispatch serve {name}.py --watch")
