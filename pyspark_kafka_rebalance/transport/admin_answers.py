"""AdminClient: kafka-python's, but it reads answers with values that kafka-python lacks.

kafka-python turns numbers and words of answers into its enums. A number that is none of them, from
a newer broker or another server, ends the whole call with a bare ValueError: of the operations that
a user may do (``ACLOperation 15``), of where a setting comes from (``ConfigSourceType -1``, also in
DescribeConfigs v0, which does not say), of a setting's type, and of a transaction's state. Here an
operation that is not known is left out, and the rest is UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ACLOperation, ConfigSourceType, ConfigType, TransactionState

from .kafka_python_version import require_names

require_names(
    {
        KafkaAdminClient: (
            "_describe_transactions_process_response",
            "_list_transactions_process_response",
            "_process_acl_operations",
            "_process_config",
        )
    }
)


class AdminClient(KafkaAdminClient):  # type: ignore[misc]
    """kafka-python's client; unknown operations are left out, other unknown values are UNKNOWN."""

    def _process_acl_operations(self, obj: Any) -> Any:
        if (told := obj.get("authorized_operations")) is not None:
            obj["authorized_operations"] = [n for n in told if _is_known(ACLOperation, n)]
        return super()._process_acl_operations(obj)

    @classmethod
    def _process_config(cls, config: Any, resource_type: Any) -> Any:
        # An absent source means none: kafka-python then uses ``is_default``.
        if config.get("config_source") == _NOT_TOLD:
            del config["config_source"]
        _make_known(config, "config_source", ConfigSourceType)
        _make_known(config, "config_type", ConfigType)
        for synonym in config.get("synonyms") or ():
            _make_known(synonym, "source", ConfigSourceType)
        return super()._process_config(config, resource_type)

    @staticmethod
    def _list_transactions_process_response(response: Any) -> Any:
        _make_states_known(response.transaction_states)
        return KafkaAdminClient._list_transactions_process_response(response)

    @staticmethod
    def _describe_transactions_process_response(response: Any, coordinator_id: Any) -> Any:
        _make_states_known(response.transaction_states)
        return KafkaAdminClient._describe_transactions_process_response(response, coordinator_id)


#: The default of DescribeConfigs for a source, which v0 does not have.
_NOT_TOLD = -1


def _is_known(enum: type[Enum], value: Any) -> bool:
    return any(member.value == value for member in enum)


def _make_known(answer: dict[str, Any], name: str, enum: Any) -> None:
    if name in answer and not _is_known(enum, answer[name]):
        answer[name] = enum.UNKNOWN.value


def _make_states_known(transactions: Iterable[Any]) -> None:
    for transaction in transactions:
        if not _is_known(TransactionState, transaction.transaction_state):
            transaction.transaction_state = TransactionState.UNKNOWN.value
