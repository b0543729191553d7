"""The command, as far as it gets without a broker."""

from __future__ import annotations

import importlib.util
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import cli
from benchmarks.harness.plots import draw, draw_systems
from benchmarks.harness.processes import BenchmarkError
from benchmarks.suites.definitions import CLIENTS, SYSTEMS
from dispatch.devtools.localbroker import LocalBrokerUnavailableError
from tests.benchmarks.harness.result_builders import measurement, results


@contextmanager
def nowhere(report: Any) -> Any:
    """Instead of a broker."""
    report("starting nothing")
    yield None


class FakeDriver:
    """Instead of minutes of work."""

    end: BaseException | None = None
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = {}  # noqa: RUF012 # replaced, never changed

    def __init__(self, *arguments: Any, **options: Any) -> None:
        type(self).arguments, type(self).options = arguments, options

    def run(self) -> Any:
        if self.end is not None:
            raise self.end
        return results(
            measurement("bare"),
            measurement("dispatch", p50_ms=9.0),
            measurement("dispatch", suite="systems-1M", lost=7),
            suites=(CLIENTS, SYSTEMS[-1]),
        )


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> type[FakeDriver]:
    monkeypatch.setattr(cli, "provide_broker", nowhere)
    monkeypatch.setattr(cli, "Driver", FakeDriver)
    monkeypatch.setattr(cli, "export_former_release", lambda _repository, _folder: Path("/former"))
    monkeypatch.setattr(FakeDriver, "end", None)
    return FakeDriver


@pytest.mark.usefixtures("driver")
def test_a_run_prints_its_tables_and_writes_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert cli.main(["--out", str(tmp_path / "deep" / "er"), "--json", str(tmp_path / "my.json")]) == 0
    assert signal.getsignal(signal.SIGTERM) is before
    out, err = capsys.readouterr()
    assert "MISSED" in out  # and is no failure
    assert "starting nothing" in err
    assert (
        "5 round(s) of systems-120, systems-10k, systems-100k, systems-1M, layers, open, loss-120, loss-100k, " in err
    )
    assert (tmp_path / "my.json").read_text().startswith('{\n "format": 2,')
    systems, picture = sorted((tmp_path / "deep" / "er").iterdir())
    assert systems.stem == f"{picture.stem}-systems"
    assert all(drawn.read_bytes().startswith(b"\x89PNG") for drawn in (picture, systems))
    assert f"written: {tmp_path / 'my.json'}, {picture}, {systems}" in err


@pytest.mark.parametrize(
    ("arguments", "drawn"),
    [
        ((), {"a.png": draw, "a-systems.png": draw_systems}),
        (("--quick",), {"a.png": draw, "a-systems.png": draw_systems}),
        (("--only", "systems-10k"), {"a.png": draw_systems}),
        (("--only", "topics"), {"a.png": draw}),
        (("--only", "systems-10k", "--only", "topics"), {"a.png": draw, "a-systems.png": draw_systems}),
    ],
)
@pytest.mark.usefixtures("driver")
def test_what_is_measured_is_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], drawn: dict[str, object]
) -> None:
    published: list[dict[Path, object]] = []
    monkeypatch.setattr(cli, "_publish", lambda _results, _json, pictures: published.append(pictures))
    assert cli.main([*arguments, "--out", str(tmp_path), "--png", str(tmp_path / "a.png")]) == 0
    assert published == [{tmp_path / name: how for name, how in drawn.items()}]


@pytest.mark.usefixtures("driver")
def test_the_release_before_comes_from_the_history_or_a_folder(tmp_path: Path) -> None:
    assert cli.main(["--out", str(tmp_path)]) == 0
    products = FakeDriver.options["products"]
    assert (products.present, products.former) == (None, Path("/former"))
    assert cli.main(["--out", str(tmp_path), "--code", "/now", "--before", "/then"]) == 0
    products = FakeDriver.options["products"]
    assert (products.present, products.former) == (Path("/now"), Path("/then"))


@pytest.mark.usefixtures("driver")
def test_without_the_release_before_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "export_former_release", lambda _repository, _folder: None)
    assert cli.main(["--out", str(tmp_path), "--only", "open"]) == 0
    assert "the release before is not measured (git fetch --unshallow)" in capsys.readouterr().err
    (suite,) = FakeDriver.arguments[1]
    assert [contender.name for contender in suite.contenders] == ["bare", "dispatch"]


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        (BenchmarkError("bare_listener ended early\nboom"), 1, "the run failed: bare_listener ended early\nboom"),
        (KeyboardInterrupt(), 130, "Interrupted; nothing was written."),
        (LocalBrokerUnavailableError(["no java"], "install it"), 1, "no java"),
    ],
)
def test_a_run_that_ends_early_says_so_and_leaves_no_file(
    driver: type[FakeDriver],
    end: BaseException,
    code: int,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    driver.end = end
    assert cli.main(["--out", str(tmp_path)]) == code
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("driver")
def test_sigterm_cleans_up_too(driver: type[FakeDriver], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "run", lambda _self: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as ended:
        cli.main(["--out", str(tmp_path)])
    assert ended.value.code == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_an_older_result_of_that_name_survives_a_run_that_fails(driver: type[FakeDriver], tmp_path: Path) -> None:
    driver.end = KeyboardInterrupt()
    (tmp_path / "kept.json").write_text("{}")
    assert cli.main(["--out", str(tmp_path), "--json", str(tmp_path / "kept.json")]) == 130
    assert (tmp_path / "kept.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "klients"], "there is no 'klients'; choose from: systems-120"),
        (["--rounds", "0"], "1 at least, not 0"),
        (["--rounds", "many"], "invalid"),
        (["--seconds", "-1"], "above 0 and at most 600 seconds, not -1"),
        (["--what"], "unrecognized arguments: --what"),
    ],
)
def test_invalid_options_are_reported_before_the_run(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_an_unwritable_folder_is_reported_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert cli.main(["--out", str(tmp_path / "file")]) == 2
    assert "choose another place with --out, --json or --png" in capsys.readouterr().err


def test_what_is_not_installed_is_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        cli.importlib.util, "find_spec", lambda name: None if name in ("matplotlib", "trustgraph") else find_spec(name)
    )
    assert cli.main([]) == 2
    assert capsys.readouterr().err == (
        "missing: matplotlib, trustgraph-base; install them with: pip install -e '.[bench]'\n"
    )


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    for part in (
        "--quick",
        "--rounds",
        "--only",
        "--json",
        "--png",
        "--out",
        "--code",
        "--before",
        "PULSAR_URL",
        "clients (bare, bare-asyncio",
    ):
        assert part in out
