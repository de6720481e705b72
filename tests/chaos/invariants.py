"""What must hold in a churn: of every poll of a member, and of all that was recorded. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.consumer import PollResult
from pyspark_kafka_rebalance.errors import names_of

from .processing import Piece


@dataclass(frozen=True)
class Holding:
    """A member was free to process a partition from one moment to another (``time.monotonic()``).

    ``since`` is taken after the poll that assigned it, ``until`` before the poll that completed
    its revoke, so that two holdings which overlap were never right.
    """

    member: str
    partition: TopicPartition
    since: float
    until: float


@dataclass(frozen=True)
class CommittedOffsets:
    """The group's committed offsets, as the coordinator answered at ``at``."""

    at: float
    offsets: Mapping[TopicPartition, int]


class PollChecks:
    """Follows one member from poll to poll; each method names what is wrong.

    Attributes
    ----------
    owned : frozenset of TopicPartition
        What the poll results up to now add up to.
    """

    def __init__(self) -> None:
        self.owned: frozenset[TopicPartition] = frozenset()
        self._completed_next: frozenset[TopicPartition] = frozenset()
        self._delayed: frozenset[TopicPartition] = frozenset()
        self._processed: dict[TopicPartition, int] = {}
        self._acknowledged: dict[TopicPartition, int] = {}

    def polled(self, result: PollResult, assignment: Collection[TopicPartition]) -> list[str]:
        """A poll returned this, and this is assigned since."""
        due, self._completed_next = self._completed_next, frozenset()
        kept = self.owned - result.revoked - result.lost
        self.owned = kept | result.assigned
        for partition in result.assigned | result.revoked | result.lost:
            self._processed.pop(partition, None)
            self._acknowledged.pop(partition, None)
        handed_out = result.records.keys()
        wrong = {
            "lost": result.lost,
            "both lost and assigned": result.lost & frozenset(assignment),
            "assigned again": kept & result.assigned,
            "revoked without a request": result.revoked - due,
            "not revoked in the poll after": due - result.revoked,
            "a record of one that is being revoked": result.to_be_revoked & handed_out,
            "a record before its assignment": handed_out - self.owned,
            "not as the results say": self.owned ^ frozenset(assignment),
        }
        return [
            f"{what}: {names_of(partitions)}" for what, partitions in wrong.items() if partitions
        ]

    def processed(self, reached: Mapping[TopicPartition, int]) -> None:
        """Records below these next offsets are processed, and about to be committed."""
        self._processed.update(reached)

    def acknowledged(self, offsets: Mapping[TopicPartition, int]) -> list[str]:
        """The consumer tells these as its committed offsets."""
        wrong = []
        for partition, offset in offsets.items():
            before = self._acknowledged.get(partition, -1)
            if offset > self._processed.get(partition, -1):
                wrong.append(f"committed {offset} before it was processed: {partition}")
            if offset < before:
                wrong.append(f"committed {before}, then {offset}: {partition}")
            self._acknowledged[partition] = offset
        return wrong

    def delayed(
        self, to_be_revoked: frozenset[TopicPartition], delayed: frozenset[TopicPartition]
    ) -> None:
        """Of those to be revoked, these were delayed: the next poll completes the others."""
        self._completed_next = to_be_revoked - delayed


def overlaps(holdings: Iterable[Holding]) -> Iterator[str]:
    """A partition was in two members' hands at a time."""
    ordered = sorted(holdings, key=lambda h: (h.partition, h.since))
    for before, after in pairwise(ordered):
        if before.partition == after.partition and after.since < before.until:
            yield (
                f"{after.partition} held by {after.member} {before.until - after.since:.3f} s "
                f"before {before.member} let it go"
            )


def unheld(pieces: Mapping[str, Sequence[Piece]], holdings: Iterable[Holding]) -> Iterator[str]:
    """Records were in processing while their partition was not the member's."""
    by_key: dict[tuple[str, TopicPartition], list[Holding]] = {}
    for holding in holdings:
        by_key.setdefault((holding.member, holding.partition), []).append(holding)
    for member, mine in pieces.items():
        for piece in mine:
            end = piece.processed_at
            if end is None:
                yield f"{member} never finished {piece.partition} from {piece.offsets[0]}"
            elif not any(
                holding.since <= piece.handed_out_at and end <= holding.until
                for holding in by_key.get((member, piece.partition), ())
            ):
                yield f"{member} processed {piece.partition} from {piece.offsets[0]} unheld"


def commits_astray(observed: Sequence[CommittedOffsets], pieces: Iterable[Piece]) -> Iterator[str]:
    """The group's committed offset went back, or was ahead of what was processed by then."""
    for earlier, later in pairwise(observed):
        for partition, offset in later.offsets.items():
            if offset < earlier.offsets.get(partition, 0):
                yield f"committed {earlier.offsets[partition]}, then {offset}: {partition}"
        for partition in earlier.offsets.keys() - later.offsets.keys():
            yield f"committed {earlier.offsets[partition]}, then nothing: {partition}"
    by_partition: dict[TopicPartition, list[Piece]] = {}
    for piece in pieces:
        by_partition.setdefault(piece.partition, []).append(piece)
    for partition, mine in by_partition.items():
        mine.sort(key=lambda piece: piece.offsets[0])
        done = 0  # pieces that are known to be processed at the time of the observation
        for seen in observed:
            offset = seen.offsets.get(partition, 0)
            while done < len(mine) and mine[done].offsets[-1] < offset:
                processed_at = mine[done].processed_at
                if processed_at is None or processed_at > seen.at:
                    yield f"{partition}: {offset} committed before {mine[done].offsets} processed"
                done += 1
