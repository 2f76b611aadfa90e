# SPDX-License-Identifier: Apache-2.0
"""Input and output of a command of a shell script: redirections, and the fields of ``read``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msprobe.run_config.shell_variables import Variables, Word
from msprobe.run_config.shell_words import printed_by, text_of, words_of

if TYPE_CHECKING:
    from tree_sitter import Node

_STREAM: Final = re.compile(r"\d+|-")


def redirected(node: Node, sign: str, variables: Variables) -> list[Word]:
    """Return the files that a redirected statement reads (``<``) or writes (``>``)."""
    # ``<<EOF > FILE`` has the second redirection inside the first.
    inside = [child for each in node.named_children for child in (each, *each.named_children)]
    return [
        word
        for each in inside
        if each.type == "file_redirect"
        and any(text_of(one).strip("&|") in (sign, sign * 2) for one in each.children)
        for target in each.children_by_field_name("destination")
        for word in words_of(target, variables)
        if not _STREAM.fullmatch(word.text)
    ]


def targets_of(node: Node, body: Node, variables: Variables) -> list[Word]:
    """Return the files that a statement writes, by ``>`` or by ``tee``."""
    targets = redirected(node, ">", variables)
    if not targets and text_of(body).startswith("tee"):
        parts = body.children_by_field_name("argument")
        targets = [word for part in parts for word in words_of(part, variables)]
    return targets


def content_of(body: Node, given: Word | None, variables: Variables) -> Word | None:
    """Return what ``cat <<EOF`` and ``echo`` write; None of other commands.

    Args:
        body: the command.
        given: what it reads.
        variables: those of the script.
    """
    name = text_of(body).split()[0]
    if given is not None:
        return given if name in ("cat", "tee") else None
    if name not in ("echo", "printf") or body.type != "command":
        return None
    text = printed_by(body, variables)
    return None if text is None else Word(text.text + "\n" * (name == "echo"), text.doubts)


def is_plain_writer(body: Node) -> bool:
    """Return whether the text that a command writes is all that can differ: it has no options."""
    name, _, rest = text_of(body).partition(" ")
    has_options = rest.lstrip(" \"'").startswith("-")
    return not rest if name == "cat" else name in ("echo", "printf") and not has_options


def fields_of(
    text: str, separators: str, names: Sequence[str], *, is_array: bool
) -> dict[str, tuple[Word, ...]]:
    """Return what ``read`` sets: one variable, or one array, to the fields of the first line."""
    line = text.partition("\n")[0].strip("".join(sign for sign in separators if sign.isspace()))
    most = 0 if is_array else len(names) - 1
    cut = f"[{re.escape(separators)}]" + ("+" if separators.isspace() else "")
    is_whole = not separators or (most == 0 and not is_array)
    fields = [line] if is_whole else re.split(cut, line, maxsplit=most)
    if is_array:
        return {names[0]: tuple(map(Word, fields))}
    fields += [""] * (len(names) - len(fields))
    return {name: (Word(one),) for name, one in zip(names, fields, strict=True)}
