"""Delivered records as runs of offsets, a line each, since there are millions of records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Run(NamedTuple):
    """Consecutive offsets of one partition; ``end`` is exclusive.

    ``batch`` is the number of a query's batch, 0 for a client.
    """

    batch: int
    partition: int
    start: int
    end: int


class Audit(NamedTuple):
    """The audit of all offsets.

    Attributes
    ----------
    records : int
        Distinct records handed out.
    missing : int
        Records that nobody got.
    in_flight : int
        Records handed out twice because their first owner was killed before they were known as
        processed.
    repeated : int
        All other records handed out twice.
    """

    records: int
    missing: int
    in_flight: int
    repeated: int


class RunLog:
    """Appends runs to a file; each line is passed to the kernel at once, so a kill loses none."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def write(self, batch: int, partition: int, offsets: Sequence[int]) -> None:
        """Append the offsets, in ascending order, that a poll or batch returned of a partition."""
        self._file.writelines(
            f"{batch},{partition},{start},{end}\n" for start, end in contiguous(offsets)
        )

    def close(self) -> None:
        self._file.close()


def contiguous(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Split ascending offsets into runs."""
    if offsets[-1] - offsets[0] + 1 == len(offsets):
        yield offsets[0], offsets[-1] + 1
        return
    start = before = offsets[0]
    for offset in offsets[1:]:
        if offset != before + 1:
            yield start, before + 1
            start = offset
        before = offset
    yield start, before + 1


def read_runs(path: Path) -> list[Run]:
    """Read all complete lines of a file; a run that a kill cut short was not handed out."""
    text = path.read_text() if path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [Run(*map(int, line.split(","))) for line in lines]


def below(runs: Iterable[Run], offsets: Mapping[int, int]) -> list[Run]:
    """The part of the runs below each partition's offset; nothing if a partition has none."""
    return [
        run._replace(end=min(run.end, offsets[run.partition]))
        for run in runs
        if run.start < offsets.get(run.partition, 0)
    ]


def audit(
    first: Sequence[Run], second: Sequence[Run], ends: Mapping[int, int], known: Sequence[Run]
) -> Audit:
    """Count what two owners in turn handed out.

    Parameters
    ----------
    first, second : sequence of Run
        The runs of the owner that was killed, and of the one that took over.
    ends : mapping
        The log end of each partition.
    known : sequence of Run
        The first owner's runs that were known as processed when it was killed.
    """
    by_first, by_second, by_known = map(_by_partition, (first, second, known))
    records = missing = in_flight = repeated = 0
    for partition, end in ends.items():
        firsts, seconds = by_first[partition], by_second[partition]
        knowns = by_known[partition]
        covered = _covered(firsts + seconds)
        records += covered
        missing += end - _covered(
            [(start, min(end, stop)) for start, stop in firsts + seconds if start < end]
        )
        repeated += _length(firsts) - _covered(firsts)
        repeated += _length(seconds) - _covered(seconds)
        # The intersection of two sets: |A| + |B| - |A or B|.
        both = _covered(firsts) + _covered(seconds) - covered
        again = _covered(knowns) + _covered(seconds) - _covered(knowns + seconds)
        repeated += again
        in_flight += both - again
    return Audit(records, missing, in_flight, repeated)


def _by_partition(runs: Iterable[Run]) -> defaultdict[int, list[tuple[int, int]]]:
    found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for run in runs:
        found[run.partition].append((run.start, run.end))
    return found


def _length(runs: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in runs)


def _covered(runs: Iterable[tuple[int, int]]) -> int:
    """The number of distinct offsets in these runs."""
    covered = at = 0
    for start, end in sorted(runs):
        if end > at:
            covered += end - max(start, at)
            at = end
    return covered
