# SPDX-License-Identifier: Apache-2.0
"""API mappings: functions of MindSpore and the functions of PyTorch that do the same.

A file is a list of records; what it says goes before the built-in table (``api_pairs.yaml``):

    - ms_api: Functional.gather
      pt_api: Torch.index_select
      ms_args: [0, 1, 2]        # positions or keywords that belong together, place by place;
      pt_args: [0, 2, 1]        # those not listed have no partner
      ms_outputs: [0]
      pt_outputs: [0]

``parameters`` and ``parameters_grad`` take the same form.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from msprobe.compare.matching.families import family
from msprobe.dump.record_names import RecordKind
from msprobe.yaml_nodes import Node, nearest, parse_yaml, read_yaml

_BUILT_IN: Final = "api_pairs.yaml"
_LISTS: Final = ("args", "outputs", "parameters", "parameters_grad")
# Some write the singular; each means the same.
_SINGULARS: Final = {"arg": "args", "output": "outputs", "parameter": "parameters"}
_KEYS: Final = ("ms_api", "pt_api", *(f"{side}_{name}" for name in _LISTS for side in ("ms", "pt")))
_WORD_START: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_PRIMITIVE: Final = "Primitive"
_MINT_PREFIXES: Final = {
    "Mint": "Torch",
    "MintFunctional": "Functional",
    "MintDistributed": "Distributed",
}

Slots = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ApiPair:
    """Two functions that do the same.

    Attributes:
        ms_api: ``Functional.gather``.
        pt_api: ``Torch.index_select``.
        lists: ``args``, ``outputs`` … → MindSpore's slots and PyTorch's, place by place.
        is_complete: whether slots that are not listed have no partner.
        line: where it is in the user's file; None for the built-in table.
    """

    ms_api: str
    pt_api: str
    lists: Mapping[str, tuple[tuple[str, str], ...]]
    is_complete: bool = True
    line: int | None = None

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
            if self.is_complete and not is_backward:
                found[prefix] = None
            found |= {f"{prefix}.{ms}": f"{prefix}.{pt}" for ms, pt in self.lists[name]}
        if kind is RecordKind.PARAMETERS_GRAD and "parameters_grad" in self.lists:
            return dict(self.lists["parameters_grad"])
        return found


@dataclass(frozen=True, slots=True)
class ApiTable:
    """Functions of MindSpore under PyTorch's names.

    Attributes:
        names: MindSpore's name → PyTorch's, where they differ.
        pairs: pairs with something to say about their arguments.
        chosen: names that a file of the user's decides.
    """

    names: Mapping[str, str]
    pairs: Mapping[tuple[str, str], ApiPair]
    chosen: frozenset[str] = frozenset()

    def pytorch_name(self, prefix: str, api: str) -> tuple[str, str]:
        """Return prefix and name that PyTorch has for a function of MindSpore."""
        full = f"{prefix}.{api}"
        found = self.names.get(full)
        if found is None and prefix == _PRIMITIVE:
            api = _class_of(api)
            found = self.names.get(f"{prefix}.{api}")
        if found is None and full not in self.chosen:
            found = self._by_rule(prefix, api)
        if found is None:
            return _MINT_PREFIXES.get(prefix, prefix), api
        new_prefix, _, new_api = found.partition(".")
        return new_prefix, new_api

    def pair(self, ms_api: str, pt_api: str) -> ApiPair | None:
        """Return what is known of the arguments of two functions that were paired."""
        found = self.pairs.get((ms_api, pt_api))
        if found is None:
            prefix, _, name = ms_api.partition(".")
            ms_api = f"{prefix}.{_class_of(name)}" if prefix == _PRIMITIVE else ms_api
            # The built-in table means an operation, under whatever name it was called.
            names = (pair for pair in self.pairs.values() if pair.ms_api == ms_api)
            kin = [pair for pair in names if _same_family(pair.pt_api, pt_api)]
            found = next((pair for pair in kin if not pair.is_complete), None)
        return found

    def _by_rule(self, prefix: str, api: str) -> str | None:
        if prefix == "Tensor":
            return self.names.get(f"Functional.{api}")
        if prefix == _PRIMITIVE:
            snake = _WORD_START.sub("_", api).lower()
            return self.names.get(f"Functional.{snake}", f"Functional.{snake}")
        return None


def _class_of(primitive: str) -> str:
    """Return the class of a primitive; of one that a cell holds the attribute stands before it."""
    return primitive.rpartition(".")[2]


@functools.cache
def built_in_table() -> ApiTable:
    """Return the table that comes with the program."""
    text = resources.files(__package__).joinpath(_BUILT_IN).read_text("utf-8")
    sections = {key: value for key, _, value in parse_yaml(text, Path(_BUILT_IN)).items("")}
    names = {key: value.text("a name") for key, _, value in sections["names"].items("names")}
    table = ApiTable(names, {})
    pairs = {}
    for ms_api, _, value in sections["arguments"].items("functions"):
        pt_api = ".".join(table.pytorch_name(*ms_api.split(".", 1)))
        positions = tuple((ms, pt.text("a position")) for ms, _, pt in value.items("positions"))
        pairs[ms_api, pt_api] = ApiPair(ms_api, pt_api, {"args": positions}, is_complete=False)
    return ApiTable(names, pairs)


def read_api_mapping(path: Path, *, with_built_in: bool = True) -> ApiTable:
    """Return the pairs of a file, and for other functions those of the built-in table.

    Raises:
        ConfigError: the file is not of the form above.
    """
    table = built_in_table() if with_built_in else ApiTable({}, {})
    names, pairs = dict(table.names), dict(table.pairs)
    chosen = set()
    what = "a list of records with ms_api and pt_api"
    for record in read_yaml(path).elements(what):
        pair = _read_record(record)
        names[pair.ms_api] = pair.pt_api
        pairs[pair.ms_api, pair.pt_api] = pair
        chosen.add(pair.ms_api)
    return ApiTable(names, pairs, frozenset(chosen))


def _same_family(first: str, second: str) -> bool:
    a, b = first.split(".", 1), second.split(".", 1)
    return family(a[0], a[-1]) == family(b[0], b[-1])


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
    mine, theirs = _slots(ms), _slots(pt)
    if len(mine) != len(theirs):
        rule = f"as many as ms_{name}, which are {len(mine)}: place by place they belong together"
        pt.refuse(theirs, rule)
    return tuple(zip(mine, theirs, strict=True))


def _slots(node: Node) -> list[str]:
    slots = [
        item.text("a position, or the name of an argument") for item in node.elements("a list")
    ]
    for place, slot in enumerate(slots):
        if slot in slots[:place]:
            node.refuse(slots, f"each argument once; {slot} stands twice")
    return slots


def _api_name(node: Node) -> str:
    name = node.text("a name such as Functional.relu")
    if "." not in name:
        node.refuse(name, "a name with its kind in front, such as Functional.relu")
    return name
