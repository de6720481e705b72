"""The command ``transactions``: what it makes of the brokers' answers, and of its options."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.errors import (
    AuthorizationError,
    KafkaRebalanceError,
    UnsupportedBrokerError,
)
from pyspark_kafka_rebalance.transactions import aborting, command, requests, screen
from pyspark_kafka_rebalance.transactions import look as look_module
from pyspark_kafka_rebalance.transactions.look import (
    Filters,
    TransactionsLook,
    UnknownTransactionError,
)
from pyspark_kafka_rebalance.transactions.report import (
    Log,
    Report,
    Transaction,
    Writer,
    is_overdue,
    oldest_first,
    unclaimed,
)
from pyspark_kafka_rebalance.transactions.table import (
    as_text,
    duration,
    listing,
    listing_as_json,
    note_of,
    of_partitions,
    of_transaction,
    partitions_as_json,
    transaction_as_json,
)

NOW = 1_800_000_000.0
P0, P1, P2 = (TopicPartition("t", n) for n in range(3))

ETL = Transaction("etl", 7, "Ongoing", 1, 3, 60.0, NOW - 12.5, frozenset({P0, P1}))
LATER = Transaction("later", 8, "Ongoing", 2, 0, 600.0, NOW - 5, frozenset({P0}))
OF_ETL = Writer(7, 3, 100, NOW - 11)
OF_LATER = Writer(8, 0, 150, NOW - 4)
HANGING = Writer(9, 1, 40, NOW - 90_000)

LOGS = {
    P0: Log(100, 300, (OF_ETL, OF_LATER)),
    P1: Log(50, 50),
    P2: Log(40, 45, (HANGING,)),
}
REPORT = Report(NOW, (ETL, LATER), LOGS, frozenset({(P2, 9, 40)}))


# Who holds what back


def test_who_holds_which_partition_back() -> None:
    holds = [
        (h.partition, h.transaction, h.records, h.is_first, h.is_hanging) for h in REPORT.holds()
    ]
    assert holds == [
        (P0, ETL, 200, True, False),
        (P0, LATER, 150, False, False),
        (P2, None, 5, True, True),
    ]


def test_a_transaction_holds_back_what_is_behind_its_first_record() -> None:
    assert [(h.partition, h.records) for h in REPORT.holds_of(ETL)] == [(P0, 200), (P1, 0)]
    assert REPORT.held_by(ETL) == 200
    assert REPORT.held_by(LATER) == 150
    unknown = replace(REPORT, logs={P0: LOGS[P0], P1: Log(problem="no leader")})
    assert unknown.held_by(ETL) is None
    assert replace(REPORT, logs={}).held_by(ETL) is None


@pytest.mark.parametrize(
    ("transactions", "left"),
    [
        ((ETL, LATER), {P2}),
        ((ETL,), {P0, P2}),
        ((replace(ETL, state="PrepareAbort", epoch=4), LATER), {P2}),
        ((replace(ETL, state="Empty"), LATER), {P0, P2}),
        ((replace(ETL, partitions=frozenset({P1})), LATER), {P0, P2}),
        ((ETL, LATER, replace(ETL, producer_id=9, partitions=frozenset({P2}))), set()),
    ],
)
def test_what_no_coordinator_has(transactions: Any, left: set[TopicPartition]) -> None:
    assert {place[0] for place in unclaimed(transactions, LOGS)} == left


def test_a_transaction_is_overdue_when_its_coordinator_is() -> None:
    aged = replace(ETL, started=NOW - 89)
    assert not is_overdue(aged, NOW)
    assert is_overdue(aged, NOW + 2)
    assert not is_overdue(replace(aged, state="PrepareAbort"), NOW + 2)
    assert not is_overdue(replace(aged, timeout_s=None), NOW + 2)


def test_the_oldest_comes_first() -> None:
    ended = replace(ETL, state="CompleteCommit", started=NOW - 1e6)
    assert oldest_first([ended, LATER, ETL]) == (ETL, LATER, ended)


def test_filters_hold_also_where_brokers_ignore_them() -> None:
    assert Filters(longer_than_s=12).admits(ETL, NOW)
    assert not Filters(longer_than_s=13).admits(ETL, NOW)
    assert not Filters(longer_than_s=0).admits(replace(ETL, started=None), NOW)
    assert not Filters().admits(replace(ETL, state="Empty"), NOW)
    assert Filters(states=()).admits(replace(ETL, state="Empty"), NOW)


# What is shown


def cells_of(text: str, row: int) -> list[str]:
    return [cell.strip() for cell in text.splitlines()[row].split("  ") if cell.strip()]


def test_a_listing() -> None:
    text = as_text(listing(REPORT))
    assert text.splitlines()[0] == "2 open transactions, the oldest open for 12.5 s"
    assert cells_of(text, 2) == [
        *("etl", "Ongoing", "12.5 s", "1 min 0 s", "7", "3", "1", "2", "200"),
        "aborted by its timeout in 47.5 s",
    ]
    assert as_text(listing(Report(NOW))) == "0 open transactions"
    ended = replace(REPORT, transactions=(replace(ETL, state="Empty"),), silent={3: "it is\naway"})
    first, second, _, row = as_text(listing(ended)).splitlines()
    assert first == "0 open transactions, 1 ended"
    assert second == "no answer from broker 3 (it is away): its transactions are missing"
    assert row.split()[:3] == ["etl", "Empty", "-"]


def test_one_transaction() -> None:
    text = as_text(of_transaction(replace(REPORT, transactions=(LATER,))))
    assert text.splitlines()[0] == (
        "transactional id later: Ongoing, open for 5.0 s, timeout 10 min 0 s, producer id 8, "
        "epoch 0, coordinator 2, 1 partition, holds back 150 records, aborted by its timeout in 9 "
        "min 55 s"
    )
    assert cells_of(text, 2) == [
        *("t-0", "150", "100", "300", "150", "4.0 s ago", "behind another transaction")
    ]
    written_nothing = as_text(of_transaction(replace(REPORT, transactions=(ETL,))))
    assert cells_of(written_nothing, 3) == ["t-1", "-", "50", "50", "0", "-", "nothing written"]


def test_what_holds_partitions_back() -> None:
    text = as_text(of_partitions(REPORT))
    assert text.splitlines()[0] == (
        "3 partitions, 2 held back by 205 records, 1 hanging transaction"
    )
    assert cells_of(text, 2) == [
        *("t-0", "100", "300", "200", "100", "12.5 s", "etl", "7", "3", "1", "Ongoing"),
        *("11.0 s ago", "aborted by its timeout in 47.5 s"),
    ]
    assert cells_of(text, 3)[-1].startswith("behind another transaction, aborted by its timeout in")
    assert cells_of(text, 4) == [
        *("t-2", "40", "45", "5", "40", "-", "-", "9", "1", "-", "-", "1 d 1 h ago"),
        "hanging: no coordinator knows it",
    ]


@pytest.mark.parametrize(
    ("log", "silent", "note"),
    [
        (Log(problem="no leader"), {}, "no leader"),
        (Log(3, 5), {}, "a marker that is not replicated yet"),
        (Log(3, 5, (HANGING,)), {}, "its transactional id is unknown: it has just ended"),
        (
            Log(3, 5, (HANGING,)),
            {1: "away"},
            "its transactional id is unknown: a broker did not answer",
        ),
    ],
)
def test_what_is_unknown_is_not_called_hanging(
    log: Log, silent: Mapping[int, str], note: str
) -> None:
    text = as_text(of_partitions(Report(NOW, logs={P0: log}, silent=silent)))
    assert cells_of(text, -1)[-1] == note


def test_names_are_printable() -> None:
    odd = replace(ETL, transactional_id="a\nb")
    assert "a\\nb" in as_text(listing(replace(REPORT, transactions=(odd,))))


@pytest.mark.parametrize(
    ("transaction", "note"),
    [
        (ETL, "aborted by its timeout in 47.5 s"),
        (replace(ETL, started=NOW - 70), "about to be aborted"),
        (replace(ETL, started=NOW - 120), "overdue: its coordinator should have aborted it"),
        (replace(ETL, state="PrepareCommit"), "to be committed: markers are missing"),
        (replace(ETL, state="PrepareEpochFence"), "to be aborted: markers are missing"),
        (replace(ETL, state="CompleteCommit"), ""),
    ],
)
def test_what_comes_next(transaction: Transaction, note: str) -> None:
    assert note_of(transaction, NOW) == note


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (59.94, "59.9 s"),
        (60, "1 min 0 s"),
        (3_725, "1 h 2 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_json() -> None:
    told = json.loads(listing_as_json(REPORT))
    assert (told["at"], told["brokers_without_answer"]) == ("2027-01-15T08:00:00+00:00", {})
    assert told["transactions"][0] == {
        "transactional_id": "etl",
        "state": "Ongoing",
        "producer_id": 7,
        "epoch": 3,
        "coordinator": 1,
        "started_at": "2027-01-15T07:59:47.500000+00:00",
        "open_seconds": 12.5,
        "timeout_seconds": 60.0,
        "overdue": False,
        "partitions": 2,
        "holds_back": 200,
    }
    of_one = json.loads(transaction_as_json(replace(REPORT, transactions=(ETL,))))
    assert of_one["transaction"] == told["transactions"][0]
    assert [p["start"] for p in of_one["partitions"]] == [100, None]
    partitions = json.loads(partitions_as_json(REPORT))["partitions"]
    assert [(p["held_back"], len(p["open"])) for p in partitions] == [(200, 2), (0, 0), (5, 1)]
    assert partitions[2]["open"][0]["hanging"]
    assert "holds_back" not in partitions[0]["open"][0]["transaction"]


def on_terminal(found: Any, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a terminal of this width gets."""
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen.show(found)
    return out.getvalue()


def test_a_terminal_gets_the_same_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    found = of_partitions(REPORT)
    drawn = on_terminal(found, 300, monkeypatch)
    assert "\x1b[31m" in drawn
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn).splitlines()
    assert [line.split() for line in lines] == [
        line.split() for line in as_text(found).splitlines()
    ]


def test_a_narrow_terminal_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = of_partitions(REPORT)
    assert on_terminal(found, 80, monkeypatch) == as_text(found) + "\n"


def test_a_terminal_without_rich_gets_aligned_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    screen.show(of_partitions(REPORT))
    assert capsys.readouterr().out == as_text(of_partitions(REPORT)) + "\n"


# What is asked


class Cluster:
    """In place of the requests: leaders with logs, and coordinators with transactions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.logs: list[dict[TopicPartition, Log]] = [dict(LOGS)]
        self.transactions: list[tuple[Transaction, ...]] = [(ETL, LATER)]
        self.silent: dict[int, str] = {}
        self.lists = 0
        for name in ("list_transactions", "describe_transactions", "coordinator_of"):
            monkeypatch.setattr(requests, name, getattr(self, name))
        monkeypatch.setattr(requests, "require_transactions", lambda admin: None)
        monkeypatch.setattr(look_module, "_logs", self.look_at_logs)
        monkeypatch.setattr(look_module, "_leaders", self.leaders)
        monkeypatch.setattr(look_module, "admin_client", lambda config: self)

    def close(self) -> None:
        pass

    def leaders(self, admin: Any, topics: Any) -> Any:
        return dict.fromkeys(LOGS, 1), {}

    def look_at_logs(self, admin: Any, partitions: Any) -> Any:
        logs = self.logs[0] if len(self.logs) == 1 else self.logs.pop(0)
        return {p: logs[p] for p in partitions}

    def list_transactions(
        self, admin: Any, states: Any = (), producer_ids: Any = (), longer_than_s: Any = None
    ) -> Any:
        self.lists += 1
        found = self.transactions[0] if len(self.transactions) == 1 else self.transactions.pop(0)
        wanted = [t for t in found if not producer_ids or t.producer_id in producer_ids]
        return wanted, self.silent

    def describe_transactions(self, admin: Any, listed: Any) -> Any:
        names = {t.transactional_id for t in listed}
        return [t for t in (ETL, LATER) if t.transactional_id in names]

    def coordinator_of(self, admin: Any, transactional_id: str) -> int:
        return 1


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def look() -> TransactionsLook:
    return TransactionsLook({"bootstrap_servers": ["h:1"]}, 0.5)


def hanging_of(report: Report) -> set[TopicPartition]:
    return {place[0] for place in report.hanging}


def test_a_transaction_hangs_if_no_coordinator_had_it_while_it_was_open(cluster: Cluster) -> None:
    report = look().of_topics(["t"])
    assert hanging_of(report) == {P2}
    assert cluster.lists == 2


def test_a_transaction_that_ends_meanwhile_does_not_hang(cluster: Cluster) -> None:
    cluster.logs.append({**LOGS, P2: Log(45, 45)})
    assert hanging_of(look().of_topics(["t"])) == set()


def test_a_transaction_after_another_one_of_that_producer_does_not_hang(cluster: Cluster) -> None:
    cluster.logs.append({**LOGS, P2: Log(43, 45, (replace(HANGING, start=43),))})
    assert hanging_of(look().of_topics(["t"])) == set()


def test_a_coordinator_that_moves_between_two_answers_is_asked_again(cluster: Cluster) -> None:
    cluster.logs = [{**LOGS, P2: Log(1, 1)}]
    cluster.transactions = [(), (ETL, LATER)]
    report = look().of_topics(["t"])
    assert (hanging_of(report), len(report.transactions)) == (set(), 2)


def test_nothing_hangs_if_a_broker_does_not_answer(cluster: Cluster) -> None:
    cluster.silent = {2: "away"}
    report = look().of_topics(["t"])
    assert (hanging_of(report), report.silent) == (set(), {2: "away"})


def test_all_is_known_at_once_if_coordinators_have_it(cluster: Cluster) -> None:
    report = look().of_topics(["t"], [0])
    assert (set(report.logs), cluster.lists) == ({P0}, 1)
    with pytest.raises(UnknownTransactionError, match="no partition t-9"):
        look().of_topics(["t"], [9])


@pytest.mark.parametrize(
    ("answer", "raised", "said"),
    [
        (kafka_errors.TransactionalIdAuthorizationFailedError("x"), AuthorizationError, "DESCRIBE"),
        (kafka_errors.InvalidRequestError("?"), KafkaRebalanceError, "h:1 refuses: .*Invalid"),
        (kafka_errors.CoordinatorLoadInProgressError("?"), KafkaRebalanceError, "no answer from"),
        (UnsupportedBrokerError("too old"), UnsupportedBrokerError, "too old"),
    ],
)
def test_what_is_in_the_way(
    answer: Exception,
    raised: type[Exception],
    said: str,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise answer

    monkeypatch.setattr(requests, "list_transactions", refuse)
    with pytest.raises(raised, match=said):
        look().listing(Filters())


def test_a_new_epoch_is_asked_for_until_the_markers_are_written(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([kafka_errors.ConcurrentTransactionsError()] * 2)
    timeouts = []

    def take_over(admin: Any, transaction: Transaction, timeout_ms: int) -> Any:
        timeouts.append(timeout_ms)
        for error in answers:
            raise error
        return type("Answer", (), {"producer_id": 7, "producer_epoch": 5})

    monkeypatch.setattr(requests, "take_over", take_over)
    assert look().take_over(LATER) == (7, 5)
    assert timeouts == [60_000] * 3, "no more than brokers allow"


def answers_of(
    monkeypatch: pytest.MonkeyPatch, answers: Mapping[int, Any], newest: int = 1
) -> dict[int, Any]:
    """Have brokers answer so; returns the requests that they will have got."""
    asked: dict[int, Any] = {}

    def ask(admin: Any, sent: Mapping[int, Any]) -> dict[int, Any]:
        asked.update(sent)
        return {broker: answers[broker] for broker in sent}

    brokers = [SimpleNamespace(node_id=broker) for broker in answers]
    versions = {requests.ListTransactionsRequest.API_KEY: (0, newest)}
    monkeypatch.setattr(requests, "_ask", ask)
    monkeypatch.setattr(requests, "known_brokers", lambda admin: brokers)
    monkeypatch.setattr(requests, "offered_versions", lambda admin: versions)
    return asked


def listed(*names: str, error_code: int = 0) -> Any:
    states = [
        SimpleNamespace(transactional_id=name, producer_id=7, transaction_state="Ongoing")
        for name in names
    ]
    return SimpleNamespace(error_code=error_code, transaction_states=states)


def test_a_broker_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    away = kafka_errors.KafkaConnectionError("away")
    answers_of(monkeypatch, {1: listed("a"), 2: away, 3: listed("b")})
    found, silent = requests.list_transactions(None)  # type: ignore[arg-type]
    assert [(t.transactional_id, t.coordinator) for t in found] == [("a", 1), ("b", 3)]
    assert list(silent) == [2]


@pytest.mark.parametrize(
    ("answers", "raised"),
    [
        ((kafka_errors.KafkaConnectionError("away"),) * 2, kafka_errors.KafkaConnectionError),
        ((listed("a"), listed(error_code=14)), kafka_errors.CoordinatorLoadInProgressError),
        ((listed("a"), kafka_errors.TopicAuthorizationFailedError()), kafka_errors.KafkaError),
    ],
)
def test_an_answer_that_is_no_list_is_an_error(
    answers: Any, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_of(monkeypatch, dict(enumerate(answers)))
    with pytest.raises(raised):
        requests.list_transactions(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("newest", "duration_ms"), [(0, -1), (1, 2_500)])
def test_brokers_filter_by_duration_where_they_can(
    newest: int, duration_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answers_of(monkeypatch, {1: listed("a")}, newest)
    requests.list_transactions(None, ("Ongoing",), (7,), 2.5)  # type: ignore[arg-type]
    assert asked[1].duration_filter == duration_ms
    assert (asked[1].state_filters, asked[1].producer_id_filters) == (["Ongoing"], [7])


# What is aborted


class Looks:
    """In place of TransactionsLook: reports, each time the next; notes what is aborted."""

    def __init__(self, *reports: Report) -> None:
        self.reports = list(reports)
        self.aborted: list[Any] = []

    def __call__(self, config: Any, timeout_s: float) -> Looks:
        return self

    def __enter__(self) -> Looks:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def of_id(self, transactional_id: str) -> Report:
        return self.reports.pop(0)

    def of_topics(self, topics: Any, numbers: Any) -> Report:
        return self.reports.pop(0)

    def take_over(self, transaction: Transaction) -> tuple[int, int]:
        self.aborted.append(transaction)
        return transaction.producer_id, 5

    def end_hanging(self, partition: TopicPartition, writer: Writer) -> None:
        self.aborted.append((partition, writer))


Abort = Callable[..., tuple[int, str]]


@pytest.fixture
def abort(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Abort:
    """Run the command on these looks; its exit code and the last line that it printed."""

    def run(looks: Looks, *words: str, answer: str | None = None) -> tuple[int, str]:
        monkeypatch.setattr(command, "TransactionsLook", looks)
        terminal = io.StringIO(answer or "")
        monkeypatch.setattr(terminal, "isatty", lambda: answer is not None)
        monkeypatch.setattr(sys, "stdin", terminal)
        code = command.main(["abort", *words, "--bootstrap-servers", "h:1"])
        shown = capsys.readouterr()
        return code, (shown.err if code else shown.out).splitlines()[-1]

    return run


ONE = replace(REPORT, transactions=(ETL,))
BY_ID = ("--transactional-id", "etl")
BY_LOG = ("--topic", "t", "--partition", "2", "--start-offset", "40")


def test_a_transaction_is_aborted_without_a_question(abort: Abort) -> None:
    looks = Looks(ONE)
    code, said = abort(looks, *BY_ID, "--yes")
    assert (code, looks.aborted) == (command.DONE, [ETL])
    assert said == (
        "aborted the transaction of 'etl', open for 12.5 s; a producer with producer id 7 and "
        "epoch 3 is fenced: producer id 7, epoch 5 now"
    )
    looks = Looks(ONE)
    code, said = abort(looks, *BY_ID, "--yes", "--json")
    assert json.loads(said)["aborted"] == {"transactional_id": "etl", "producer_id": 7, "epoch": 5}


@pytest.mark.parametrize(("answer", "confirmed"), [("y\n", True), ("n\n", False), ("", False)])
def test_a_terminal_is_asked(abort: Abort, answer: str, confirmed: bool) -> None:
    looks = Looks(ONE, ONE)
    code, said = abort(looks, *BY_ID, answer=answer)
    assert (code == command.DONE, bool(looks.aborted)) == (confirmed, confirmed)
    assert confirmed or said.endswith("error: not confirmed; nothing was done")


@pytest.mark.parametrize(
    "now",
    [
        replace(ETL, state="Empty"),
        replace(ETL, epoch=4),
        replace(ETL, started=NOW - 1),
        replace(ETL, producer_id=70),
    ],
)
def test_another_transaction_than_the_one_shown_is_left_alone(
    abort: Abort, now: Transaction
) -> None:
    looks = Looks(ONE, replace(ONE, transactions=(now,)))
    code, said = abort(looks, *BY_ID, answer="yes\n")
    assert (code, looks.aborted) == (command.FAILED, [])
    assert said.endswith("has ended; nothing was done")


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [
        ("CompleteCommit", command.DONE, "'etl' has no open transaction (CompleteCommit); nothing"),
        ("PrepareCommit", command.FAILED, "about to be committed (PrepareCommit)"),
        ("PrepareAbort", command.FAILED, "about to be aborted (PrepareAbort)"),
    ],
)
def test_what_is_decided_stays(abort: Abort, state: str, code: int, said: str) -> None:
    looks = Looks(replace(ONE, transactions=(replace(ETL, state=state),)))
    found, line = abort(looks, *BY_ID, "--yes")
    assert (found, looks.aborted) == (code, [])
    assert said in line


def test_a_hanging_transaction_gets_a_marker(abort: Abort) -> None:
    looks = Looks(REPORT, replace(REPORT, logs={P2: Log(46, 46)}))
    code, said = abort(looks, *BY_LOG, answer="y\n")
    assert (code, looks.aborted) == (command.DONE, [(P2, HANGING)])
    assert said == (
        "aborted the transaction of producer id 9, epoch 1 in t-2: the last stable offset was 40 "
        "and is 46, of 46"
    )


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (replace(REPORT, hanging=frozenset()), "has just ended"),
        (replace(REPORT, hanging=frozenset(), silent={3: "away"}), "broker 3 does not answer"),
        (replace(REPORT, logs={P2: Log(45, 45)}), "begins at offset 40 of t-2: none is open"),
        (
            replace(REPORT, logs={P2: Log(41, 45, (replace(HANGING, start=41),))}),
            "begins at offset 40 of t-2: open ones begin at 41",
        ),
        (
            replace(
                REPORT, transactions=(replace(ETL, producer_id=9, partitions=frozenset({P2})),)
            ),
            "belongs to transactional id 'etl' (Ongoing)",
        ),
    ],
)
def test_a_marker_is_written_for_a_hanging_transaction_alone(
    abort: Abort, found: Report, said: str
) -> None:
    looks = Looks(found)
    code, line = abort(looks, *BY_LOG, "--yes")
    assert (code, looks.aborted) == (command.FAILED, [])
    assert said in line


def test_without_a_terminal_it_needs_yes(abort: Abort) -> None:
    looks = Looks(ONE)
    code, said = abort(looks, *BY_ID)
    assert (code, looks.aborted) == (command.FAILED, [])
    assert said.endswith("repeat it with --yes")
    assert aborting.NotAbortedError.__mro__[1] is KafkaRebalanceError


# Options

AT = ("--bootstrap-servers", "h:1")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "COMMAND"),
        (["list"], "--bootstrap-servers"),
        (["list", *AT, "--state", "ongoing"], "'ongoing'"),
        (["list", *AT, "--open-for", "nan"], "'nan'"),
        (["list", *AT, "--producer-id", "x"], "'x'"),
        (["list", *AT, "--producer-id", str(2**63)], "2**63 - 1"),
        (["list", *AT, "--all", "--state", "Empty"], "exclude"),
        (["list", *AT, "--timeout", "0"], "'0'"),
        (["list", *AT, "--command-config", "/none"], "'/none'"),
        (["describe", *AT], "--transactional-id or a --topic"),
        (["describe", *AT, "--topic", "t", "--transactional-id", "x"], "--transactional-id or a"),
        (["describe", *AT, "--partition", "1", "--transactional-id", "x"], "needs a --topic"),
        (["describe", *AT, "--topic", "t", "--partition", "-1"], "'-1'"),
        (["describe", *AT, "--topic", ""], "non-empty"),
        (["abort", *AT], "--transactional-id or a --topic"),
        (["abort", *AT, "--topic", "t"], "--start-offset"),
        (["abort", *AT, "--transactional-id", "x", "--start-offset", "4"], "need a --topic"),
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
