# SPDX-License-Identifier: Apache-2.0
"""No change of a launch script passes: one thing in a whole script, and each of its words.

By default each fifth word of the scripts is changed, each with MSPROBE_TEST_WHOLE_CORPUS=1.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import whole_scripts
from script_sets import DIFFER
from script_sets import FILES as SOURCED
from test_script_corpus import compared
from whole_scripts import CHANGES, FILES, SPELLINGS

from builders.extent import WHOLE
from msprobe.run_config.levels import Aspect, Level
from msprobe.run_config.shell_scripts import parse_shell_script
from msprobe.run_config.shell_words import shell_parser, text_of, walk

SCRIPTS = [one for one in vars(whole_scripts).values() if str(one).startswith("#!")]
# Other order of statements that reach no training, or files written twice under one name.
TOLD = (20, 37, 42, 62, 70)
# The known values decide alike: the same remainder, a default that is not taken, an element or a
# separator that does not occur; `local` and `declare` in a function are one.
ALIKE = 40
OTHERS = {
    one: other
    for pair in ("&& ||", "== !=", "while until", "+ -", ":- :+", "# %", "+= =", "|& |", ">> >")
    for one, other in (pair.split(), pair.split()[::-1])
} | {"for": "select", "-eq": "-ne", "-gt": "-ge", "-z": "-n", "-f": "-d", "export": "readonly"}
WORDS = (
    *("word", "number", "string_content", "ansi_c_string", "heredoc_content", "heredoc_body"),
    *("variable_name", "special_variable_name", "regex", "extglob_pattern", "test_operator"),
)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_a_changed_thing_never_passes(tmp_path: Path, number: int) -> None:
    script, before, after, _ = CHANGES[number]
    assert before in script
    pair = (FILES | {"run.sh": text} for text in (script, script.replace(before, after)))
    assert compared(tmp_path, *pair).level not in (Level.PASS, Level.INFO)


@pytest.mark.slow
@pytest.mark.parametrize("number", [n for n in range(len(SPELLINGS)) if n not in TOLD])
def test_another_spelling_is_no_difference(tmp_path: Path, number: int) -> None:
    script, edits = SPELLINGS[number]
    other = script
    for before, after in edits:
        assert before in other
        other = other.replace(before, after)
    found = compared(tmp_path, FILES | {"run.sh": script}, FILES | {"run.sh": other})
    left = [one for one in found.differences() if one.level is not Level.INFO]
    assert [one for one in left if one.aspect is not Aspect.NOT_COMPARED] == []


def changed(script: str) -> Iterator[str]:
    """Yield a script with one word or sign changed, each in turn."""
    content = script.encode()
    for leaf in walk(shell_parser().parse(content).root_node):
        text = text_of(leaf)
        if leaf.children or (leaf.type not in WORDS and text not in OTHERS):
            continue
        end = len(text.rstrip())
        other = OTHERS.get(text, f"{text[:end]}7{text[end:]}")
        yield (content[: leaf.start_byte] + other.encode() + content[leaf.end_byte :]).decode()


@pytest.mark.slow
def test_each_word_of_a_script_counts(tmp_path: Path) -> None:
    for name, text in (FILES | SOURCED).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    @cache
    def found(script: str) -> tuple[object, ...]:
        walked = parse_shell_script(script, tmp_path)
        texts = [one[1:] for one in (*walked.statements, *walked.files.values())]
        return walked.arguments, texts

    scripts = [*SCRIPTS, *(text.replace("§", values[0]) for text, values, _ in DIFFER)]
    tries = [(script, other) for script in scripts for other in changed(script)]
    assert len(tries) > 2_500
    some = tries if WHOLE else tries[::5]
    alike = [other for script, other in some if found(script) == found(other)]
    assert len(alike) <= ALIKE, alike
