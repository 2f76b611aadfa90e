# SPDX-License-Identifier: Apache-2.0
"""YAML files whose every value knows its line, for messages: mappings, tolerances, matrices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import yaml

from msprobe.errors import ConfigError, ConfigFileError
from msprobe.plain_text import reason

# A mapping of a million rows; larger is no mapping file.
_MAX_FILE_BYTES: Final = 512 << 20
# libyaml is several times faster, where PyYAML was built with it.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL_TAG: Final = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class Node:
    """A piece of a YAML file.

    Attributes:
        path: the file.
        line: where it begins, from 1.
        key: its place in the file, for messages; empty at the top.
    """

    path: Path
    line: int
    key: str
    _node: yaml.Node | None

    @property
    def kind(self) -> str:
        """``mapping``, ``list``, ``text``, ``null``; what a message calls the value."""
        match self._node:
            case yaml.MappingNode():
                return "mapping"
            case yaml.SequenceNode():
                return "list"
            case yaml.ScalarNode(tag=tag) if tag != _NULL_TAG:
                return "text"
            case _:
                return "null"

    def items(self, what: str) -> Iterator[tuple[str, Node, Node]]:
        """Yield key, the key's place, and value of each entry of a mapping, in the file's order.

        Args:
            what: content of the mapping, for the message.

        Raises:
            ConfigError: it is no mapping, or a key occurs twice.
        """
        if not isinstance(self._node, yaml.MappingNode):
            self.refuse(self._shown(), what)
        lines: dict[str, int] = {}
        for key_node, value_node in self._node.value:
            place = self._child(key_node, self.key)
            key = place.text("a name")
            if key in lines:
                again = self._child(key_node, f"{self.key}.{key}" if self.key else key)
                again.refuse("given twice", f"each key once; it is on line {lines[key]} already")
            lines[key] = place.line
            label = f"{self.key}.{key}" if self.key else key
            yield key, place, self._child(value_node, label)

    def elements(self, what: str) -> list[Node]:
        """Return the elements of a list.

        Raises:
            ConfigError: it is none.
        """
        if not isinstance(self._node, yaml.SequenceNode):
            self.refuse(self._shown(), what)
        return [
            self._child(node, f"{self.key}[{place}]") for place, node in enumerate(self._node.value)
        ]

    def text(self, what: str) -> str:
        """Return a plain value as it is written.

        Raises:
            ConfigError: it is a list, a mapping, or nothing.
        """
        if not isinstance(self._node, yaml.ScalarNode) or self._node.tag == _NULL_TAG:
            self.refuse(self._shown(), what)
        text: str = self._node.value
        if not text.strip():
            self.refuse(text, what)
        return text.strip()

    def refuse(self, found: object, allowed: Iterable[str] | str, *, hint: str = "") -> NoReturn:
        """Raise the error that this value cannot be used."""
        rule = allowed if isinstance(allowed, str) else list(allowed)
        raise ConfigError(
            self.key or "the file", found, rule, source=f"{self.path}, line {self.line}", hint=hint
        )

    def _child(self, node: yaml.Node, key: str) -> Node:
        return Node(self.path, node.start_mark.line + 1, key, node)

    def _shown(self) -> object:
        if isinstance(self._node, yaml.ScalarNode) and self._node.tag != _NULL_TAG:
            return self._node.value
        return None if self.kind == "null" else f"a {self.kind}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean …?`` for a word that is nearly a known one; else an empty text."""
    import difflib  # only a faulty file needs it

    found = difflib.get_close_matches(word, list(known), n=1)
    return f'did you mean "{found[0]}"?' if found else ""


def read_yaml(path: Path, *, may_be_empty: bool = False) -> Node:
    """Read a file.

    Args:
        path: the file.
        may_be_empty: whether a file without a value is taken for one of kind ``null``.

    Raises:
        ConfigFileError: it cannot be read, is empty or is no YAML.
    """
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigFileError(path, "is larger than 512 MiB")
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigFileError(path, f"cannot be read: {reason(exc)}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigFileError(path, f"is not UTF-8 text (byte {exc.start})") from exc
    return parse_yaml(text, path, may_be_empty=may_be_empty)


def parse_yaml(text: str, path: Path, *, may_be_empty: bool = False) -> Node:
    """Parse the text of a file; `path` is for messages, see `read_yaml`.

    Raises:
        ConfigFileError: it is empty or no YAML.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        problem = f"not valid YAML: {exc.problem or exc.context or exc}"
        if mark is None:
            raise ConfigFileError(path, problem) from exc
        raise ConfigFileError(path, problem, line=mark.line + 1, column=mark.column + 1) from exc
    except (yaml.YAMLError, RecursionError) as exc:
        raise ConfigFileError(path, f"not valid YAML: {reason(exc)}") from exc
    if node is None and not may_be_empty:
        raise ConfigFileError(path, "is empty")
    return Node(path, 1 if node is None else node.start_mark.line + 1, "", node)
