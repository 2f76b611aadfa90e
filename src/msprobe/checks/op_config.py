# SPDX-License-Identifier: Apache-2.0
"""`OpConfig`: ``config_op.json`` of mindstudio-probe, which asks for the script of one call.

A file to begin with is beside this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msprobe.checks.op_scripts import ScriptOptions, forward_name, script_name, write_op_script
from msprobe.config.reading import read_config_file
from msprobe.dump.rank_view import RankView
from msprobe.dump.reader import open_dump
from msprobe.dump.record_names import backward_name, parse_record_name
from msprobe.errors import ConfigError
from msprobe.files import write_report
from msprobe.json_text import strict_json

_PROPAGATIONS: Final = ("forward", "backward")
_MODES: Final = ("random_data", "real_data")
_MOST_ITERATIONS: Final = 1000
_TEXTS: Final = {
    "dump_json_path": "the path of a dump.json",
    "api_name": "the name of a recorded call, such as Functional.softmax.0",
    "extract_api_path": "the path of the file to write the records of the call to",
}
_DEFAULTS: Final[Mapping[str, Any]] = {
    "dump_json_path": "",
    "api_name": "",
    "extract_api_path": "",
    "propagation": _PROPAGATIONS[0],
    "data_mode": _MODES[0],
    "random_seed": 1234,
    "iter_times": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpConfig:
    """Which call is shown, and with which data.

    Attributes:
        dump: ``dump.json`` of a rank.
        call: the call's name.
        extract: file that takes the call's records.
        backward: whether its gradients are shown.
        seed: of generated data; None for the recorded ones.
        iterations: how many times the call is made with other data.
    """

    dump: Path
    call: str
    extract: Path
    backward: bool
    seed: int | None
    iterations: int


def read_op_config(path: Path) -> OpConfig:
    """Read a ``config_op.json``.

    Raises:
        ConfigFileError: it cannot be read, or holds no JSON object.
        ConfigError: a key is unknown or missing, or has a value that cannot be used.
    """
    tree, _ = read_config_file(path)
    for key in tree:
        if key not in _DEFAULTS:
            raise ConfigError(key, tree[key], f"only {', '.join(_DEFAULTS)}", source=path)
    values = {**_DEFAULTS, **tree}
    for key, rule in _TEXTS.items():
        if not isinstance(values[key], str) or not values[key]:
            raise ConfigError(key, values[key], rule, source=path)
    for key, allowed in (("propagation", _PROPAGATIONS), ("data_mode", _MODES)):
        if values[key] not in allowed:
            raise ConfigError(key, values[key], allowed, source=path)
    seed, iterations = values["random_seed"], values["iter_times"]
    if type(seed) is not int or seed < 0:
        raise ConfigError("random_seed", seed, "a whole number", source=path)
    if type(iterations) is not int or not 1 <= iterations <= _MOST_ITERATIONS:
        rule = f"a number from 1 to {_MOST_ITERATIONS}"
        raise ConfigError("iter_times", iterations, rule, source=path)
    return OpConfig(
        dump=Path(values["dump_json_path"]),
        call=values["api_name"],
        extract=Path(values["extract_api_path"]),
        backward=values["propagation"] == "backward",
        seed=seed if values["data_mode"] == "random_data" else None,
        iterations=iterations,
    )


def generate_op_scripts(config: OpConfig, folder: Path) -> list[Path]:
    """Write the records of the call, and a script for each set of data.

    Args:
        config: which call and data.
        folder: of the scripts; made if missing.

    Returns:
        The scripts: ``{call}.{forward|backward}.py``, further ones with a number in front of
        ``.py``.

    Raises:
        RecordNotFoundError: there is no such call.
        ScriptError: it cannot be written.
    """
    view = next(open_dump(config.dump).rank_views())
    name = forward_name(view, config.call)
    write_report(config.extract, strict_json(_records(view, name)))
    file = folder / script_name(name, backward=config.backward)
    written = []
    for number in range(1 if config.seed is None else config.iterations):
        path = file if number == 0 else file.with_suffix(f".{number}.py")
        seed = None if config.seed is None else config.seed + number
        options = ScriptOptions(backward=config.backward, seed=seed, metrics=True)
        written.append(write_op_script(view, name, path, options))
    return written


def _records(view: RankView, name: str) -> dict[str, Any]:
    """Return the records of a call as they are in ``dump.json``."""
    names = name, backward_name(parse_record_name(name)) or ""
    return {one: view.records[one].data for one in names if one in view.records}
