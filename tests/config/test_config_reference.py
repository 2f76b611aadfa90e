# SPDX-License-Identifier: Apache-2.0
"""What is generated from the key types: the JSON schema and the reference page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from msprobe.config import Config, Level, Task, json_schema
from msprobe.config.file_keys import SECTION_KEYS, CommonKeys

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "generate_reference.py"


def test_committed_reference_is_what_the_generator_writes():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), (
        "run scripts/generate_reference.py"
    )


def test_schema_is_json_and_the_same_each_time():
    text = json.dumps(json_schema())
    assert json.dumps(json_schema()) == text
    assert json_schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_schema_describes_every_key():
    schema = json_schema()
    for name in CommonKeys.__struct_encode_fields__:
        assert schema["properties"][name]["description"]
    for task, keys in SECTION_KEYS.items():
        assert schema["properties"][task.value]["description"]
        rules = (rule["then"]["properties"] for rule in schema["allOf"])
        reference = next(rule[task.value]["$ref"] for rule in rules if task.value in rule)
        section = schema["$defs"][reference.removeprefix("#/$defs/")]
        assert list(section["properties"]) == list(keys.__struct_encode_fields__)
        assert all(key["description"] for key in section["properties"].values())


def test_schema_lists_the_words_that_are_accepted():
    words = json_schema()["$defs"]
    assert set(words["Task"]["enum"]) == set(Task)
    assert set(words["Level"]["enum"]) == set(Level)


def allows(schema, key, value) -> bool:
    """Return whether a key may be null, or an empty string."""
    kind = {None: "null", "": "string"}[value]
    words = [word for choice in key.get("anyOf", ()) for word in choice.get("enum", ())]
    return kind in key.get("type", ()) or value in words


def test_schema_accepts_the_empty_values_that_the_file_may_hold(load):
    schema = json_schema()
    common = {name: schema["properties"][name] for name in CommonKeys.__struct_encode_fields__}
    sections = [part["properties"] for part in schema["$defs"].values() if "properties" in part]
    keys = [key for part in (common, *sections) for key in part.values()]
    assert all(allows(schema, key, None) for key in keys)
    assert load({**dict.fromkeys(common), "statistics": {"list": None}}) == load({})
    assert allows(schema, common["task"], "")
    assert allows(schema, common["level"], "")
    assert not allows(schema, common["precision"], "")
    assert load({"task": "", "level": ""}) == load({})


def test_schema_lets_editors_mark_misspelt_keys():
    schema = json_schema()
    sections = [definition for definition in schema["$defs"].values() if "properties" in definition]
    assert len(sections) == len(SECTION_KEYS) + 1  # and the crops of slice
    assert all(part["additionalProperties"] is False for part in (schema, *sections))


def test_every_reference_inside_the_schema_can_be_followed():
    schema = json_schema()
    text = json.dumps(schema)
    names = {part.split('"')[0] for part in text.split('"#/$defs/')[1:]}
    assert names
    assert names <= set(schema["$defs"])


def test_every_key_of_the_file_is_a_setting_of_the_same_name():
    settings = set(Config.__slots__) - {"source", "section"}
    assert set(CommonKeys.__struct_encode_fields__) == settings


# diff_check has a key without a default: the recording to compare with.
@pytest.mark.parametrize("task", [task for task in Task if task is not Task.DIFF_CHECK])
def test_defaults_of_the_keys_pass_their_own_check(load, task):
    defaults = msgspec.to_builtins(SECTION_KEYS[task]())
    level = "L2" if task is Task.EXCEPTION_DUMP else "mix"
    common = msgspec.to_builtins(CommonKeys()) | {"level": level, "task": task}
    kernels = task is not Task.SIGNATURE
    written = load({**common, task.value: defaults}, dumps_kernels=kernels)
    assert written == load({"task": task, "level": level}, dumps_kernels=kernels)


def test_reference_page_names_every_key():
    page = (ROOT / "docs" / "reference" / "config.md").read_text(encoding="utf-8")
    for keys in (CommonKeys, *SECTION_KEYS.values()):
        for name in keys.__struct_encode_fields__:
            assert f"| `{name}` |" in page


def test_importing_the_room_loads_no_framework_and_little_else():
    code = (
        "import sys, msprobe.config; "
        "print(*(m for m in ('torch', 'mindspore', 'numpy', 'yaml', 'difflib', 'rich')"
        " if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("task", [None, "", *Task])
def test_schema_judges_the_section_of_the_task_alone(task):
    jsonschema = pytest.importorskip("jsonschema")
    schema = jsonschema.Draft202012Validator(json_schema())
    for section in SECTION_KEYS:
        is_own = section == (task or Task.STATISTICS)
        assert schema.is_valid({"task": task, section.value: 5}) is not is_own
        assert schema.is_valid({"task": task, section.value: {}})
