"""Options shared by several commands: broker, catalogue, policy, token and certificates.

They may precede the command (``dispatch --broker URL call …``) or follow it. Precedence: after the command, before it,
environment, default.
"""

from __future__ import annotations

import functools
import inspect
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatch.catalog.sources.trustgraph.trustgraph_config import DEFAULT_WORKSPACE
from dispatch.cli.exit_codes import CliError
from dispatch.cli.logs import show_logs
from dispatch.transports.pulsar.service_url import DEFAULT_PORTS

if TYPE_CHECKING:
    from dispatch.catalog import Catalog
    from dispatch.permissions import Grants
    from dispatch.policy import Policy
    from dispatch.transports import Security

DEFAULT_BROKER = f"pulsar://localhost:{DEFAULT_PORTS['pulsar']}"
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
        list[str] | None,
        typer.Option(
            "--catalog",
            metavar="DIR",
            help="Folder with tool-service/ID.json and tool/NAME.json. Several: of two tools with one name the first one is "
            "used. Default: DISPATCH_CATALOG, else tools/ if it exists.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ],
    "policy": Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="JSON file with your policy; policies of services and tools override it (docs/how-to/choose-a-policy.md). "
            "Default: DISPATCH_POLICY, else none.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ],
    "grants": Annotated[
        str | None,
        typer.Option(
            "--grants",
            metavar="FILE",
            help="JSON file with the permissions of users (docs/how-to/permissions.md). "
            "Default: DISPATCH_GRANTS, else none: tools with permissions are refused.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ],
    "token_file": Annotated[
        str | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the authentication token. Default: DISPATCH_TOKEN, else DISPATCH_TOKEN_FILE.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ],
    "trust_certs": Annotated[
        str | None,
        typer.Option(
            "--trust-certs",
            metavar="PEM",
            help="Trusted CA certificates for pulsar+ssl://. Default: DISPATCH_TRUST_CERTS, else the system's.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ],
    "trustgraph": Annotated[
        bool,
        typer.Option(
            "--trustgraph",
            help="Use the tools in TrustGraph's configuration, through the broker. They come after those of --catalog.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ],
    "workspace": Annotated[
        str | None,
        typer.Option(
            "--workspace",
            metavar="NAME",
            help=f"Workspace in TrustGraph's configuration; '*': all. Implies --trustgraph. Default: {DEFAULT_WORKSPACE}.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ],
    "approvals": Annotated[
        str | None,
        typer.Option(
            "--approvals",
            metavar="FILE",
            help="File of approved definitions, of connect(approvals=FILE). Default: DISPATCH_APPROVALS, else none.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ],
    "verbose": Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Write the log and tracebacks of errors to stderr.", show_default=False),
    ],
}

_FLAGS = ("trustgraph", "verbose")


@dataclass
class Settings:
    """The given options, before and after the command; properties resolve environment and defaults."""

    broker: str | None = None
    catalog: Sequence[str] = ()
    policy: str | None = None
    grants: str | None = None
    token_file: str | None = None
    trust_certs: str | None = None
    trustgraph: bool = False
    workspace: str | None = None
    approvals: str | None = None
    verbose: bool = False

    @property
    def broker_url(self) -> str:
        """Return the URL of the broker."""
        return self.broker or os.environ.get("DISPATCH_BROKER") or DEFAULT_BROKER

    def require_pulsar_url(self, command: str) -> str:
        """Return the URL for a command that communicates with other processes.

        Raises:
            CliError: it is the embedded broker, which exists in one process only.
        """
        url = self.broker_url
        if url.startswith("memory://"):
            raise CliError(
                f"memory:// is the embedded broker of a single process, so '{command}' cannot reach another process there.",
                f"start a Pulsar broker with 'dispatch broker start' and use --broker {DEFAULT_BROKER}; 'dispatch demo' "
                "uses the embedded broker",
            )
        return url

    @property
    def trustgraph_workspace(self) -> str | None:
        """Return the workspace in TrustGraph's configuration; None if the configuration is not asked for."""
        return self.workspace or (DEFAULT_WORKSPACE if self.trustgraph else None)

    @property
    def approvals_file(self) -> str | None:
        """Return the path of the file of approved definitions; None if none is given."""
        return self.approvals or os.environ.get("DISPATCH_APPROVALS") or None

    @property
    def catalog_folders(self) -> tuple[str, ...]:
        """Return the folders of the descriptors; empty if none is given and ``tools/`` does not exist. With TrustGraph's
        configuration ``tools/`` is used only if it is given."""
        given = tuple(self.catalog) or tuple(filter(None, (os.environ.get("DISPATCH_CATALOG"),)))
        if given or self.trustgraph_workspace is not None:
            return given
        return (DEFAULT_CATALOG,) if Path(DEFAULT_CATALOG).is_dir() else ()

    def require_catalog_folders(self) -> tuple[str, ...]:
        """Return the folders of the descriptors.

        Raises:
            CliError: no folder is given and ``tools/`` does not exist.
        """
        folders = self.catalog_folders
        if not folders:
            raise CliError(
                f"No catalogue: the folder '{DEFAULT_CATALOG}' does not exist here.",
                "name the folder with tool-service/ and tool/ with --catalog DIR or DISPATCH_CATALOG",
            )
        return folders

    def load_catalog(self) -> Catalog:
        """Load the catalogue of all folders: of two tools with one name the first one is used.

        Raises:
            CliError: no folder is given, or one is given twice.
            CatalogError: the catalogue is invalid.
        """
        from dispatch.cli.catalog.snapshot import load_folders

        return load_folders(self.require_catalog_folders())

    @property
    def policy_file(self) -> str | None:
        """Return the path of the user's policy; None if none is given."""
        return self.policy or os.environ.get("DISPATCH_POLICY") or None

    def policy_keys(self) -> Mapping[str, Any]:
        """Read the keys of the user's policy, empty if none is given.

        Raises:
            CliError: the file is invalid; the message lists every mistake.
        """
        from dispatch.cli.policy_file import read_policy_file

        name = self.policy_file
        return {} if name is None else read_policy_file(name, "--policy" if self.policy else "DISPATCH_POLICY")

    def load_policy(self) -> Policy:
        """Load the user's policy over the defaults.

        Raises:
            CliError: the file is invalid; the message lists every mistake.
        """
        from dispatch.policy import DEFAULT_POLICY

        return DEFAULT_POLICY.merged(self.policy_keys())

    @property
    def grants_file(self) -> str | None:
        """Return the path of the grants; None if none is given."""
        return self.grants or os.environ.get("DISPATCH_GRANTS") or None

    def load_grants(self) -> Grants | None:
        """Load the grants; None if none are given.

        Raises:
            CliError: the file is invalid; the message lists every mistake.
        """
        from dispatch.permissions import Grants, GrantsError

        if self.grants_file is None:
            return None
        try:
            return Grants.load(self.grants_file)
        except GrantsError as error:
            raise CliError(str(error)) from None

    def security(self) -> Security:
        """Load token and TLS settings.

        Raises:
            CliError: a named file cannot be read.
        """
        from dispatch.transports import Security

        from_environment = Security.from_environment()
        token = from_environment.token
        if self.token_file is not None:
            path = Path(self.token_file)
            token = lambda: path.read_text().strip()  # noqa: E731 - a def could not be assigned conditionally
        if callable(token):  # checked here: pulsar-client calls it on a thread where its error would be lost
            named = self.token_file or os.environ.get("DISPATCH_TOKEN_FILE", "")
            how = "--token-file" if self.token_file is not None else "DISPATCH_TOKEN_FILE"
            if not _readable(named, "token", how):
                raise CliError(f"The token file '{named}' is empty.", f"write a token to it, or change {how}")
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


def with_settings(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the named options and ``--verbose`` to a command, which receives ``settings`` in their place."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        hints = typing.get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in inspect.signature(command).parameters.values()
            if parameter.name != "settings"
        ]
        keyword = inspect.Parameter.KEYWORD_ONLY
        added = [
            inspect.Parameter(name, keyword, default=False if name in _FLAGS else None, annotation=_OPTIONS[name])
            for name in (*names, "verbose")
        ]
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

        # typer keeps line ends within paragraphs.
        paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
        run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        run.__signature__ = signature  # type: ignore[attr-defined] # typer reads the options from it
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return run

    return decorate
