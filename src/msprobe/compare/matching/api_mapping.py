# SPDX-License-Identifier: Apache-2.0
"""API mappings: functions of MindSpore and the functions of PyTorch that do the same.

A file is a list of records, which take precedence over the table of `msprobe.operators`:

    - ms_api: Functional.gather
      pt_api: Torch.index_select
      ms_args: [0, 1, 2]        # positions or keywords that belong together, place by place;
      pt_args: [0, 2, 1]        # those not listed have no partner
      ms_outputs: [0]
      pt_outputs: [0]

``parameters`` and ``parameters_grad`` take the same form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msprobe.dump.record_names import RecordKind
from msprobe.yaml_nodes import Node, nearest, read_yaml

_LISTS: Final = ("args", "outputs", "parameters", "parameters_grad")
# Some write the singular; each means the same.
_SINGULARS: Final = {"arg": "args", "output": "outputs", "parameter": "parameters"}
_KEYS: Final = ("ms_api", "pt_api", *(f"{side}_{name}" for name in _LISTS for side in ("ms", "pt")))
_PRIMITIVE: Final = "Primitive."

Slots = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ApiPair:
    """Two functions that do the same.

    Attributes:
        ms_api: ``Functional.gather``.
        pt_api: ``Torch.index_select``.
        lists: ``args``, ``outputs`` … → MindSpore's slots and PyTorch's, place by place; slots
            that are not listed have no partner.
        line: where it is in the file.
    """

    ms_api: str
    pt_api: str
    lists: Mapping[str, tuple[tuple[str, str], ...]]
    line: int

    def slots(self, kind: RecordKind) -> Slots:
        """Return the slots of MindSpore's record → those of PyTorch's, for records of a kind.

        A backward record takes the gradients of the outputs as its inputs, and the reverse.
        """
        found: dict[str, str | None] = {}
        is_backward = kind is RecordKind.BACKWARD
        for name, prefix in (
            ("args", "output" if is_backward else "input"),
            ("outputs", "input" if is_backward else "output"),
            ("parameters", "parameters"),
        ):
            if name not in self.lists:
                continue
            if not is_backward:
                found[prefix] = None
            found |= {f"{prefix}.{ms}": f"{prefix}.{pt}" for ms, pt in self.lists[name]}
        if kind is RecordKind.PARAMETERS_GRAD and "parameters_grad" in self.lists:
            return dict(self.lists["parameters_grad"])
        return found


@dataclass(frozen=True, slots=True)
class ApiMapping:
    """The records of a file.

    Attributes:
        names: MindSpore's name → PyTorch's.
        pairs: both names → the slots of their values that belong together.
    """

    names: Mapping[str, str]
    pairs: Mapping[tuple[str, str], ApiPair]

    def pytorch_name(self, ms_api: str) -> str | None:
        """Return the name that the file gives a function of MindSpore, None if it has none."""
        return next(filter(None, map(self.names.get, _spellings(ms_api))), None)

    def pair(self, ms_api: str, pt_api: str) -> ApiPair | None:
        """Return the file's entry on two functions, None if it does not have the two."""
        keys = ((spelling, pt_api) for spelling in _spellings(ms_api))
        return next(filter(None, map(self.pairs.get, keys)), None)


def _spellings(ms_api: str) -> tuple[str, ...]:
    """Return a function's names in files; a primitive goes without the attribute that holds it."""
    if not ms_api.startswith(_PRIMITIVE):
        return (ms_api,)
    return ms_api, _PRIMITIVE + ms_api.rpartition(".")[2]


def read_api_mapping(path: Path) -> ApiMapping:
    """Return the pairs of a file.

    Raises:
        ConfigError: the file is not of the form above.
    """
    what = "a list of records with ms_api and pt_api"
    found = [_read_record(record) for record in read_yaml(path).elements(what)]
    return ApiMapping(
        names={pair.ms_api: pair.pt_api for pair in found},
        pairs={(pair.ms_api, pair.pt_api): pair for pair in found},
    )


def _read_record(record: Node) -> ApiPair:
    fields: dict[str, Node] = {}
    for key, place, value in record.items("a record with ms_api and pt_api"):
        side, _, name = key.partition("_")
        known = f"{side}_{_SINGULARS.get(name, name)}"
        if known not in _KEYS:
            place.refuse(key, _KEYS, hint=nearest(key, _KEYS))
        fields[known] = value
    for key in ("ms_api", "pt_api"):
        if key not in fields:
            record.refuse(sorted(fields), f"a record with {key}")
    lists = {}
    for name in _LISTS:
        found = _read_lists(record, fields, name)
        if found is not None:
            lists[name] = found
    ms_api, pt_api = _api_name(fields["ms_api"]), _api_name(fields["pt_api"])
    return ApiPair(ms_api, pt_api, lists, line=record.line)


def _read_lists(
    record: Node, fields: Mapping[str, Node], name: str
) -> tuple[tuple[str, str], ...] | None:
    ms, pt = fields.get(f"ms_{name}"), fields.get(f"pt_{name}")
    if ms is None and pt is None:
        return None
    if ms is None or pt is None:
        missing = f"{'ms' if ms is None else 'pt'}_{name}"
        record.refuse(sorted(fields), f"both ms_{name} and pt_{name}; {missing} is missing")
    ms_slots, pt_slots = _slots(ms), _slots(pt)
    if len(ms_slots) != len(pt_slots):
        rule = (
            f"as many as ms_{name}, which are {len(ms_slots)}: place by place they belong together"
        )
        pt.refuse(pt_slots, rule)
    return tuple(zip(ms_slots, pt_slots, strict=True))


def _slots(node: Node) -> list[str]:
    slots = [
        item.text("a position, or the name of an argument") for item in node.elements("a list")
    ]
    for place, slot in enumerate(slots):
        if slot in slots[:place]:
            node.refuse(slots, f"each argument once; {slot} is there twice")
    return slots


def _api_name(node: Node) -> str:
    name = node.text("a name such as Functional.relu")
    if "." not in name:
        node.refuse(name, "a name with its kind in front, such as Functional.relu")
    return name
