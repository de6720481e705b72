"""The command ``status``: what it makes of the brokers' answers, and of its options."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance.consumer.group_description import GroupDescription, GroupMember
from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.consumer.offsets.told_remaining import bound_to
from pyspark_kafka_rebalance.errors import KafkaRebalanceError
from pyspark_kafka_rebalance.status import command, screen
from pyspark_kafka_rebalance.status.backlog import Backlog, Logs, Topic, backlog_of
from pyspark_kafka_rebalance.status.report import GroupReport, backlogs_of, partitions_of, report_of
from pyspark_kafka_rebalance.status.revokes import follow
from pyspark_kafka_rebalance.status.table import as_json, as_text, cells, short_id, summary

P0, P1, P2 = (TopicPartition("t", n) for n in range(3))
GONE = TopicPartition("gone", 0)
ID = UUID(int=7)
NOW = 1_800_000_000.0


def logs(start: int = 0, end: int = 1_000, **topics: Topic) -> Logs:
    parts = frozenset(range(3))
    every = [TopicPartition("t", n) for n in parts]
    return Logs(
        NOW,
        {"t": Topic(ID, parts, parts), **topics},
        dict.fromkeys(every, start),
        dict.fromkeys(every, end),
    )


def commit(offset: int, metadata: str = "") -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, metadata, -1)


def told(left: Remaining, topic_id: UUID = ID) -> OffsetAndMetadata:
    return commit(left.committed(), left.encode(bound_to=bound_to(topic_id, P0)))


# What is left of a partition

GAPS = Remaining(500, (Gap(70, 120), Gap(300, 310)))


@pytest.mark.parametrize(
    ("committed", "start", "expected"),
    [
        (commit(400), 0, Backlog(400, 1_000, 600, first=400)),
        (commit(1_000), 0, Backlog(1_000, 1_000, 0)),
        (commit(400, "somebody else's"), 0, Backlog(400, 1_000, 600, first=400)),
        (None, 0, Backlog(end=1_000)),
        (commit(-1), 0, Backlog(end=1_000)),
        (commit(1_001), 0, Backlog(1_001, 1_000, note="beyond the end")),
        (commit(400), 450, Backlog(400, 1_000, 550, first=450, note="50 deleted unread")),
        (commit(400), 1_000, Backlog(400, 1_000, 0, note="600 deleted unread")),
        (told(GAPS), 0, Backlog(70, 1_000, 560, 2, 60, 70)),
        (told(GAPS), 100, Backlog(70, 1_000, 530, 2, 30, 100, "30 deleted unread")),
        (told(GAPS), 200, Backlog(70, 1_000, 510, 1, 10, 300, "50 deleted unread")),
        (
            told(GAPS, UUID(int=8)),
            0,
            Backlog(70, 1_000, 930, first=70, note="gaps of another commit"),
        ),
        (
            commit(70, "unprocessed/2:x"),
            0,
            Backlog(70, 1_000, 930, first=70, note="gaps of a newer version"),
        ),
    ],
)
def test_what_is_left_of_a_partition(
    committed: OffsetAndMetadata | None, start: int, expected: Backlog
) -> None:
    assert backlog_of(P0, committed, logs(start)) == expected


@pytest.mark.parametrize(
    ("partition", "topic", "note"),
    [
        (GONE, Topic(problem="no such topic"), "no such topic"),
        (GONE, Topic(problem="not authorized"), "not authorized"),
        (TopicPartition("gone", 1), Topic(ID, frozenset({0}), frozenset({0})), "no such partition"),
        (GONE, Topic(ID, frozenset({0})), "no leader"),
    ],
)
def test_what_is_gone_has_no_lag(partition: TopicPartition, topic: Topic, note: str) -> None:
    assert backlog_of(partition, commit(5), logs(gone=topic)) == Backlog(5, note=note)
    assert backlog_of(partition, None, logs(gone=topic)) == Backlog(note=note)


# Since when something is being revoked


def group(*members: GroupMember, state: str = "Stable", protocol: str = "classic") -> Any:
    return GroupDescription(state, members, protocol=protocol)


def member(
    name: str, assigned: Iterable[TopicPartition] = (), revoking: Iterable[TopicPartition] = ()
) -> GroupMember:
    held = frozenset(assigned)
    return GroupMember(
        name, held, None, f"{name}-0123456789", held, host="/10.0.0.1", revoking=frozenset(revoking)
    )


def test_a_revoke_is_dated_by_the_look_that_finds_it_first() -> None:
    a = "a-0123456789"
    first = follow(None, group(member("a", [P0], [P1])), 10.0)
    assert first == {(a, P1): None}, "nobody knows since when"
    second = follow(first, group(member("a", [], [P0, P1])), 12.0)
    assert second == {(a, P1): None, (a, P0): 12.0}
    during = follow(second, group(member("a"), state="PreparingRebalance"), 13.0)
    assert during == second, "while members join nothing is told"
    third = follow(during, group(member("a", [], [P0])), 14.0)
    assert third == {(a, P0): 12.0}
    assert follow(third, group(member("a"), member("b", [], [P0])), 15.0) == {
        ("b-0123456789", P0): 15.0
    }


def test_the_first_look_that_tells_anything_is_the_first() -> None:
    joining = follow(None, group(member("a"), state="CompletingRebalance"), 10.0)
    assert joining is None
    assert follow(joining, group(member("a", [], [P0])), 11.0) == {("a-0123456789", P0): None}
    moving = group(member("a", [], [P0]), state="Reconciling", protocol="consumer")
    assert follow({}, moving, 12.0) == {("a-0123456789", P0): 12.0}


# The table


def report(**timestamps: int | None) -> GroupReport:
    described = GroupDescription(
        "Stable",
        (member("b"), member("a", [P0], [P1])),
        protocol="classic",
        assignor="cooperative-sticky",
    )
    committed = {P0: told(GAPS), P2: commit(400), GONE: commit(9), P1: commit(-1)}
    partitions = partitions_of(described, committed)
    backlogs = backlogs_of(partitions, committed, logs(gone=Topic(problem="no such topic")))
    times = {TopicPartition("t", int(name[1:])): at for name, at in timestamps.items()}
    revokes = {("a-0123456789", P1): NOW - 61.5}
    return report_of("g", NOW, described, backlogs, times, revokes)


def test_the_table() -> None:
    found = report(p0=int((NOW - 12.34) * 1000), p2=-1)
    assert as_text(found).splitlines() == [
        "group g: Stable, classic protocol (cooperative-sticky), 2 members, 4 partitions, "
        "lag 1,160 and unknown for 2 partitions, the oldest record 12.3 s old",
        "member  host      member id  partition  position    end  lag  lag s  revoking  gaps"
        "         note",
        "a       10.0.0.1  01234567…  t-0              70  1,000  560   12.3  -"
        "         2 (60 left)",
        "a       10.0.0.1  01234567…  t-1               -  1,000    -      -  62 s      -",
        "b       10.0.0.1  01234567…  -                 -      -    -      -  -         -",
        "-       -         -          gone-0            9      -    -      -  -         -"
        "            no such topic",
        "-       -         -          t-2             400  1,000  600      -  -         -",
    ]


def test_the_same_as_json() -> None:
    found = json.loads(as_json(report(p0=int((NOW - 12.34) * 1000), p2=None)))
    assert found["at"] == "2027-01-15T08:00:00+00:00"
    assert {name: found[name] for name in ("group", "state", "protocol", "assignor", "epoch")} == {
        "group": "g",
        "state": "Stable",
        "protocol": "classic",
        "assignor": "cooperative-sticky",
        "epoch": None,
    }
    assert (found["lag"], found["partitions_of_unknown_lag"]) == (1_160, 2)
    assert found["lag_seconds"] == 12.34
    assert [(m["client_id"], m["partitions"]) for m in found["members"]] == [("b", 0), ("a", 2)]
    rows = {(row["topic"], row["partition"]): row for row in found["partitions"]}
    assert len(rows) == 4
    assert rows["t", 0] == {
        "topic": "t",
        "partition": 0,
        "member_id": "a-0123456789",
        "position": 70,
        "end": 1_000,
        "lag": 560,
        "lag_seconds": 12.34,
        "revoking": False,
        "revoking_since": None,
        "gaps": 2,
        "gap_offsets": 60,
        "note": None,
    }
    assert rows["t", 1]["revoking_since"] == "2027-01-15T07:58:58.500000+00:00"
    assert rows["t", 2]["lag_seconds"] == 0.0, "no offset there has a record"
    assert rows["gone", 0]["note"] == "no such topic"


@pytest.mark.parametrize(
    ("lag", "timestamp", "expected"),
    [
        (5, int(NOW * 1000) - 1_500, "1.5"),
        (5, int(NOW * 1000) - 3_600_000, "3,600"),
        (5, int(NOW * 1000) + 1_500, "0.0"),  # another machine's clock
        (5, None, "0.0"),
        (5, -1, "-"),
        (0, -1, "0.0"),
        (None, int(NOW * 1000), "-"),
    ],
)
def test_the_lag_in_seconds(lag: int | None, timestamp: int | None, expected: str) -> None:
    times = {P0: timestamp}
    found = report_of("g", NOW, group(), {P0: Backlog(1, 9, lag)}, times, None)
    assert cells(found, found.rows[0])[7] == expected
    unread = report_of("g", NOW, group(), {P0: Backlog(1, 9, 5)}, {}, None)
    assert unread.rows[0].lag_s is None


def test_a_group_without_anything_is_a_line() -> None:
    empty = report_of("g", NOW, GroupDescription("Empty", (), 3, "consumer", "uniform"), {}, {}, {})
    assert as_text(empty) == summary(empty)
    assert summary(empty) == (
        "group g: Empty, consumer protocol (uniform), epoch 3, 0 members, 0 partitions, lag 0"
    )
    assert json.loads(as_json(empty))["partitions"] == []


def test_a_group_without_any_commit_has_no_lag_that_is_known() -> None:
    found = report_of("g", NOW, GroupDescription("Stable"), {P0: Backlog(end=5)}, {}, None)
    assert summary(found).endswith(", 1 partition, lag unknown")


def test_a_member_id_is_shortened_beside_its_client_id() -> None:
    assert short_id(GroupMember("a", member_id="a-0123456789")) == "01234567…"
    assert short_id(GroupMember("a", member_id="0123")) == "0123"
    assert short_id(GroupMember("a", member_id="ab-0123456789")) == "ab-01234…"


def test_control_characters_of_members_are_escaped() -> None:
    evil, p = "x\x1b[31mred\nnew\u202e", TopicPartition("t\r", 0)
    one = GroupMember(evil, frozenset({p}), None, "\x07\n", host="/h\x9b1m")
    described = GroupDescription("Stable", (one,), protocol="classic", assignor="a\x1b[0m")
    found = report_of("g", NOW, described, {p: Backlog(1, 9, 8)}, {}, None)
    assert cells(found, found.rows[0])[:4] == (
        r"x\x1b[31mred\nnew\u202e",
        r"h\x9b1m",
        r"\x07\n",
        r"t\r-0",
    )
    assert all(line.isprintable() for line in as_text(found).split("\n"))
    assert len(as_text(found).splitlines()) == 3
    assert json.loads(as_json(found))["members"][0]["client_id"] == evil


# The command line


class Looks:
    """In the place of GroupLook: each look is the next of these, then Ctrl-C."""

    def __init__(self, *looks: GroupReport | Exception) -> None:
        self._looks = iter(looks)
        self.arguments: tuple[Any, ...] = ()

    def __call__(self, *arguments: Any) -> Looks:
        self.arguments = arguments
        return self

    def __enter__(self) -> Looks:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def report(self) -> GroupReport:
        look = next(self._looks, KeyboardInterrupt())
        if isinstance(look, BaseException):
            raise look
        return look


def run(monkeypatch: pytest.MonkeyPatch, looks: Looks, *options: str) -> int:
    monkeypatch.setattr(command, "GroupLook", looks)
    return command.main(["--bootstrap-servers", "h:1", "--group", "g", *options])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--group", "g"], "--bootstrap-servers"),
        (["--bootstrap-servers", "h:1"], "--group"),
        (["--bootstrap-servers", "h:1", "--group", ""], "non-empty"),
        (["--bootstrap-servers", "h:1", "--group", "\udcff"], "UTF-8"),
        (["--bootstrap-servers", "h:1", "--group", "g", "--watch", "soon"], "'soon'"),
        (["--bootstrap-servers", "h:1", "--group", "g", "--timeout", "nan"], "'nan'"),
        (["--bootstrap-servers", "h:1", "--group", "g", "--timeout", "0"], "'0'"),
        (["--bootstrap-servers", "h", "--group", "g"], "'--bootstrap-servers'"),
        (["--bootstrap-servers", "h:1", "--group", "g", "--command-config", "/none"], "'/none'"),
    ],
)
def test_a_wrong_option_is_one_line(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: Any = command.main(options)
    except SystemExit as ended:
        code = ended.code
    assert code == command.FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert said in line


def test_a_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\\n"
        '  username="u" password="secret";\n'
        "isolation.level=read_committed\nclient.id=me\n"
        "bootstrap.servers=other:1\ngroup.id=other\nrequest.timeout.ms=7\n"
        "enable.auto.commit=true\nretries=3\n"
    )
    looks = Looks(report())
    options = ("--command-config", str(settings), "--timeout", "3")
    assert run(monkeypatch, looks, *options) == command.DONE
    config, group_id, isolation, timeout_s = looks.arguments
    assert (group_id, isolation, timeout_s) == ("g", "read_committed", 3.0)
    assert config["bootstrap_servers"] == ["h:1"]
    assert config["sasl_plain_password"] == "secret"
    assert config["client_id"] == "me"
    assert (
        capsys.readouterr().err
        == f"{settings}: these settings have no effect here: enable.auto.commit, retries\n"
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("securty.protocol=SSL", "'securty.protocol'"),
        ("sasl.mechanism=PLAIN", "'security.protocol'"),
        ("secret", "line 1"),
    ],
)
def test_a_wrong_settings_file_is_one_line(
    line: str, said: str, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text(line)
    assert run(monkeypatch, Looks(), "--command-config", str(settings)) == command.FAILED
    (shown,) = capsys.readouterr().err.splitlines()
    assert said in shown


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_the_encoding_lacks_is_a_question_mark(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", out)
    assert run(monkeypatch, Looks(report())) == command.DONE
    out.seek(0)
    assert out.read() == as_text(report()).replace("…", "?") + "\n"
    with pytest.raises(SystemExit):
        command.main(["--help"])


def test_an_error_handler_that_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), "ascii", "backslashreplace")
    monkeypatch.setattr(sys, "stdout", out)
    assert run(monkeypatch, Looks(report())) == command.DONE
    out.seek(0)
    assert "a       10.0.0.1  01234567\\u2026" in out.read()


def test_watching_goes_on_when_a_look_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = Looks(report(), KafkaRebalanceError("no answer\nat all"), report())
    assert run(monkeypatch, looks, "--watch", "0.1", "--json") == command.DONE
    shown = capsys.readouterr()
    assert [json.loads(line)["group"] for line in shown.out.splitlines()] == ["g", "g"]
    assert shown.err == "error: no answer at all\n"


def test_watching_ends_when_the_first_look_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, Looks(KafkaRebalanceError("nobody")), "--watch") == command.FAILED
    assert capsys.readouterr().err == "error: nobody\n"


def test_tables_go_one_below_the_other_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    looks = Looks(report(), report())
    assert run(monkeypatch, looks, "--watch", "0.1") == command.DONE
    assert capsys.readouterr().out == f"{as_text(report())}\n\n" * 2


def test_a_live_table_without_rich_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("rich", "rich.console", "rich.live"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(monkeypatch, Looks(report()), "--watch") == command.FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install rich" in line


def test_the_live_table_shows_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    found = report(p0=int((NOW - 12.34) * 1000))
    Console(width=200).print(screen._rendered(found, "no answer", 200))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "error: no answer"
    assert lines[1].strip() == summary(found)
    assert [line.split() for line in lines[3:]] == [
        " ".join(cells(found, row)).split() for row in found.rows
    ]


def long_report(rows: int = 60) -> GroupReport:
    backlogs = {TopicPartition("orders", n): Backlog(10_250, 10_850, 600) for n in range(rows)}
    times = {p: int((NOW - 12.3) * 1000) for p in backlogs}
    return report_of("g", NOW, group(), backlogs, times, None)


def terminal(width: int, height: int, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard output, and what arrives at a terminal of this size."""
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", out)
    for name, value in (("TERM", "xterm"), ("COLUMNS", str(width)), ("LINES", str(height))):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return out


def test_a_live_table_that_is_too_tall_shows_the_error_and_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = terminal(120, 24, monkeypatch)
    with screen.live_table() as show:
        show(long_report(), "")
        first = out.tell()
        show(long_report(), "no answer")
        drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue()[first:])
        last = out.tell()
    lines = drawn.strip().splitlines()
    assert len(lines) == 24
    assert lines[0].strip() == "error: no answer"
    assert lines[1].startswith("group g: Stable")
    assert sum("10,250" in line for line in lines) == 20
    assert lines[-1].strip() == "rows that do not fit: 40"
    left = out.getvalue()[last:]
    assert left.count("10,250") == 60, "the last table stays in full"
    assert "error: no answer" in left


def test_a_live_table_that_fits_is_shown_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    out = terminal(120, 24, monkeypatch)
    with screen.live_table() as show:
        show(long_report(21), "")
        assert out.getvalue().count("10,250") == 21
        assert "do not fit" not in out.getvalue()


@pytest.mark.parametrize("width", [40, 79, 80])
def test_numbers_stay_legible_on_a_narrow_terminal(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    Console(width=width).print(screen._rendered(long_report(3), "", width))
    rows = [line for line in capsys.readouterr().out.splitlines() if "10,850" in line]
    assert len(rows) == 3
    assert all({"10,250", "600", "12.3"} <= set(line.split()) for line in rows)
    if width == 40:
        assert [line.split()[0] for line in rows] == ["orders-0", "orders-1", "orders-2"]
