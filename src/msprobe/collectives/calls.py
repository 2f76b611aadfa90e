# SPDX-License-Identifier: Apache-2.0
"""Communication calls of one rank: group, partners and direction of each, from its record.

Records of ``torch.distributed``, ``mint.distributed`` and ``comm_func`` name their group, source,
destination and peers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from msprobe.dump.record_names import RecordKind, RecordName, forward_name
from msprobe.dump.record_views import Record
from msprobe.dump.records import JsonTree
from msprobe.dump.values import Value
from msprobe.errors import DumpFormatError
from msprobe.operators.lookup import operator_of
from msprobe.operators.operator import Communication, Flow

_PREFIXES: Final = ("Distributed", "MintDistributed")


class Part(StrEnum):
    """Role of a rank in a communication."""

    SEND = "send"
    RECEIVE = "receive"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One thing that a call does: one message, or its part in a collective.

    Attributes:
        part: whether values go out, come in, or both.
        ranks: for a message the other rank; for a collective all members; None for all there are.
        channel: function or tag, the same at both ends.
        is_message: whether it is a message between two ranks.
    """

    part: Part
    ranks: frozenset[int] | None
    channel: Hashable
    is_message: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationCall:
    """One record of a communication.

    Attributes:
        rank: on which rank.
        position: place of the record in the order of execution of its rank.
        name: the record's name.
        kind: forward or backward.
        endpoints: its messages and roles; several for ``batch_isend_irecv``.
    """

    rank: int
    position: int
    name: str
    kind: RecordKind
    endpoints: tuple[Endpoint, ...]

    @property
    def sends(self) -> bool:
        """Whether values of this rank go out."""
        return any(end.part is not Part.RECEIVE for end in self.endpoints)

    @property
    def receives(self) -> bool:
        """Whether values of other ranks come in."""
        return any(end.part is not Part.SEND for end in self.endpoints)


def is_communication(name: RecordName) -> bool:
    """Return whether a record is that of a communication between ranks."""
    return _communication(name) is not None


def communication_calls(
    records: Mapping[str, Record], names: Mapping[str, RecordName], rank: int
) -> list[CommunicationCall]:
    """Return the communications of one rank, in order of execution.

    A damaged record is passed over.

    Args:
        records: the records of the rank by name; only those of communications are looked at.
        names: all record names in order of execution, taken apart.
        rank: the rank's number.
    """
    found = []
    for position, (full, name) in enumerate(names.items()):
        sent = _communication(name)
        if sent is not None and name.kind in (RecordKind.FORWARD, RecordKind.BACKWARD):
            # Only the forward record knows the arguments.
            source = forward_name(name)
            record = records[source if source is not None and source in records else full]
            try:
                ends = tuple(_endpoints(rank, *sent, record.values()))
            except DumpFormatError:
                continue
            if name.kind is RecordKind.BACKWARD:
                ends = tuple(_reversed(end) for end in ends)
            found.append(
                CommunicationCall(
                    rank=rank,
                    position=position,
                    name=full,
                    kind=name.kind,
                    endpoints=ends,
                )
            )
    return found


def _communication(name: RecordName) -> tuple[str, Communication] | None:
    """Return the operator's name and what it sends; None for a record of anything else."""
    if name.prefix not in _PREFIXES:
        return None
    operator = operator_of(name.prefix, name.path)
    return None if operator.communication is None else (operator.name, operator.communication)


def _endpoints(
    own: int, name: str, sent: Communication, values: Sequence[Value]
) -> Iterator[Endpoint]:
    inputs = [value for value in values if value.path[0] in ("input_args", "input_kwargs")]
    if sent.flow is Flow.MESSAGES:
        yield from (end for value in inputs if (end := _message_of(value)) is not None)
        return
    # Position or name of an argument that is a single value.
    arguments = {value.path[1]: value.value for value in inputs if len(value.path) == 2}
    members = next((value.group_ranks for value in inputs if value.group_ranks), None)
    rank = _rank_argument(sent, arguments, members)
    if sent.flow.is_message:
        if rank is not None:
            tag = _integer(arguments.get("tag", arguments.get(3)))
            yield _message(sent.flow, rank, tag)
        return
    group = arguments.get("group")
    yield Endpoint(
        part=Part.BOTH if rank is None else _part(sent.flow, is_root=own == rank),
        ranks=None if members is None else frozenset(members),
        channel=(name, rank, group if isinstance(group, str) else None),
        is_message=False,
    )


def _part(flow: Flow, *, is_root: bool) -> Part:
    return Part.SEND if is_root == (flow is Flow.FROM_ROOT) else Part.RECEIVE


def _message(flow: Flow, rank: int, tag: int | None) -> Endpoint:
    part = Part.SEND if flow is Flow.SEND else Part.RECEIVE
    return Endpoint(part=part, ranks=frozenset((rank,)), channel=tag or 0, is_message=True)


def _message_of(value: Value) -> Endpoint | None:
    message = value.message
    if message is None or message.peer is None or message.operation is None:
        return None
    sent = operator_of(_PREFIXES[0], message.operation).communication
    if sent is None or not sent.flow.is_message:
        return None
    return _message(sent.flow, message.peer, message.tag)


def _rank_argument(
    sent: Communication, arguments: Mapping[str | int, JsonTree], members: tuple[int, ...] | None
) -> int | None:
    if sent.peer is None:
        return None
    key, position = sent.peer.name, sent.peer.position
    rank = _integer(arguments.get(key, arguments.get(position)))
    if rank is None and (inside := _integer(arguments.get(f"group_{key}"))) is not None:
        return members[inside] if members and 0 <= inside < len(members) else None
    return rank


def _integer(found: JsonTree) -> int | None:
    return found if type(found) is int else None


def _reversed(end: Endpoint) -> Endpoint:
    """Return the endpoint of the backward call: gradients flow against the values."""
    other = {Part.SEND: Part.RECEIVE, Part.RECEIVE: Part.SEND, Part.BOTH: Part.BOTH}
    return Endpoint(
        part=other[end.part],
        ranks=end.ranks,
        channel=("backward", end.channel),
        is_message=end.is_message,
    )
