# SPDX-License-Identifier: Apache-2.0
"""The pack: a zip file with the start settings of a run.

    manifest.json                           version of this layout, number of ranks
    env                                     JSON: variable → value
    pip                                     lines of package=version
    system.json                             name → value
    hyperparameters/hyperparameters_static.json, hyperparameters_dynamic.json
    hyperparameters/unresolved.json         arguments of the former that are not known for sure: why
    hyperparameters/statements.json         by script: line, kind, text of what is compared as text
    dataset/step{n}/rank{r}/dataset.json    statistics and checksum of every input of the model
    weights/step{n}/rank{r}/weight.json     the same of every parameter
    buffers/step{n}/rank{r}/buffer.json     the same of every buffer
    training/rank{r}.json                   settings of modules, optimizers …, flags, by part
    training/rank{r}.clip{n}.json           the same of gradient clipping, seen after the first call
    training/rank{r}.step{n}.json           flags, optimizers' numbers that changed before step n
    random/rank{r}.json                     calls of random functions
    random/generators_rank{r}.json          states of the generators, by step

The packs of mindstudio-probe have the same layout without `manifest.json`, `system.json`, buffers,
checksums, generators and `training`, and are read too. Each rank writes a file of its own: rank 0
the one that was asked for, rank r ``{stem}.rank{r}.zip`` beside it. Reading the first takes the
others in.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from msprobe.dump.formats.zip import ZIP_ERRORS
from msprobe.dump.records import JsonTree
from msprobe.errors import ReportWriteError, RunConfigFormatError
from msprobe.files import report_file
from msprobe.json_text import JSON_ERRORS, json_problem, parse_json
from msprobe.plain_text import reason
from msprobe.run_config.levels import Item
from msprobe.run_config.secrets import hidden_names

SCHEMA_VERSION: Final = 1
MANIFEST: Final = "manifest.json"
ENV: Final = "env"
PIP: Final = "pip"
SYSTEM: Final = "system.json"
STATIC_FILE: Final = "hyperparameters_static.json"
DYNAMIC_FILE: Final = "hyperparameters_dynamic.json"
STATIC: Final = f"hyperparameters/{STATIC_FILE}"
UNRESOLVED: Final = "hyperparameters/unresolved.json"
STATEMENTS: Final = "hyperparameters/statements.json"
DYNAMIC: Final = f"hyperparameters/{DYNAMIC_FILE}"

TRAINING_PARTS: Final = (
    *(Item.MODULES, Item.OPTIMIZER, Item.SCHEDULE, Item.SCALER, Item.CLIP, Item.LOADER, Item.MODES),
    Item.OBJECTS,
)
"""Contents of a member `training/rank{r}.json`."""
LATER_PARTS: Final = (Item.OPTIMIZER, Item.MODES)
"""Those that are collected at each step."""
NOT_SET: Final = "not set"
"""Of a setting that is gone at a later step."""

_MAX_MEMBERS: Final = 1_000_000
_MAX_MEMBER_BYTES: Final = 256 << 20
_MAX_TOTAL_BYTES: Final = 4 << 30
_PER_STEP: Final = re.compile(
    r"(dataset|weights|buffers)/step(\d{1,9})/rank(\d{1,9})/(?:dataset|weight|buffer)\.json"
)
_PER_RANK: Final = re.compile(r"random/(generators_)?rank(\d{1,9})\.json")
_TRAINING: Final = re.compile(r"training/rank(\d{1,9})(?:\.clip\d{1,3}|\.step(\d{1,9}))?\.json")

StepRank = tuple[int, int]
"""A (micro) step and a rank."""


@dataclass(slots=True, kw_only=True)
class Pack:
    """Contents of a pack; None or empty where it holds no such item.

    Attributes:
        path: the file.
        env: environment variables.
        packages: versions of packages.
        system: machine and code.
        arguments: flat arguments, by the name of the file in the pack.
        unresolved: why an argument of a script is not known for sure, by its name.
        statements: line, kind and text of what is compared as text, by script.
        dataset: per step and rank, the nested statistics of the inputs.
        weights: per step and rank, the statistics of the parameters.
        buffers: per step and rank, those of the buffers.
        training: per rank and part, the settings of modules, optimizers and so on.
        later: per step and rank, those that changed before a later step.
        random: per rank, the calls of random functions.
        generators: per rank, the states of the random generators by step.
        missing_ranks: ranks whose files are not beside it.
    """

    path: Path
    env: dict[str, str] | None = None
    packages: dict[str, str] | None = None
    system: dict[str, str] | None = None
    arguments: dict[str, dict[str, JsonTree]] = field(default_factory=dict)
    unresolved: dict[str, str] = field(default_factory=dict)
    statements: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)
    dataset: dict[StepRank, dict[str, JsonTree]] = field(default_factory=dict)
    weights: dict[StepRank, dict[str, JsonTree]] = field(default_factory=dict)
    buffers: dict[StepRank, dict[str, JsonTree]] = field(default_factory=dict)
    training: dict[int, dict[str, dict[str, str]]] = field(default_factory=dict)
    later: dict[StepRank, dict[str, dict[str, str]]] = field(default_factory=dict)
    random: dict[int, dict[str, JsonTree]] = field(default_factory=dict)
    generators: dict[int, dict[str, JsonTree]] = field(default_factory=dict)
    missing_ranks: list[int] = field(default_factory=list)

    def hidden(self) -> list[str]:
        """Return the names of the variables and arguments of which something was hidden."""
        tables = [self.env or {}, *self.arguments.values()]
        tables += [settings for parts in self.training.values() for settings in parts.values()]
        return sorted({name for table in tables for name in hidden_names(table)})


def rank_path(path: Path, rank: int) -> Path:
    """Return the file that a rank writes."""
    return path if rank == 0 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


class PackWriter:
    """Writes the pack of one process, member by member; the file on disk is always whole."""

    def __init__(self, path: Path, *, rank: int = 0, world_size: int = 1) -> None:
        """Start a new file; an older one of that name is replaced.

        Args:
            path: the file of rank 0.
            rank: this process's rank.
            world_size: number of ranks.

        Raises:
            ReportWriteError: it cannot be written.
        """
        self.path = rank_path(path, rank)
        self._mode: Literal["w", "a"] = "w"
        self.put_json(
            MANIFEST, {"schema_version": SCHEMA_VERSION, "rank": rank, "world_size": world_size}
        )

    def put_json(self, name: str, tree: JsonTree) -> None:
        """Add a member.

        Raises:
            ReportWriteError: the file cannot be written.
        """
        self.put_text(name, json.dumps(tree, indent=4))

    def put_text(self, name: str, text: str) -> None:
        """Add a member; see `put_json`."""
        # A fixed time: packs of equal contents are equal files.
        info = zipfile.ZipInfo(name)
        info.compress_type = zipfile.ZIP_DEFLATED
        try:
            with report_file(self.path, warns=False) as temporary:
                if self._mode == "a":
                    shutil.copyfile(self.path, temporary)
                with zipfile.ZipFile(temporary, self._mode) as archive:
                    archive.writestr(info, text.encode(errors="surrogateescape"))
        except zipfile.BadZipFile as exc:
            raise ReportWriteError(self.path, f"cannot be written: {reason(exc)}") from exc
        self._mode = "a"

    def put_packages(self, packages: Mapping[str, str]) -> None:
        """Add the versions of packages; see `put_json`."""
        self.put_text(PIP, "".join(f"{name}={version}\n" for name, version in packages.items()))


def read_pack(path: Path) -> Pack:
    """Read a pack, and those of the other ranks beside it.

    Raises:
        RunConfigFormatError: it is no pack, or damaged or hostile.
    """
    pack = Pack(path=path)
    world_size = _read_into(pack, path)
    for rank in range(1, min(world_size, _MAX_MEMBERS)):
        other = rank_path(path, rank)
        if other.is_file():
            _read_into(pack, other)
        else:
            pack.missing_ranks.append(rank)
    return pack


def unpack(path: Path, directory: Path) -> None:
    """Write the known members of a pack as files; nothing else in it reaches the disk.

    Raises:
        RunConfigFormatError: it is no pack, or damaged.
        ReportWriteError: the folder cannot be written.
    """
    for name, content in _members(path):
        if not _is_known(name):
            continue
        with report_file(directory / name, warns=False) as temporary:
            temporary.write_bytes(content)


def _is_known(name: str) -> bool:
    plain = (MANIFEST, ENV, PIP, SYSTEM, STATIC, DYNAMIC, UNRESOLVED, STATEMENTS)
    numbered = (_PER_STEP, _PER_RANK, _TRAINING)
    return name in plain or any(form.fullmatch(name) for form in numbered)


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    total = 0
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            if len(infos) > _MAX_MEMBERS:
                raise RunConfigFormatError(path, f"holds {len(infos)} members")
            for info in infos:
                total += info.file_size
                if info.file_size > _MAX_MEMBER_BYTES or total > _MAX_TOTAL_BYTES:
                    raise RunConfigFormatError(path, f"{info.filename!r} is too large")
                if _is_known(info.filename):
                    yield info.filename, archive.read(info)
    except ZIP_ERRORS as exc:
        raise RunConfigFormatError(path, f"is no pack that can be read: {reason(exc)}") from exc


def _read_into(pack: Pack, path: Path) -> int:
    """Add the contents of a file; return the number of ranks in it."""
    world_size = 1
    found = False
    for name, content in _members(path):
        found = True
        if name == PIP:
            pack.packages = pack.packages or _read_packages(content)
            continue
        tree = _object(path, name, content)
        if name == MANIFEST:
            world_size = _world_size(path, tree)
        else:
            _add(pack, path, name, tree)
    if not found:
        raise RunConfigFormatError(path, "is no pack of config_check: it holds no known member")
    return world_size


def _add(pack: Pack, path: Path, name: str, tree: dict[str, JsonTree]) -> None:
    """Add a member to a pack."""
    if name in (ENV, SYSTEM, UNRESOLVED):
        _add_texts(pack, name, {key: str(value) for key, value in tree.items()})
    elif name == STATEMENTS:
        pack.statements = {script: _statements(path, rows) for script, rows in tree.items()}
    elif name in (STATIC, DYNAMIC):
        pack.arguments.setdefault(name.partition("/")[2], tree)
    elif place := _PER_STEP.fullmatch(name):
        tables = {"dataset": pack.dataset, "weights": pack.weights, "buffers": pack.buffers}
        tables[place[1]][int(place[2]), int(place[3])] = tree
    elif place := _TRAINING.fullmatch(name):
        rank = int(place[1])
        parts = (
            pack.later.setdefault((int(place[2]), rank), {})
            if place[2]
            else pack.training.setdefault(rank, {})
        )
        for part, settings in _settings_by_part(path, name, tree).items():
            parts.setdefault(part, {}).update(settings)
    elif tree and (place := _PER_RANK.fullmatch(name)):  # empty where no call was noted
        (pack.generators if place[1] else pack.random)[int(place[2])] = tree


def _add_texts(pack: Pack, name: str, texts: dict[str, str]) -> None:
    if name == ENV:
        pack.env = pack.env or texts
    elif name == SYSTEM:
        pack.system = pack.system or texts
    else:
        pack.unresolved |= texts


def _statements(path: Path, rows: JsonTree) -> list[tuple[int, str, str]]:
    found = []
    for row in rows if isinstance(rows, list) else [None]:
        if not isinstance(row, list) or len(row) != 3 or not isinstance(row[0], int):
            raise RunConfigFormatError(path, f"{STATEMENTS}: {row!r:.40} is no line, kind and text")
        found.append((row[0], str(row[1]), str(row[2])))
    return found


def _read_packages(content: bytes) -> dict[str, str]:
    lines = content.decode(errors="replace").splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name.strip(): version.lstrip("=").strip() for name, _, version in pairs}


def _object(path: Path, name: str, content: bytes) -> dict[str, JsonTree]:
    try:
        tree = parse_json(content)
    except JSON_ERRORS as exc:
        raise RunConfigFormatError(path, f"{name}: {json_problem(exc)}") from exc
    if not isinstance(tree, dict):
        raise RunConfigFormatError(path, f"{name}: holds no object")
    return tree


def _settings_by_part(
    path: Path, name: str, tree: Mapping[str, JsonTree]
) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for part, settings in tree.items():
        if not isinstance(settings, dict):
            raise RunConfigFormatError(path, f"{name}: {part!r:.40} holds no object")
        found[part] = {key: str(value) for key, value in settings.items()}
    return found


def _world_size(path: Path, manifest: Mapping[str, JsonTree]) -> int:
    version, size = manifest.get("schema_version"), manifest.get("world_size", 1)
    if version != SCHEMA_VERSION:
        raise RunConfigFormatError(
            path, f"has schema version {version!r}; this is {SCHEMA_VERSION}"
        )
    if type(size) is not int or not 1 <= size <= _MAX_MEMBERS:
        raise RunConfigFormatError(path, f'{MANIFEST}: "world_size" is {size!r:.40}')
    return size
