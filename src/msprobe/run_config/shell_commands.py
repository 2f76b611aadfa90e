# SPDX-License-Identifier: Apache-2.0
"""Commands of a shell script that start no training: which of them may change one all the same."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

from msprobe.run_config.command_options import Arguments, options_of
from msprobe.run_config.launches import SHELLS, find_launch
from msprobe.run_config.shell_variables import Word
from msprobe.run_config.shell_words import text_of

if TYPE_CHECKING:
    from tree_sitter import Node

# They show something, or wait. What writes files only does so with others than results.
_WITHOUT_EFFECT: Final = frozenset(
    (
        *("echo", "printf", "mkdir", "rmdir", "ls", "date", "sleep", "wait", "cat", "head", "tail"),
        *("grep", "egrep", "zgrep", "wc", "sort", "uniq", "cut", "tr", "which", "type", "hash"),
        *("nvidia-smi", "npu-smi", "rocm-smi", "free", "df", "du", "top", "ps", "kill", "pkill"),
        *("killall", "umask", "chmod", "chown", "true", "false", ":", "[", "hostname", "printenv"),
        *("whoami", "id", "uname", "lscpu", "pwd", "clear", "tput", "jobs", "disown", "logger"),
        *("stat", "realpath", "readlink", "basename", "dirname", "seq", "dirs", "tee"),
        *("tensorboard", "mail", "squeue", "scontrol", "sacct", "scancel", "test", "sync", "time"),
        *("command", "nproc", "exit", "return", "less", "ts", "module-info", "lsof", "local"),
    )
)
_MOVE_FILES: Final = ("mv", "cp", "ln", "rsync", "scp", "tar", "zip", "rm", "touch", "tee", "unzip")
_ASKING: Final = {
    **dict.fromkeys(("pip", "pip3"), ("list", "freeze", "show", "check", "--version")),
    "conda": ("info", "list", "env"),
    "wandb": ("login", "sync", "online", "offline"),
    "huggingface-cli": ("login", "whoami"),
    "hf": ("auth",),
    "ray": ("stop", "status"),
    "accelerate": ("env", "test", "estimate-memory"),
    "git": ("rev-parse", "log", "status", "diff", "show", "describe", "fetch", "branch", "config"),
}
_RESULTS: Final = re.compile(
    r"/dev/.*|.*\.(log|out|err|pid|lock|done|txt\.gz)|.*(log|output|result|backup|snapshot|archive|"
    r"tensorboard|wandb|profile).*|(.*/)?(out|runs?|exp|experiments?|save|tmp)(/.*)?",
    re.IGNORECASE,
)
# Commands to a scheduler, in comments.
_DIRECTIVE: Final = re.compile(r"#(SBATCH|PBS|BSUB|COBALT|PJM|\$)\s+(-.*)")
_ONLY_ADMINISTRATION: Final = frozenset(
    (
        *("job-name", "J", "output", "o", "error", "e", "time", "t", "account", "A", "mail-type"),
        *("mail-user", "M", "m", "comment", "begin", "dependency", "d", "requeue", "open-mode"),
        *("chdir", "D", "parsable", "wait", "signal", "W", "u", "B", "N-name", "walltime", "P"),
    )
)
SETS: Final = re.compile(r"[-+][aeEuxvh]*o?|errexit|pipefail|allexport|xtrace|verbose|nounset")
"""Words of ``set`` that are followed, or show something."""
UNREACHED: Final = "unreached"
"""Kind of a statement that a condition over known values skips, and of that condition."""
_TAKE_A_SCRIPT: Final = (*SHELLS, "sbatch", "ssh", "qsub", "salloc")


class Statement(NamedTuple):
    """A part of a script that is compared as text.

    Attributes:
        line: its line.
        name: its kind, such as ``command.module`` or ``loop``.
        text: its source, without comments and needless blanks, and the values in it.
    """

    line: int
    name: str
    text: str


def changes_something(words: Sequence[Word]) -> bool:
    """Return whether a command that starts no training may change what a training computes."""
    name = PurePath(words[0].text).name
    next_word = words[1].text if len(words) > 1 else ""
    if name.startswith("python") and next_word in ("-c", "-V", "--version"):
        return False
    if name == "env" and not next_word:
        return False
    if name in _MOVE_FILES:
        places = [word.text for word in words[1:] if not word.text.startswith("-")]
        return not (places and writes_results(places[-1]))
    return name not in _WITHOUT_EFFECT and next_word not in _ASKING.get(name, ())


def is_without_effect(words: Sequence[str]) -> bool:
    """Return whether a command only shows something or waits, or moves results."""
    given = [*map(Word, words)]
    return find_launch(given, 0) is None and not changes_something(given)


def writes_results(file: str) -> bool:
    """Return whether a file that a script writes is a log or another result by its name."""
    return _RESULTS.fullmatch(file) is not None


def directive(comment: str) -> Arguments:
    """Return what a comment asks of the scheduler: ``#SBATCH --nodes=2``; mostly nothing."""
    found = _DIRECTIVE.match(comment)
    if found is None:
        return {}
    try:
        words = shlex.split(found[2], comments=True)
    except ValueError:
        words = found[2].split()
    program = {"$": "qsub"}.get(found[1], found[1].lower())
    return {
        f"{program}.{name}": value
        for name, value in options_of(words).arguments.items()
        if name not in _ONLY_ADMINISTRATION
    }


def reads_script(body: Node) -> bool:
    """Return whether a command runs the script that it is given as its input."""
    words = text_of(body).split()
    ends = [word.rpartition("/")[2] for word in (*words[:1], *words[-1:])]
    return any(name in _TAKE_A_SCRIPT for name in ends)


def are_apart(command: Node, assignments: Sequence[Node], name: Node) -> bool:
    """Return whether assignments are statements of their own.

    The grammar joins several of them on one line with the command on the next.
    """
    if not assignments:
        return False
    begin, end = (each - command.start_byte for each in (assignments[-1].end_byte, name.start_byte))
    between = (command.text or b"")[begin:end]
    return b"\n" in between.replace(b"\\\n", b"")


def first_error(root: Node) -> int:
    """Return the first line that the grammar does not understand."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.type == "ERROR" or node.is_missing:
            return node.start_point[0] + 1
        waiting += [child for child in reversed(node.children) if child.has_error]
    return 1
