# SPDX-License-Identifier: Apache-2.0
"""Variables of a shell script, as far as its text tells."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from msprobe.run_config.command_options import BLANK

if TYPE_CHECKING:
    from tree_sitter import Node

MARK: Final = "\ue000"
"""Marks words that are compared as text."""
ALL: Final = ("@", "*")
"""Names of all arguments."""
_MAX_SHOWN: Final = 400


class Word(NamedTuple):
    """A word of a command.

    Attributes:
        text: the word; parts that cannot be known are as the script has them, with `MARK`.
        doubts: why a part of it cannot be known.
    """

    text: str
    doubts: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the text is the one that a shell has."""
        return not self.doubts and MARK not in self.text


@dataclass(slots=True)
class Variables:
    """Variables of a shell, and the arguments of the script or function that runs.

    Attributes:
        values: words by name: one of a plain variable, any number of an array.
        arguments: the words behind ``$1``, ``$2`` …; None where they are not known.
        read: returns the text of a file; None if it is not there.
        own: names that the script sets anywhere.
        functions: bodies of its functions.
        exported: names that the programs are given.
        exports_all: whether that is every one that is set.
        renamed: what variables of loops are called in texts.
        defaults: variables from elsewhere that have a default, or are appended to.
    """

    values: dict[str, tuple[Word, ...]] = field(default_factory=dict)
    arguments: tuple[Word, ...] | None = None
    read: Callable[[str], str | None] = lambda _: None
    own: set[str] = field(default_factory=set)
    functions: dict[str, Node] = field(default_factory=dict)
    exported: dict[str, None] = field(default_factory=dict)
    exports_all: bool = False
    renamed: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, None] = field(default_factory=dict)

    def words(self, name: str) -> tuple[Word, ...] | None:
        """Return the words of a variable or argument; None if they are not known."""
        if name in ALL:
            return self.arguments
        if name.isdigit() and name != "0":
            if self.arguments is None:
                return None
            return self.arguments[int(name) - 1 : int(name)]
        return self.values.get(name)

    @property
    def separators(self) -> str:
        """The pattern of what cuts an expansion into words."""
        found = self.values.get("IFS")
        if not found or not found[0].is_known:
            return r"\s+"
        return f"[{re.escape(found[0].text)}]+" if found[0].text else "(?!)"

    def rename(self, names: Iterable[str]) -> None:
        """Number variables of a loop, whose names change nothing."""
        for name in names:
            if name == "IFS":  # its name is its meaning
                continue
            self.renamed.setdefault(name, f"variable{len(self.renamed) + 1}")

    def copy(self) -> Variables:
        """Return the same, to be changed apart."""
        functions, exported = dict(self.functions), dict(self.exported)
        return replace(self, values=dict(self.values), functions=functions, exported=exported)

    def content(self, file: Word) -> Word | None:
        """Return the text of a file without line breaks at its end; None if it is not there."""
        text = self.read(file.text) if file.is_known else None
        return None if text is None else Word(text.rstrip("\n"))


def shown(text: str) -> str:
    """Return a text as people are shown it."""
    return text.replace(MARK, "").replace(BLANK, " ")


def of_branches(ends: Sequence[Variables], doubts: tuple[str, ...]) -> Variables:
    """Return what is set behind a condition whose branches set different things."""
    found = ends[0].copy()
    for one in ends[1:]:
        found.functions |= one.functions
        found.exported |= one.exported
        found.exports_all |= one.exports_all
    first = ends[0].values
    changed = {
        key for one in ends[1:] for key in one.values if one.values[key] is not first.get(key)
    }
    changed |= {key for one in ends[1:] for key in first if key not in one.values}
    for name in sorted(changed):
        found.values[name] = _alternatives([one.values.get(name, ()) for one in ends], doubts)
    given = [one.arguments for one in ends if one.arguments is not None]
    found.arguments = _alternatives(given, doubts) if len(given) == len(ends) else None
    return found


def _alternatives(values: Sequence[tuple[Word, ...]], doubts: tuple[str, ...]) -> tuple[Word, ...]:
    """Return one value for several: the words that they share, the others with "or" between."""
    first = values[0]
    if all(one == first for one in values):
        return first
    is_plain = all(len(one) < 2 for one in values)
    lists = [
        [*map(Word, words[0].text.split())] if is_plain and words else [*words] for words in values
    ]
    least = min(map(len, lists))
    same = [len({one[at].text for one in lists}) == 1 for at in range(least)]
    start = next((at for at, is_same in enumerate(same) if not is_same), least)
    same = [len({one[-at - 1].text for one in lists}) == 1 for at in range(least - start)]
    end = next((at for at, is_same in enumerate(same) if not is_same), least - start)
    middles = [" ".join(word.text for word in one[start : len(one) - end]) for one in lists]
    texts = dict.fromkeys(text or "nothing" for text in middles)
    text = shortened(" or ".join(texts)).replace(" ", BLANK) + MARK
    doubts += tuple(doubt for words in values for word in words for doubt in word.doubts)
    middle = Word(text, tuple(dict.fromkeys(doubts)))
    found = (*lists[0][:start], middle, *lists[0][len(lists[0]) - end :])
    if not is_plain:
        return found
    return (Word(" ".join(word.text for word in found), middle.doubts),)


def shortened(text: str) -> str:
    """Return a text; of a long one the beginning and a digest."""
    if len(text) <= _MAX_SHOWN:
        return text
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"{text[:_MAX_SHOWN]}… (digest {digest})"
