# SPDX-License-Identifier: Apache-2.0
"""A JSON Schema of `config.json`, for completion and checking in editors."""

from __future__ import annotations

from typing import Any

import msgspec

from msprobe.config.choices import Task
from msprobe.config.file_keys import EMPTY_IS_DEFAULT, SECTION_KEYS, CommonKeys
from msprobe.config.unknown_keys import OTHER_TASKS

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the schema (JSON Schema 2020-12) as plain JSON data.

    The section of a task is described where the task is chosen: other sections are not read.
    It describes types, words and ranges, and knows no further keys, so that an editor marks a
    misspelt one. Null is the default of every key, and ``""`` that of task and level. Rules over
    several keys at once, such as the names in `scope` at each level, only `load_config` can judge.
    """
    types = [CommonKeys, *SECTION_KEYS.values()]
    _, definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    common = definitions.pop(CommonKeys.__name__)
    for name, key in common["properties"].items():
        _add_values(key, *(("", None) if name in EMPTY_IS_DEFAULT else (None,)))
    properties = {"$schema": {"type": "string"}, **common["properties"]}
    for definition in definitions.values():
        if definition.get("type") == "object":
            definition["additionalProperties"] = False
            for key in definition["properties"].values():
                _add_values(key, None)
    for name, advice in OTHER_TASKS.items():
        properties[name] = {"description": f"Not read: not a capture task; {advice}."}
    for task in SECTION_KEYS:
        properties[task.value] = {"description": f"Keys of task {task}; not read by other tasks."}
    return {
        "$schema": DIALECT,
        "title": "msprobe config.json",
        "description": "Settings of a msprobe capture.",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "allOf": [_section_of(task, keys.__name__) for task, keys in SECTION_KEYS.items()],
        "$defs": dict(sorted(definitions.items())),
    }


def _section_of(task: Task, keys: str) -> dict[str, Any]:
    """Return the rule that a section has the form of its keys if it is that of the task."""
    is_default = task is Task.STATISTICS
    words = [task.value, *(("", None) if is_default else ())]
    condition = {
        "properties": {"task": {"enum": words}},
        "required": [] if is_default else ["task"],
    }
    return {"if": condition, "then": {"properties": {task.value: {"$ref": f"#/$defs/{keys}"}}}}


def _add_values(key: dict[str, Any], *values: str | None) -> None:
    """Let a key have further values."""
    if "type" in key:
        key["type"] = [key["type"], "null"]
    elif "anyOf" in key:
        key["anyOf"].append({"enum": list(values)})
    else:
        key["anyOf"] = [{"$ref": key.pop("$ref")}, {"enum": list(values)}]
