# SPDX-License-Identifier: Apache-2.0
"""Read ``.vis.db`` and ``.vis``: graphs that msprobe or mindstudio-probe has written.

A file from outside is data: it is opened for reading only, runs no code, and a view in it that
never ends is stopped.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.dump.record_index import read_json_object
from msprobe.dump.values import Role, Value
from msprobe.errors import DumpFormatError
from msprobe.files import reading
from msprobe.graph.model import ROOT_NAME

_SOURCES: Final = ("NPU", "Bench")
_COLUMNS: Final = (
    *("node_name", "node_type", "up_node", "precision_index", "overflow_level", "micro_step_id"),
    *("matched_node_link", "stack_id", "matched_distributed", "input_data", "output_data"),
    *("data_source", "step", "rank", "node_order"),
)
_SQLITE: Final = b"SQLite format 3\x00"
# A file of a gigabyte needs some 10^10 steps of SQLite's machine when every row is read once.
_STEPS_PER_BYTE: Final = 200
_LEAST_STEPS: Final = 1 << 26
_LONGEST_CELL: Final = 64 << 20
_STATISTICS: Final = {"Max": "max", "Min": "min", "Mean": "mean", "Norm": "norm"}
_NOTHING: Final = ("", "null", "None", "N/A", "-1")


class Verdict(NamedTuple):
    """Finding of a comparison of msprobe at a record."""

    status: str
    origin: str | None
    error: float | None
    severity: int


@dataclass(slots=True, kw_only=True)
class VisNode:
    """One record as a file of graphs has it.

    Attributes:
        name: the record's name.
        parent: the record around it; None at the top.
        is_collection: whether it is a box that only the file has.
        precision: from 0 (equal) to 1; None where nothing was compared.
        overflow: ``medium``, ``high`` or ``critical``.
        micro_step: number of the micro step.
        partner: the record of the other side.
        frames: its call stack.
        distributed: rank → record of the calls that it communicates with.
        values: inputs and outputs.
        results: slot → pass, warning or error, and the reason.
        verdict: status, origin, error and severity, where msprobe wrote the file.
    """

    name: str
    parent: str | None
    is_collection: bool
    precision: float | None = None
    overflow: str | None = None
    micro_step: int = 0
    partner: str | None = None
    frames: list[str] = field(default_factory=list)
    distributed: Mapping[str, str] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    results: dict[str, tuple[str, str]] = field(default_factory=dict)
    verdict: Verdict | None = None


@dataclass(slots=True, kw_only=True)
class VisGraph:
    """One side of one rank and step as a file of graphs has it, in call order."""

    source: str
    step: int
    rank: int
    nodes: list[VisNode]
    rank_name: int | str = 0


@dataclass(slots=True, kw_only=True)
class VisFile:
    """Content of a file of graphs.

    Attributes:
        graphs: all graphs.
        task: ``summary``, ``md5``, ``all`` or ``structure``.
        summary: what msprobe wrote of its comparison; None in files of other programs.
        paths: what was compared; empty texts in files of other programs.
    """

    graphs: list[VisGraph]
    task: str = ""
    summary: Mapping[str, Any] | None = None
    paths: tuple[str, str] = ("", "")


def is_graph_file(path: Path) -> bool:
    """Return whether a path is that of a file of graphs, by its name."""
    return path.name.endswith((".vis.db", ".vis"))


def is_database(path: Path) -> bool:
    """Return whether a path is that of a file of graphs which is a database, by its first bytes.

    Raises:
        DumpFormatError: it cannot be read.
    """
    if not is_graph_file(path):
        return False
    with reading(path, DumpFormatError), path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def read_vis(path: Path) -> VisFile:
    """Return the content of a ``.vis.db`` or a ``.vis``.

    Raises:
        DumpFormatError: it cannot be read, or is no such file.
    """
    found = _read_database(path) if is_database(path) else _read_json(path)
    if not any(graph.nodes for graph in found.graphs):
        raise DumpFormatError(path, "holds no graph")
    return found


def _read_database(path: Path) -> VisFile:
    try:
        with closing(guarded(path)) as base:
            return _from_database(path, base)
    except sqlite3.Error as exc:
        raise DumpFormatError(path, f"is damaged: {exc}") from exc
    except UnicodeDecodeError as exc:
        raise DumpFormatError(path, "is damaged: a text in it is not UTF-8") from exc


def guarded(path: Path) -> sqlite3.Connection:
    """Open a file so that nothing in it can run on for ever, write, or fill the memory.

    Raises:
        sqlite3.Error: it cannot be opened.
        OSError: it is not there.
    """
    base = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    base.execute("PRAGMA query_only = ON")
    base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_CELL)
    steps = 1 << 20
    left = [max(_LEAST_STEPS, path.stat().st_size * _STEPS_PER_BYTE) // steps]

    def is_too_much() -> bool:
        left[0] -= 1
        return left[0] < 0

    base.set_progress_handler(is_too_much, steps)
    return base


def node_in_file(base: sqlite3.Connection, path: Path, place: tuple[str, int, int, str]) -> VisNode:
    """Return one record of a file of graphs.

    Args:
        base: the file.
        path: its path, for errors.
        place: ``NPU`` or ``Bench``, step, rank, and the record's name.

    Raises:
        KeyError: there is no such record.
        DumpFormatError: its cells are damaged.
    """
    where = "data_source = ? AND step = ? AND rank = ? AND node_name = ?"
    cells = base.execute(f"SELECT {', '.join(_COLUMNS)} FROM tb_nodes WHERE {where}", place)
    row = dict(zip(_COLUMNS, cells.fetchone() or (), strict=False))
    stack = base.execute("SELECT stack_info FROM tb_stack WHERE id = ?", (row["stack_id"],))
    frames = stack.fetchone()
    row["frames"] = [] if frames is None else _json(path, frames[0], list)
    return next(_nodes(_parsed(path, row)))


def _parsed(path: Path, row: dict[str, Any]) -> dict[str, Any]:
    for key in ("matched_node_link", "matched_distributed", "input_data", "output_data"):
        row[key] = _json(path, row[key])
    return row


def _from_database(path: Path, base: sqlite3.Connection) -> VisFile:
    stacks = {
        key: _json(path, text, list)
        for key, text in base.execute("SELECT id, stack_info FROM tb_stack")
    }
    graphs: dict[tuple[str, int, int], VisGraph] = {}
    query = f"SELECT {', '.join(_COLUMNS)} FROM tb_nodes ORDER BY step, rank, node_order"
    for cells in base.execute(query):
        row = dict(zip(_COLUMNS, cells, strict=True))
        source, step, rank = row["data_source"], row["step"], row["rank"]
        if source not in _SOURCES or type(step) is not int or type(rank) is not int:
            raise DumpFormatError(path, f"a node of {source!r}, step {step!r}, rank {rank!r}")
        graph = graphs.setdefault(
            (source, step, rank),
            VisGraph(source=source, step=step, rank=rank, nodes=[], rank_name=rank),
        )
        row["frames"] = stacks.get(row["stack_id"], [])
        graph.nodes += _nodes(_parsed(path, row))
    config = base.execute("SELECT task FROM tb_config").fetchone()
    about = _about(base)
    if about:
        _add_verdicts(base, graphs)
    return VisFile(
        graphs=[*graphs.values()],
        task=str(config[0] or "") if config else "",
        summary=_json(path, about.get("summary"), dict) or None,
        paths=(about.get("target", ""), about.get("reference", "")),
    )


def _add_verdicts(
    base: sqlite3.Connection, graphs: Mapping[tuple[str, int, int], VisGraph]
) -> None:
    """Add what only files of msprobe hold: names of ranks, and verdicts with their origins."""
    for source, step, rank, name in base.execute(
        "SELECT data_source, step, rank, rank_name FROM side"
    ):
        if (source, step, rank) in graphs and isinstance(name, str):
            graphs[source, step, rank].rank_name = int(name) if name.isdecimal() else name
    nodes = {(*key, node.name): node for key, graph in graphs.items() for node in graph.nodes}
    for source, step, rank, name, *cells in base.execute(
        "SELECT s.data_source, s.step, s.rank, n.text, r.status, r.origin, r.error, r.severity "
        "FROM record r JOIN side s ON s.id = r.side JOIN text n ON n.id = r.name "
        "WHERE r.status IS NOT NULL"
    ):
        node = nodes.get((source, step, rank, name))
        if node is not None and isinstance(cells[0], str) and type(cells[3]) is int:
            origin = cells[1] if isinstance(cells[1], str) else None
            node.verdict = Verdict(cells[0], origin, _number(cells[2]), cells[3])


def _about(base: sqlite3.Connection) -> dict[str, str]:
    known = base.execute("SELECT 1 FROM sqlite_master WHERE name = 'msprobe'").fetchone()
    if known is None:
        return {}
    return {key: str(value or "") for key, value in base.execute("SELECT key, value FROM msprobe")}


def _json(path: Path, text: object, kind: type | None = None) -> Any:
    if text in (None, ""):
        return [] if kind is list else {}
    try:
        found = json.loads(str(text))
    except (ValueError, RecursionError) as exc:
        raise DumpFormatError(path, f"a cell holds no JSON: {exc}") from exc
    return found if kind is None or isinstance(found, kind) else kind()


def _read_json(path: Path) -> VisFile:
    """Return the content of a ``.vis``: one rank of one step as JSON."""
    if path.suffix == ".db":
        raise DumpFormatError(path, "is no database of SQLite, as graphs are")
    tree = read_json_object(path)
    sides = {source: tree[source] for source in _SOURCES if source in tree} or {"NPU": tree}
    step, rank = _numbers_in(path.name)
    graphs = []
    for source, side in sides.items():
        nodes = side.get("node") if isinstance(side, dict) else None
        if not isinstance(nodes, dict):
            raise DumpFormatError(path, f'{source} has no object "node"')
        found = [node for row in _json_rows(nodes) for node in _nodes(row)]
        graphs.append(VisGraph(source=source, step=step, rank=rank, nodes=found, rank_name=rank))
    return VisFile(graphs=graphs, task=str(tree.get("task") or ""))


def _json_rows(nodes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, node in nodes.items():
        if not isinstance(node, dict):
            continue
        data = node.get("data") if isinstance(node.get("data"), dict) else {}
        yield {
            "node_name": name,
            "node_type": str(node.get("node_type", "")),
            "up_node": node.get("upnode"),
            "precision_index": (data or {}).get("precision_index"),
            "overflow_level": (data or {}).get("overflow_level"),
            "micro_step_id": node.get("micro_step_id"),
            "frames": node.get("stack_info"),
            **{
                key: node.get(key)
                for key in ("matched_node_link", "matched_distributed", "input_data", "output_data")
            },
        }


def _numbers_in(name: str) -> tuple[int, int]:
    """Return step and rank of ``compare_step0_rank1_20250101.vis``."""
    found = {}
    for part in name.split("_"):
        for key in ("step", "rank"):
            digits = part.removeprefix(key)
            if part.startswith(key) and digits.isdigit() and len(digits) < 10:
                found[key] = int(digits)
    return found.get("step", 0), found.get("rank", 0)


def _nodes(row: Mapping[str, Any]) -> Iterator[VisNode]:
    """Yield the node of a row; none for the root, which every graph has."""
    name, parent = row["node_name"], row["up_node"]
    if not isinstance(name, str) or name == ROOT_NAME:
        return
    # Texts of older files begin with "N___" or "B___" where they name a partner.
    link = row["matched_node_link"]
    partner = link[-1] if isinstance(link, list) and link else None
    node = VisNode(
        name=name,
        parent=parent if isinstance(parent, str) and parent not in ("", ROOT_NAME) else None,
        is_collection=str(row["node_type"]) in ("8", "9"),
        precision=_number(row["precision_index"]),
        overflow=row["overflow_level"] if isinstance(row["overflow_level"], str) else None,
        micro_step=row["micro_step_id"] if type(row["micro_step_id"]) is int else 0,
        partner=_without_side(partner) if isinstance(partner, str) else None,
        frames=_texts(row["frames"]),
        distributed=_partners(row["matched_distributed"]),
    )
    for role, part in ((Role.INPUT, "input_data"), (Role.OUTPUT, "output_data")):
        for key, entry in (row[part] if isinstance(row[part], dict) else {}).items():
            if isinstance(entry, dict):
                _add_value(node, key, entry, role)
    yield node


def _add_value(node: VisNode, key: str, entry: Mapping[str, Any], role: Role) -> None:
    slot = key.removeprefix(f"{node.name}.")
    if slot.startswith("parameters."):
        role = Role.PARAMETER
    elif "parameters_grad" in node.name:
        role = Role.PARAMETER_GRAD
    node.values.append(_value(slot, entry, role))
    if isinstance(entry.get("Result"), str):
        message = entry.get("Err_message")
        node.results[slot] = (entry["Result"], message if isinstance(message, str) else "")


def _value(slot: str, entry: Mapping[str, Any], role: Role) -> Value:
    path = tuple(slot.split("."))
    kind = str(entry.get("type") or "NoneType")
    shape = _shape(entry.get("shape"))
    dtype = str(entry.get("dtype") or "")
    if "value" in entry or shape is None:
        return Value(path, slot, role, False, kind, value=entry.get("value"))
    data_name, md5 = entry.get("data_name"), entry.get("md5")
    value = Value(
        *(path, slot, role, True, kind),
        dtype=normal_dtype(dtype),
        raw_dtype=dtype,
        shape=shape,
        requires_grad={"True": True, "False": False}.get(str(entry.get("requires_grad"))),
        data_name=None if data_name in _NOTHING else str(data_name),
        md5=None if md5 in (None, *_NOTHING) else str(md5),
    )
    value_id = entry.get("value_id")
    if isinstance(value_id, str) and value_id.isdigit():
        value.value_id = int(value_id[:18])
    for title, name in _STATISTICS.items():
        setattr(value, name, _number(entry.get(title)))
    return value


def _without_side(name: str) -> str:
    return name.removeprefix("N___").removeprefix("B___")


def _number(found: object) -> float | None:
    if found is None or isinstance(found, (dict, list)) or found in _NOTHING[:4]:
        return None
    try:
        return float(str(found)) if not isinstance(found, bool) else float(found)
    except ValueError:
        return {"True": 1.0, "False": 0.0}.get(str(found))


def _shape(found: object) -> tuple[int, ...] | None:
    try:
        sizes = (
            json.loads(found.replace("(", "[").replace(",)", "]").replace(")", "]"))
            if isinstance(found, str)
            else found
        )
    except ValueError:
        return None
    if isinstance(sizes, list) and all(type(size) is int for size in sizes):
        return tuple(sizes)
    return None


def _texts(found: object) -> list[str]:
    if isinstance(found, str):
        return [found] if found else []
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


def _partners(found: object) -> dict[str, str]:
    """Return rank → record of the calls that a call communicates with."""
    nodes = found.get("nodes_info") if isinstance(found, dict) else None
    if not isinstance(nodes, dict):
        return {}
    partners = {}
    for rank, entry in nodes.items():
        name = entry[-1] if isinstance(entry, list) and entry else entry
        if isinstance(name, str):
            partners[str(rank)] = name
    return partners
