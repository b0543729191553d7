"""The options that several commands have: where the broker is, where the catalogue and the policy, who we are.

They may stand before the command (``dispatch --broker URL call …``) and after it; what stands after it wins, then what
stands before it, then the environment, then the default.
"""

from __future__ import annotations

import functools
import inspect
import os
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatch.cli.exit_codes import CliError
from dispatch.cli.logs import show_logs

if TYPE_CHECKING:
    from dispatch.catalog import Catalog
    from dispatch.policy import Policy
    from dispatch.transports import Security

DEFAULT_BROKER = "pulsar://localhost:6650"
DEFAULT_CATALOG = "tools"

_PANEL = "Connection"
_OPTIONS: dict[str, Any] = {
    "broker": Annotated[
        str | None,
        typer.Option(
            "--broker",
            metavar="URL",
            help=f"pulsar://HOST:PORT or pulsar+ssl://HOST:PORT. Default: DISPATCH_BROKER, else {DEFAULT_BROKER}.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ],
    "catalog": Annotated[
        str | None,
        typer.Option(
            "--catalog",
            metavar="DIR",
            help="Folder with tool-service/ID.json and tool/NAME.json. Default: DISPATCH_CATALOG, else tools/ if it is "
            "there.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ],
    "policy": Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="JSON file with policy keys: your own, below those of services and tools (docs/how-to/choose-a-policy.md). "
            "Default: DISPATCH_POLICY, else none.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ],
    "token_file": Annotated[
        str | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the token that proves who we are. Default: DISPATCH_TOKEN, else DISPATCH_TOKEN_FILE.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ],
    "trust_certs": Annotated[
        str | None,
        typer.Option(
            "--trust-certs",
            metavar="PEM",
            help="Certificates to trust (pulsar+ssl://). Default: DISPATCH_TRUST_CERTS, else the public ones.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ],
    "verbose": Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Write the log to stderr, and tracebacks with errors.", show_default=False
        ),
    ],
}


@dataclass
class Settings:
    """What was given, before and after the command. The properties have what is in force."""

    broker: str | None = None
    catalog: str | None = None
    policy: str | None = None
    token_file: str | None = None
    trust_certs: str | None = None
    verbose: bool = False

    @property
    def broker_url(self) -> str:
        """Where the broker is."""
        return self.broker or os.environ.get("DISPATCH_BROKER") or DEFAULT_BROKER

    def genuine_broker_url(self, command: str) -> str:
        """The same for a command that needs others on the broker.

        Raises:
            CliError: it is the embedded one, which nobody else can reach.
        """
        url = self.broker_url
        if url.startswith("memory://"):
            raise CliError(
                f"memory:// is the embedded broker of one process: nobody else is on it, so '{command}' has nothing to "
                "talk to there.",
                f"start a genuine one with 'dispatch broker start' and use --broker {DEFAULT_BROKER}, or see the embedded "
                "one at work with 'dispatch demo'",
            )
        return url

    @property
    def catalog_folder(self) -> str | None:
        """Where the descriptors are; None when nobody said and there is no ``tools/``."""
        given = self.catalog or os.environ.get("DISPATCH_CATALOG")
        if given:
            return given
        return DEFAULT_CATALOG if Path(DEFAULT_CATALOG).is_dir() else None

    def require_catalog_folder(self) -> str:
        """The same.

        Raises:
            CliError: there is none.
        """
        folder = self.catalog_folder
        if folder is None:
            raise CliError(
                f"No catalogue: there is no folder '{DEFAULT_CATALOG}' here.",
                "give the folder with tool-service/ and tool/ by --catalog DIR or DISPATCH_CATALOG",
            )
        return folder

    def load_catalog(self) -> Catalog:
        """The catalogue.

        Raises:
            CliError: nobody said where it is.
            CatalogError: it has mistakes.
        """
        from dispatch.catalog import load_directory

        return load_directory(self.require_catalog_folder())

    @property
    def policy_file(self) -> str | None:
        """Where the user's own policy is; None when nobody said."""
        return self.policy or os.environ.get("DISPATCH_POLICY") or None

    def policy_keys(self) -> Mapping[str, Any]:
        """The keys of the user's own policy, as they stand in its file; none when nobody said where it is.

        Raises:
            CliError: the file has mistakes; it lists all of them.
        """
        from dispatch.cli.policy_file import read_policy_file

        name = self.policy_file
        return {} if name is None else read_policy_file(name, "--policy" if self.policy else "DISPATCH_POLICY")

    def load_policy(self) -> Policy:
        """The user's own policy, over the defaults.

        Raises:
            CliError: the file has mistakes; it lists all of them.
        """
        from dispatch.policy import DEFAULT_POLICY

        return DEFAULT_POLICY.merged(self.policy_keys())

    def security(self) -> Security:
        """Token and TLS settings.

        Raises:
            CliError: a file that was named cannot be read.
        """
        from dispatch.transports import Security

        from_environment = Security.from_environment()
        token = from_environment.token
        if self.token_file is not None:
            path = Path(self.token_file)
            token = lambda: path.read_text().strip()  # noqa: E731 - a def could not be assigned conditionally
        if callable(token):  # once here: pulsar-client would call it in a thread where nobody sees the error
            named = self.token_file or os.environ.get("DISPATCH_TOKEN_FILE", "")
            how = "--token-file" if self.token_file is not None else "DISPATCH_TOKEN_FILE"
            if not _readable(named, "token", how):
                raise CliError(f"The token file '{named}' is empty.", f"put a token into it, or change {how}")
        certificates = self.trust_certs or from_environment.trust_certs
        if certificates is not None:
            how = "--trust-certs" if self.trust_certs is not None else "DISPATCH_TRUST_CERTS"
            _readable(str(certificates), "certificate", how)
        return Security(token=token, trust_certs=certificates)


def _readable(name: str, what: str, how: str) -> str:
    try:
        return Path(name).read_text(errors="replace").strip()
    except OSError as error:
        raise CliError(
            f"The {what} file '{name}' cannot be read: {error.strerror or error}.", f"change {how}"
        ) from None


def takes(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the named options of this module and ``--verbose``; it gets ``settings`` in their stead."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        hints = typing.get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in inspect.signature(command).parameters.values()
            if parameter.name != "settings"
        ]
        keyword = inspect.Parameter.KEYWORD_ONLY
        added = [inspect.Parameter(name, keyword, default=None, annotation=_OPTIONS[name]) for name in names]
        added.append(inspect.Parameter("verbose", keyword, default=False, annotation=_OPTIONS["verbose"]))
        context = inspect.Parameter("context", keyword, annotation=typer.Context)
        signature = inspect.Signature([p.replace(kind=keyword) for p in own] + added + [context])

        @functools.wraps(command)
        def run(*, context: typer.Context, **values: Any) -> Any:
            root = context.find_root()
            settings = root.obj = root.obj or Settings()
            for name in (*names, "verbose"):
                given = values.pop(name)
                if given:
                    setattr(settings, name, given)
            show_logs(settings.verbose)
            return command(settings=settings, **values)

        # typer would keep the line ends within a paragraph.
        paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
        run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        run.__signature__ = signature  # type: ignore[attr-defined] # what typer reads the options from
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return run

    return decorate
