# SPDX-License-Identifier: Apache-2.0
"""The files that a shell script reads and writes, as far as its text tells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msprobe.run_config.command_options import SETTINGS_FILES
from msprobe.run_config.shell_variables import Word, shown

_MAX_FILE_BYTES: Final = 1 << 20
ITS_OWN_FOLDER: Final = ("$0", "${0", "BASH_SOURCE", "$(pwd)", "$PWD")
"""Parts of words that name the folder of the script, or the present one."""
_BEHIND_IT: Final = re.compile(r"[)}]|\$0|\$PWD")


class ScriptFiles:
    """Files of a script, and the folder that it is in.

    Args:
        folder: where files are looked for at first.

    Attributes:
        written: texts of files that it writes, by the names that it has for them.
        folder: the name of the one that it went to; empty if it went to none, or its own.
    """

    def __init__(self, folder: Path) -> None:
        self.written: dict[str, str] = {}
        self.folder = ""
        self._folder = self._present = folder
        self._places: list[tuple[str, Path]] = []

    @property
    def place(self) -> tuple[str, Path]:
        """The folder that the script is in: its name, and where it is."""
        return self.folder, self._present

    @place.setter
    def place(self, place: tuple[str, Path]) -> None:
        self.folder, self._present = place

    def change_folder(self, words: Sequence[Word]) -> None:
        """Follow ``cd``, ``pushd`` or ``popd``; the first word says which."""
        if words[0].text == "popd":
            self.place = self._places.pop() if self._places else self.place
            return
        if words[0].text == "pushd":
            self._places.append(self.place)
        words = words[1:]
        # Many scripts go where they lie, or to a folder of another machine: then it stays.
        text = shown(words[-1].text).rstrip("/") if words else ""
        if any(part in text for part in ITS_OWN_FOLDER):
            self.folder = _BEHIND_IT.split(text)[-1].strip("/") or self.folder
        elif text:
            # Above it the folders of two machines have names of their own.
            self.folder = text.rpartition("/")[2] if text.startswith(("/", "~", "$")) else text
        path = self._present / text if text else self._folder
        try:
            self._present = path if path.is_dir() else self._present
        except (OSError, ValueError):
            return

    def content(self, name: str) -> str | None:
        """Return the text of a file that the script writes, or that lies there; else None."""
        if name in self.written:
            return self.written[name]
        for path in (self._present / name, self._folder / name):
            try:
                if path.is_file() and path.stat().st_size <= _MAX_FILE_BYTES:
                    return path.read_text(errors="replace")
            except (OSError, ValueError):
                pass
        return None

    def write(self, name: str, text: str, *, appends: bool = False) -> None:
        """Write a file, or append to it."""
        before = (self.written.get(name) or self.content(name) or "") if appends else ""
        self.written[name] = before + text

    def copy(self, words: Sequence[Word]) -> None:
        """Follow ``cp``, ``ln`` or ``mv`` of a file of settings to another name."""
        names = [word.text for word in words if not word.text.startswith("-")]
        text = self.content(names[0]) if len(names) == 2 else None
        if text is not None and names[0].endswith(SETTINGS_FILES):
            self.write(names[1], text)
