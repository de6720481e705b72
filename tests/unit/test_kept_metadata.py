"""KeptMetadata asks until it knows, warns once, and then asks no more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any

import pytest
from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance.consumer.commits.kept_metadata import KeptMetadata

P = TopicPartition("t", 0)
SENT = {P: OffsetAndMetadata(3, "unprocessed/1 ...", -1)}
KEPT = SENT[P]
DROPPED = OffsetAndMetadata(3, "", -1)
RESET = OffsetAndMetadata(0, "", -1)
NOBODY = kafka_errors.KafkaTimeoutError()


class Lane:
    def __init__(self, group_id: str, *answers: Any) -> None:
        self.group_id = group_id
        self.answers = list(answers)

    async def committed(self, partitions: Collection[TopicPartition], **_: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict.fromkeys(partitions, answer)


@pytest.mark.parametrize(
    ("answers", "left", "warnings"),
    [
        ([KEPT, DROPPED], [DROPPED], 0),
        ([DROPPED, DROPPED], [DROPPED], 1),
        ([RESET, DROPPED, DROPPED], [DROPPED], 1),
        ([NOBODY, KEPT, DROPPED], [DROPPED], 0),
        ([kafka_errors.CoordinatorLoadInProgressError, DROPPED], [], 1),
        ([NOBODY, NOBODY, NOBODY, DROPPED], [DROPPED], 0),
    ],
)
def test_what_the_group_answers(
    answers: list[Any],
    left: list[Any],
    warnings: int,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    caplog.set_level(logging.WARNING)
    lane = Lane(request.node.name, *answers)
    kept = KeptMetadata(lane)  # type: ignore[arg-type]
    for _ in answers:
        asyncio.run(kept.check({TopicPartition("t", 1): OffsetAndMetadata(9, "", -1)}))
        asyncio.run(kept.check(SENT))
    assert (lane.answers, len(caplog.records)) == (left, warnings)


def test_a_group_is_named_once_whichever_of_its_members_notices(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        asyncio.run(KeptMetadata(Lane("of many members", DROPPED)).check(SENT))  # type: ignore[arg-type]
    (warned,) = caplog.messages
    assert warned.startswith("group of many members: the server does not keep the metadata")
