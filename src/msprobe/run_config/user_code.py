# SPDX-License-Identifier: Apache-2.0
"""The user's own code: the folder of the script, its loaded files, and its state in git."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msprobe.dump.records import JsonTree

_TIMEOUT_S: Final = 10.0
_MAX_TEXT: Final = 4000
_MAX_FILE_BYTES: Final = 8 << 20
_OWN_FOLDER: Final = str(Path(__file__).resolve().parents[1])
_MAX_FILES: Final = 2000
_NO_CODE: Final = ("venv", "node_modules", "site-packages", "__pycache__", "build", "dist")
_LIBRARY_FOLDERS: Final = ("site-packages", "dist-packages")


def script_folder() -> Path:
    """Return the folder of the script that runs; the current one if a library's program runs."""
    script = _users_file("__main__")
    return Path.cwd() if script is None else script.parent


def is_users_module(name: str) -> bool:
    """Return whether a module is the script, or lies in its folder."""
    path = _users_file(name)
    return path is not None and (name == "__main__" or path.is_relative_to(script_folder()))


def collect_user_code(folder: Path | None = None) -> dict[str, str]:
    """Return the state of the user's code: a digest of each loaded file, commit and changes.

    Runs ``git``, for 10 s at most a call.

    Args:
        folder: where the code lies; None for the script's folder.
    """
    folder = script_folder() if folder is None else folder
    begin = f"{folder}".rstrip(os.sep) + os.sep
    found = {}
    for path in filter(None, map(_users_file, list(sys.modules))):
        if str(path).startswith(begin):
            found[f"code.{str(path).removeprefix(begin)}"] = _digest_of(path)
    return {**{name: found[name] for name in sorted(found) if found[name]}, **_git(folder)}


def launched_code(arguments: Mapping[str, JsonTree], files: Sequence[Path]) -> dict[str, str]:
    """Return a digest of each Python file in the folders of the programs that scripts start.

    Args:
        arguments: those of the scripts; ``script`` is a program.
        files: the scripts, beside which relative paths start as well.
    """
    found: dict[str, str] = {}
    for name, value in arguments.items():
        if name.rpartition(":")[2] != "script":
            continue
        for folder in (Path(), *(file.parent for file in files)):
            program = folder / str(value)
            if program.suffix == ".py" and program.is_file():
                for path in _python_files(program.parent):
                    found.setdefault(f"code.{path.relative_to(program.parent)}", _digest_of(path))
                break
    return {name: digest for name, digest in found.items() if digest}


def _python_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files in a folder, without those of hidden folders and environments."""
    count = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if one[0] != "." and one not in _NO_CODE)
        for name in sorted(name for name in names if name.endswith(".py")):
            count += 1
            if count > _MAX_FILES:
                return
            yield Path(place, name)


def _users_file(name: str) -> Path | None:
    text = getattr(sys.modules.get(name), "__file__", None)
    return _users_path(text) if isinstance(text, str) else None


@functools.lru_cache(1 << 14)
def _users_path(text: str) -> Path | None:
    """Return the path of a module's file unless it is a library's; thousands are loaded."""
    if text.startswith((sys.prefix, sys.base_prefix, _OWN_FOLDER)):
        return None
    path = Path(text).absolute()
    is_library = any(part in _LIBRARY_FOLDERS for part in path.parts)
    return None if is_library or path.suffix != ".py" else path


def _has_repository(folder: Path) -> bool:
    """Look where git does; to start it for nothing takes longer, the larger this process is."""
    named = os.environ.get("GIT_DIR")
    if named is not None:
        return named != os.devnull
    place = folder.resolve()
    return any((one / ".git").exists() for one in (place, *place.parents))


def _git(folder: Path) -> dict[str, str]:
    if not _has_repository(folder):
        return {}
    head = output_of(["git", "-C", str(folder), "rev-parse", "HEAD", "--abbrev-ref", "HEAD"])
    if not head:
        return {}
    commit, branch = head.split()
    changes = output_of(["git", "-C", str(folder), "status", "--porcelain", "-uno"])
    found = {"git.commit": commit, "git.branch": branch, "git.changes": changes or "none"}
    if changes:
        # What was changed, not only where.
        difference = output_of(["git", "-C", str(folder), "diff", "HEAD"], limit=_MAX_FILE_BYTES)
        found["git.diff"] = _digest(difference.encode(errors="surrogateescape"))
    return found


def output_of(command: list[str], *, limit: int = _MAX_TEXT) -> str:
    """Return the output of a program; empty if it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()[:limit] if done.returncode == 0 else ""


def _digest_of(path: Path) -> str:
    try:
        state = path.stat()
        if state.st_size > _MAX_FILE_BYTES:
            return ""
        return _digest_of_state(path, state.st_ino, state.st_size, state.st_mtime_ns)
    except OSError:
        return ""


@functools.lru_cache(_MAX_FILES)
def _digest_of_state(path: Path, *_state: int) -> str:
    """Return the digest of a file; each recording of a process asks for the same files."""
    return _digest(path.read_bytes())


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
