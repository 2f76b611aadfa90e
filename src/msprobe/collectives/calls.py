# SPDX-License-Identifier: Apache-2.0
"""What a record of a communication says: with whom, which way values go, in which group.

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

_PREFIXES: Final = ("Distributed", "MintDistributed")
_APIS: Final = frozenset(
    (
        "send",
        "recv",
        "isend",
        "irecv",
        "batch_isend_irecv",
        "send_object_list",
        "recv_object_list",
        "broadcast",
        "broadcast_object_list",
        "scatter",
        "scatter_object_list",
        "scatter_tensor",
        "reduce",
        "gather",
        "gather_object",
        "gather_into_tensor",
        "all_reduce",
        "all_gather",
        "all_gather_base",
        "all_gather_into_tensor",
        "all_gather_single",
        "all_gather_object",
        "all_gather_into_tensor_coalesced",
        "all_reduce_coalesced",
        "reduce_scatter",
        "reduce_scatter_base",
        "reduce_scatter_tensor",
        "reduce_scatter_single",
        "reduce_scatter_tensor_coalesced",
        "all_to_all",
        "all_to_all_single",
        "all_to_all_with_output_shape",
        "all_to_all_single_with_output_shape",
        "barrier",
    )
)
# Position of the rank that sends or receives, where it is not given by keyword.
_RANK_POSITIONS: Final = {
    "send": ("dst", 1),
    "isend": ("dst", 1),
    "send_object_list": ("dst", 1),
    "recv": ("src", 1),
    "irecv": ("src", 1),
    "recv_object_list": ("src", 1),
    "broadcast": ("src", 1),
    "broadcast_object_list": ("src", 1),
    "scatter": ("src", 2),
    "scatter_object_list": ("src", 2),
    "scatter_tensor": ("src", 1),
    "reduce": ("dst", 1),
    "gather": ("dst", 2),
    "gather_object": ("dst", 2),
    "gather_into_tensor": ("dst", 1),
}
_SENDS: Final = ("send", "isend", "send_object_list")
_RECEIVES: Final = ("recv", "irecv", "recv_object_list")
# Values flow from the root to the others; for the other rooted functions, to the root.
_FROM_ROOT: Final = (
    "broadcast",
    "broadcast_object_list",
    "scatter",
    "scatter_object_list",
    "scatter_tensor",
)


class Part(StrEnum):
    """What a rank does in a communication."""

    SEND = "send"
    RECEIVE = "receive"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One thing that a call does: one message, or its part in a collective.

    Attributes:
        part: whether values go out, come in, or both.
        ranks: for a message the other rank; for a collective all members; None for all there are.
        channel: what both ends have in common besides ranks: function or tag.
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
        api: the function: ``all_reduce``.
        kind: forward or backward.
        endpoints: what it does; several for ``batch_isend_irecv``.
    """

    rank: int
    position: int
    name: str
    api: str
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
    return name.prefix in _PREFIXES and _plain_api(name.path) in _APIS


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
        if is_communication(name) and name.kind in (RecordKind.FORWARD, RecordKind.BACKWARD):
            # Only the forward record knows the arguments.
            source = forward_name(name)
            record = records[source if source is not None and source in records else full]
            api = _plain_api(name.path)
            try:
                ends = tuple(_endpoints(rank, api, record.values()))
            except DumpFormatError:
                continue
            if name.kind is RecordKind.BACKWARD:
                ends = tuple(_reversed(end) for end in ends)
            found.append(
                CommunicationCall(
                    rank=rank,
                    position=position,
                    name=full,
                    api=api,
                    kind=name.kind,
                    endpoints=ends,
                )
            )
    return found


def _plain_api(api: str) -> str:
    return api.removeprefix("functional_").strip("_")


def _endpoints(own: int, api: str, values: Sequence[Value]) -> Iterator[Endpoint]:
    inputs = [value for value in values if value.path[0] in ("input_args", "input_kwargs")]
    if api == "batch_isend_irecv":
        yield from (end for value in inputs if (end := _message_of(value)) is not None)
        return
    # Position or name of an argument that is a single value.
    arguments = {value.path[1]: value.value for value in inputs if len(value.path) == 2}
    members = next((value.group_ranks for value in inputs if value.group_ranks), None)
    rank = _rank_argument(api, arguments, members)
    if api in _SENDS or api in _RECEIVES:
        if rank is not None:
            tag = _integer(arguments.get("tag", arguments.get(3)))
            yield _message(Part.SEND if api in _SENDS else Part.RECEIVE, rank, tag)
        return
    name = arguments.get("group")
    yield Endpoint(
        part=Part.BOTH if rank is None else _part(api, is_root=own == rank),
        ranks=None if members is None else frozenset(members),
        channel=(api, rank, name if isinstance(name, str) else None),
        is_message=False,
    )


def _part(api: str, *, is_root: bool) -> Part:
    return Part.SEND if is_root == (api in _FROM_ROOT) else Part.RECEIVE


def _message(part: Part, rank: int, tag: int | None) -> Endpoint:
    return Endpoint(part=part, ranks=frozenset((rank,)), channel=tag or 0, is_message=True)


def _message_of(value: Value) -> Endpoint | None:
    sent = value.message
    if sent is None or sent.peer is None or sent.operation not in (*_SENDS, *_RECEIVES):
        return None
    return _message(Part.SEND if sent.operation in _SENDS else Part.RECEIVE, sent.peer, sent.tag)


def _rank_argument(
    api: str, arguments: Mapping[str | int, JsonTree], members: tuple[int, ...] | None
) -> int | None:
    if api not in _RANK_POSITIONS:
        return None
    key, position = _RANK_POSITIONS[api]
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
