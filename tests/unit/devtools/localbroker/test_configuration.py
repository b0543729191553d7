from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.devtools.localbroker.launch import Configuration, Ports, apply_settings, read_bookie_port
from dispatch.devtools.localbroker.processes import LocalBrokerError

KEYS = st.text("abcXYZ_", min_size=1, max_size=5)
VALUES = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=8).map(str.strip)
LINES = st.one_of(
    st.just(""),
    VALUES.map(lambda text: f"# {text}"),
    st.tuples(KEYS, VALUES).map("=".join),
    st.tuples(KEYS, VALUES).map(lambda pair: f"#{pair[0]}={pair[1]}"),
)


def properties(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.split("\n") if "=" in line and not line.lstrip().startswith("#"))
    return {key.strip(): value for key, _, value in pairs}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "apache-pulsar"
    (home / "conf").mkdir(parents=True)
    # As the genuine file: no newline at its end.
    (home / "conf" / "standalone.conf").write_text("# port\nbrokerServicePort=6650\nbindAddress=0.0.0.0\nlast=x")
    return home


def test_a_setting_takes_the_place_of_its_key() -> None:
    assert apply_settings("# b=0\na=1\nb=2\nc=3\n", {"b": "9"}) == "# b=0\na=1\nb=9\nc=3\n"


def test_a_new_setting_goes_to_the_end_even_where_the_last_line_has_no_newline() -> None:
    assert apply_settings("a=1", {"b": "2"}) == "a=1\nb=2\n"


def test_a_key_that_merely_begins_alike_is_left_alone() -> None:
    assert apply_settings("webServicePortTls=\nwebServicePort=8080\n", {"webServicePort": "1"}) == (
        "webServicePortTls=\nwebServicePort=1\n"
    )


@settings(deadline=None)  # a loaded machine is no failure
@given(st.lists(LINES), st.dictionaries(KEYS, VALUES))
def test_every_setting_holds_and_everything_else_stays(lines: list[str], settings: dict[str, str]) -> None:
    text = "\n".join(lines)

    written = properties(apply_settings(text, settings))

    assert written == {**properties(text), **settings}


def test_the_broker_listens_on_the_loopback_only(home: Path, tmp_path: Path) -> None:
    Configuration(home, tmp_path / "data", Ports(1001, 1002, 1003)).write()

    written = properties((tmp_path / "data" / "conf" / "standalone.conf").read_text())

    assert written["bindAddress"] == "127.0.0.1"
    assert written["listeningInterface"] in ("lo", "lo0")  # of the bookie, which listens everywhere without it
    assert written["allowEphemeralPorts"] == "true"  # or it takes a port of its own choice
    assert written["brokerServicePort"] == "1001"
    assert written["webServicePort"] == "1002"
    assert written["last"] == "x"


def test_a_new_start_puts_the_logs_of_the_last_one_aside(home: Path, tmp_path: Path) -> None:
    configuration = Configuration(home, tmp_path / "data", Ports(1, 2, 3))
    configuration.write()
    configuration.log_file.write_text("Address already in use")

    configuration.write()

    assert not configuration.log_file.exists()
    assert configuration.log_file.with_suffix(".previous.log").read_text() == "Address already in use"


@pytest.mark.parametrize("part", ["home", "data"])
def test_a_path_with_white_space_is_refused_before_the_script_stumbles(home: Path, tmp_path: Path, part: str) -> None:
    spaced = tmp_path / "a b"
    configuration = Configuration(
        spaced if part == "home" else home, spaced if part == "data" else tmp_path / "data", Ports(1, 2, 3)
    )

    with pytest.raises(LocalBrokerError, match="DISPATCH_CACHE" if part == "home" else "TMPDIR"):
        configuration.write()


def test_the_command_never_wipes_and_keeps_everything_in_the_data_folder(home: Path, tmp_path: Path) -> None:
    configuration = Configuration(home, tmp_path / "data", Ports(1001, 1002, 1003))

    command = configuration.command()

    assert command[:2] == [str(home / "bin" / "pulsar"), "standalone"]
    assert "--wipe-data" not in command
    assert command[command.index("--bookkeeper-port") + 1] == "1003"
    for option in ("--metadata-dir", "--bookkeeper-dir"):
        assert Path(command[command.index(option) + 1]).parent == tmp_path / "data"


def test_variables_of_the_start_script_are_not_inherited(home: Path, tmp_path: Path) -> None:
    configuration = Configuration(home, tmp_path / "data", Ports(1, 2, 3))
    inherited = {
        "PULSAR_EXTRA_CLASSPATH": "x",
        "OPTS": "x",
        "BOOKIE_CONF": "x",
        "JAVA_TOOL_OPTIONS": "x",
        "CLASSPATH": "x",
    }

    environment = configuration.environment({**inherited, "PATH": "/bin", "JAVA_HOME": "/java", "MY_OPTS": "mine"})

    assert not set(inherited) & set(environment)
    assert environment["PATH"] == "/bin"
    assert environment["JAVA_HOME"] == "/java"
    assert environment["MY_OPTS"] == "mine"
    assert f"-Djava.io.tmpdir={tmp_path / 'data' / 'tmp'}" in environment["PULSAR_EXTRA_OPTS"]


def test_kept_data_say_which_port_their_bookie_has(tmp_path: Path) -> None:
    assert read_bookie_port(tmp_path) is None
    cookie = tmp_path / "bk" / "current" / "VERSION"
    cookie.parent.mkdir(parents=True)

    cookie.write_text('5\nbookieHost: "127.0.0.1:21652"\njournalDir: "/x:1"\n')
    assert read_bookie_port(tmp_path) == 21652

    cookie.write_text("rubbish")
    assert read_bookie_port(tmp_path) is None
