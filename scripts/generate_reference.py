#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write `docs/reference/config.md` and `config.schema.json` from the types of the keys.

Run it after every change in `msprobe.config`; a test compares the files with what it would write.
`--check` writes nothing and fails when a file is out of date.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

import msgspec
from msgspec import inspect

from msprobe.config import json_schema
from msprobe.config.checking import describe_type
from msprobe.config.file_keys import SECTION_KEYS, CommonKeys, SliceKeys
from msprobe.config.unknown_keys import OTHER_TASKS, UNSUPPORTED_IN_SECTION, UNSUPPORTED_TOP

FOLDER: Final = Path(__file__).parents[1] / "docs" / "reference"

_INTRODUCTION: Final = """\
# config.json

<!-- Written by scripts/generate_reference.py; do not edit. -->

One JSON object. Keys for every task are at the top, keys of a task in an object of the task's
name; only the object of the active task is read. `PrecisionDebugger` reads the file named as
`config_path`; without one it reads `msprobe/config.json` of the installation: statistics at level
L1 into `./dump_path`. That file holds every section; copy it to begin with.

```json
{
    "$schema": "./config.schema.json",
    "task": "tensor",
    "dump_path": "./dump",
    "level": "mix",
    "step": [0, "10-12"],
    "tensor": {
        "list": ["Module.layers.0."],
        "data_mode": ["forward"]
    }
}
```

- `task`, `dump_path`, `level` and `step` may also be given to `PrecisionDebugger`, which wins over
  the file unless the argument is empty.
- `null` is as if the key were absent, so is `""` for `task` and `level`.
- A value that cannot be used is refused with the key, the value and what is allowed. A key without
  effect gets a warning, with the nearest known name. Of a key that occurs twice the last counts.
- The file is UTF-8, with or without byte order mark, and its name ends in `.json`.
- [`config.schema.json`](config.schema.json) is a JSON Schema for editors: copy it beside your
  file and name it as above.
"""

_LEVELS: Final = """\
## Levels and tasks together

| task | L0 | L1 | mix | L2 | debug |
|---|---|---|---|---|---|
| `statistics`, `tensor` | yes | yes | yes | yes | yes, without any selection |
| `structure` | yes | mix is used | yes, the default | mix is used | mix is used |
| `noise_floor` | yes | yes | yes | yes | refused |
| `overflow_check` | yes | yes | yes | yes | refused |

At level debug only what you pass to `save()` is recorded: `scope`, `list` and `tensor_list` have
no effect. In MindSpore `scope` is refused at L2. With `scope` and `list` together a record is
kept when both hold.
"""


def config_page() -> str:
    """Return the reference page as Markdown."""
    parts = [_INTRODUCTION, "## For every task\n", _table(CommonKeys), _LEVELS]
    for task, keys in SECTION_KEYS.items():
        parts += [f"## Section `{task}`\n", f"{_documentation(keys)}\n", _table(keys)]
    parts += ["## A crop of `slice`\n", _table(SliceKeys)]
    parts += ["## Not offered\n", _other_tasks(), _other_keys()]
    return "\n".join(parts)


def schema_file() -> str:
    """Return the JSON Schema as text."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _documentation(keys: type[msgspec.Struct]) -> str:
    text = (keys.__doc__ or "").strip()
    subject = text.partition(": ")[2]
    return subject[:1].upper() + subject[1:]


def _table(keys: type[msgspec.Struct]) -> str:
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    described = inspect.type_info(keys)
    assert isinstance(described, inspect.StructType)
    for field in described.fields:
        assert isinstance(field.type, inspect.Metadata), f"{field.name} has no description"
        text = (field.type.extra_json_schema or {})["description"]
        value = describe_type(field.type)
        lines.append(f"| `{field.encode_name}` | {value} | {_default(field)} | {text} |")
    return "\n".join(lines) + "\n"


def _default(field: inspect.Field) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{json.dumps(field.default_factory())}`"
    if field.default in (msgspec.NODEFAULT, ""):
        return ""
    return f"`{json.dumps(field.default)}`"


def _other_tasks() -> str:
    lines = [
        "These tasks of other tools are refused, as they record nothing. Their sections may stay "
        "in the file.\n",
        "| task | instead |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {advice} |" for name, advice in OTHER_TASKS.items()]
    return "\n".join(lines) + "\n"


def _other_keys() -> str:
    lines = [
        "These keys get a warning and have no effect.\n",
        "| key | why |",
        "|---|---|",
    ]
    both = UNSUPPORTED_TOP | UNSUPPORTED_IN_SECTION
    lines += [f"| `{name}` | {reason} |" for name, reason in both.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the files, or with `--check` only compare; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="fail when a file is out of date")
    check = parser.parse_args().check
    stale = []
    for name, text in (("config.md", config_page()), ("config.schema.json", schema_file())):
        path = FOLDER / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
    for name in stale:
        sys.stdout.write(f"{name}: {'out of date' if check else 'written'}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
