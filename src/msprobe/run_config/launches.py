# SPDX-License-Identifier: Apache-2.0
"""Commands that start a training: the program that starts it, its script, the options of both."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import PurePath
from typing import Final

from msprobe.run_config.command_options import BLANK, Arguments, options_of
from msprobe.run_config.shell_variables import Word
from msprobe.run_config.shell_words import as_mapping

SHELLS: Final = frozenset(("bash", "sh", "zsh", "dash", "ksh"))
_PYTHON: Final = re.compile(r"(python|pypy)[\d.]*")
_LAUNCHERS: Final = frozenset(
    (
        *("torchrun", "msrun", "deepspeed", "accelerate", "colossalai"),
        *("composer", "fabric", "lightning"),
    )
)
# Modules that start the script that follows them.
_LAUNCH_MODULES: Final = frozenset(
    (
        *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
        *("deepspeed.launcher.runner", "paddle.distributed.launch"),
    )
)
# Programs that run the command that follows them.
_WRAPPERS: Final = frozenset(
    (
        *("env", "exec", "nohup", "time", "nice", "ionice", "sudo", "setsid", "stdbuf", "timeout"),
        *("numactl", "taskset", "command", "caffeinate", "xvfb-run", "unbuffer", "ssh", "pdsh"),
        *("srun", "mpirun", "mpiexec", "jsrun", "aprun", "horovodrun", "uv", "poetry", "pipenv"),
        *("conda", "mamba", "micromamba", "pixi", "hatch", "rye", "singularity", "apptainer"),
        *("docker", "podman", "nerdctl", "enroot", "nsys", "ncu", "perf", "py-spy", "viztracer"),
        *("ray", "sbatch", "salloc", "pdm", "flock", "dotenv"),
    )
)
# Programs that give a text to a shell.
_TAKE_A_TEXT: Final = frozenset(("ssh", "pdsh", "sbatch", "tmux", "screen", "watch", "parallel"))
# Modules that train nothing.
_TOOLS: Final = (
    "pip",
    "venv",
    "ensurepip",
    "json.tool",
    "http.server",
    "site",
    "torch.utils.collect_env",
)
# What trainers with a command line of their own are told first: ``llamafactory-cli train a.yaml``.
_VERBS: Final = frozenset(
    (
        *("train", "pretrain", "finetune", "fine-tune", "sft", "dpo", "grpo", "kto", "ppo", "rlhf"),
        *("pt", "orpo", "reward", "distill"),
    )
)
_PROGRAMS: Final = frozenset(
    (
        *(_LAUNCHERS | _WRAPPERS | SHELLS | _TAKE_A_TEXT | _VERBS),
        *("cd", "pushd", "popd", "export", "source", "eval", "exit", "return", "break", "continue"),
        *("set", "shift", "read", "local", "declare", "unset", "trap", "echo", "if", "then", "fi"),
        *("for", "in", "do", "done", "while", "else", "case", "esac", *_LAUNCH_MODULES),
    )
)
_PYTHON_FLAGS: Final = re.compile(r"-[uOBsSEIqvd]+")
_PYTHON_FLAGS_WITH_VALUE: Final = ("-W", "-X")
_COMMAND_FLAG: Final = re.compile(r"-[a-z]*c")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command that starts a training.

    Attributes:
        line: its line in the script.
        script: the Python script or module.
        arguments: options of the program that starts it, and of the script.
        doubts: why the value of an argument is not known for sure, by its name.
        programs: names of the programs that start it, one through the other.
        files: what the files hold that the script has written for it, by the argument.
    """

    line: int
    script: str
    arguments: Arguments
    doubts: dict[str, tuple[str, ...]]
    programs: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InnerScript:
    """A shell script inside a command.

    Attributes:
        text: the text behind ``-c``; None if it is a file.
        file: the file.
        arguments: what the script is given.
        wrapper: options of the program that runs the shell.
        name: what it has as ``$0``; None if that is not said.
        programs: names of the programs that start it, one through the other.
    """

    text: Word | None
    file: str = ""
    arguments: tuple[Word, ...] = ()
    wrapper: Arguments = field(default_factory=dict)
    name: Word | None = None
    programs: str = ""


def find_launch(
    words: Sequence[Word], line: int, given: Word | None = None
) -> Launch | InnerScript | None:
    """Return what a command starts: a training, another shell script, or neither.

    Args:
        words: the command.
        line: its line.
        given: a text that it reads as its input.
    """
    start = _start(words)
    found = _started(words, start, line, given) if start is not None else None
    if start is None:
        found = _of_trainer(words, line) or _quoted(words)
    return found and replace(found, programs=_programs(words, start))


def _programs(words: Sequence[Word], start: int | None) -> str:
    """Return the names and flags that say how a training is started, beside its arguments."""
    names = [PurePath(word.text).name for word in words]
    before = [one for one in names[:start] if one in _WRAPPERS and one != "env"]
    before += ["--"] * any(word.text == "--" for word in words)
    if start is None:
        return " ".join(before)
    texts = [word.text for word in words[start + 1 :]]
    is_interpreter = names[start] in SHELLS or _PYTHON.fullmatch(names[start])
    flags = [*takewhile(lambda text: text[:1] in ("-", "+"), texts)] if is_interpreter else []
    is_plain = names[start] in ("python", "python3", "torchrun", "bash")
    own = [one for one in flags if one not in ("-c", "-m", "-")]
    return " ".join((*before, *([] if is_plain else names[start : start + 1]), *own))


def _started(
    words: Sequence[Word], start: int, line: int, given: Word | None
) -> Launch | InnerScript | None:
    program, rest = PurePath(words[start].text).name, words[start + 1 :]
    if program in SHELLS:
        inner = _inner(rest)
        return None if inner is None else replace(inner, wrapper=_of_wrapper(words[:start]))
    if program.endswith(".sh"):
        return InnerScript(None, words[start].text, tuple(rest), _of_wrapper(words[:start]))
    how: Arguments = {}
    if program == "accelerate":
        if not rest or rest[0].text != "launch":
            return None
        rest = rest[1:]
        how = {"launcher": program}
    elif _PYTHON.fullmatch(program):
        rest, how = _without_python_flags(rest)
        if not rest or rest[0].text in ("-", "-c"):
            return _inline(words[:start], rest, line, given)
    elif program != "torchrun":
        how = {"launcher": program}
    found = _launch(words[:start], rest, line)
    if found is None:
        return None
    found = replace(found, arguments=found.arguments | how)
    return found if given is None else _with_text(found, "stdin", given)


def is_program(name: str) -> bool:
    """Return whether a word names a program by which a training is found."""
    return name in _PROGRAMS or _PYTHON.fullmatch(name) is not None


def _start(words: Sequence[Word]) -> int | None:
    """Return the place of the program that starts a script, behind those that wrap it."""
    for place, word in enumerate(words):
        name = PurePath(word.text).name
        is_script = name.endswith(".sh") and not word.text.startswith("-") and "=" not in word.text
        is_program = name in _LAUNCHERS or name in SHELLS or is_script
        if is_program or _PYTHON.fullmatch(name):
            return place
        is_wrapper = name in _WRAPPERS or _ASSIGNMENT.fullmatch(word.text)
        if place == 0 and not is_wrapper:
            return None
    return None


def _of_trainer(words: Sequence[Word], line: int) -> Launch | None:
    """Return a training that a program starts by itself, which is told so by its first word."""
    place = next((at for at, word in enumerate(words) if word.text in _VERBS), 0)
    before = words[: max(place - 1, 0)]
    is_run = not before or PurePath(before[0].text).name in _WRAPPERS
    if not place or not is_run or words[place - 1].text == "activate":  # conda activate train
        return None
    name = " ".join((PurePath(words[place - 1].text).name, words[place].text))
    program = words[place - 1]._replace(text=name)
    return _as_launch(before, program, words[place + 1 :], line)


def _quoted(words: Sequence[Word]) -> InnerScript | None:
    """Return the command that another machine is given as one word: ``ssh HOST "python t.py"``."""
    if not words or PurePath(words[0].text).name not in _TAKE_A_TEXT:
        return None
    text = next((word for word in words[:0:-1] if " " in word.text.strip()), None)
    rest = [word for word in words if word is not text]
    return None if text is None else InnerScript(text, wrapper=_of_wrapper(rest))


def _inner(rest: Sequence[Word]) -> InnerScript | None:
    for place, word in enumerate(rest):
        if _COMMAND_FLAG.fullmatch(word.text):
            text = rest[place + 1] if place + 1 < len(rest) else None
            name = rest[place + 2] if len(rest) > place + 2 else None
            given = tuple(rest[place + 3 :])
            return None if text is None else InnerScript(text, arguments=given, name=name)
        if not word.text.startswith(("-", "+")):
            return InnerScript(None, word.text, tuple(rest[place + 1 :]))
    return None


def _without_python_flags(words: Sequence[Word]) -> tuple[Sequence[Word], Arguments]:
    """Return what Python runs, and its own flags and the launcher that it starts it with."""
    place, how = 0, Arguments()
    while place < len(words):
        flag = words[place].text
        if flag in _PYTHON_FLAGS_WITH_VALUE:
            how[f"python.{flag[1:]}"] = words[place + 1].text if place + 1 < len(words) else ""
            place += 2
        elif _PYTHON_FLAGS.fullmatch(flag):
            how |= {"python.O": True} if "O" in flag else {}
            place += 1
        else:
            break
    words = words[place:]
    module = words[1].text if len(words) > 1 and words[0].text == "-m" else ""
    if module not in _LAUNCH_MODULES:
        return words, how
    launcher = module.split(".")[0]
    return words[2:], how | ({"launcher": launcher} if launcher != "torch" else {})


def _inline(
    before: Sequence[Word], rest: Sequence[Word], line: int, given: Word | None
) -> Launch | None:
    """Return the code that Python is given as a text; None for code that only shows something."""
    is_option = bool(rest) and rest[0].text == "-c"
    code = (rest[1] if len(rest) > 1 else None) if is_option else given
    if code is None or _only_shows(code.text):
        return None
    script, others = ("-c", rest[2:]) if is_option else ("-", rest[1:])
    options = options_of([word.text for word in others]).arguments
    arguments: Arguments = {"script": script, **options, **_of_wrapper(before)}
    found = Launch(line=line, script=script, arguments=arguments, doubts={})
    return _with_text(found, "code", code)


def _with_text(launch: Launch, name: str, text: Word) -> Launch:
    doubts = launch.doubts | ({name: text.doubts} if text.doubts else {})
    return replace(launch, arguments=launch.arguments | {name: text.text}, doubts=doubts)


def _only_shows(code: str) -> bool:
    """Return whether Python code only imports, checks and prints."""
    try:
        statements = ast.parse(code).body
    except (SyntaxError, ValueError):
        return False
    return all(
        isinstance(one, (ast.Import, ast.ImportFrom, ast.Assert))
        or (isinstance(one, ast.Expr) and ast.unparse(one).startswith("print("))
        for one in statements
    )


def _launch(before: Sequence[Word], rest: Sequence[Word], line: int) -> Launch | None:
    texts = [word.text for word in rest]
    script, arguments = "", options_of(texts)
    if "-m" in texts and not arguments.script:
        place = texts.index("-m")
        script = texts[place + 1] if place + 1 < len(texts) else ""
        arguments = options_of([*texts[:place], *texts[place + 2 :]])
    script = script or arguments.script
    if not script or script in _TOOLS:
        return None
    return _as_launch(before, Word(script), rest, line, arguments.arguments)


def _as_launch(
    before: Sequence[Word],
    program: Word,
    rest: Sequence[Word],
    line: int,
    arguments: Arguments | None = None,
) -> Launch:
    script = program.text
    if arguments is None:
        arguments = options_of([word.text for word in rest]).arguments
    found: Arguments = {"script": script, **arguments, **_of_wrapper(before)}
    doubts = as_mapping((*before, *rest))
    doubtful = {name: _doubts_of(value, doubts) for name, value in found.items()}
    return Launch(
        line=line,
        script=script,
        arguments=found,
        doubts={name: reasons for name, reasons in doubtful.items() if reasons},
    )


def _of_wrapper(words: Sequence[Word]) -> Arguments:
    """Return the options of a program that runs another one, under its name."""
    if not words:
        return {}
    is_assignment = _ASSIGNMENT.fullmatch(words[0].text) is not None  # as ``eval "A=1 python"`` has
    name = "env" if is_assignment else PurePath(words[0].text).name
    texts = (word.text for word in words[0 if is_assignment else 1 :])
    # Programs of this kind take --nodes=2 and --nodes 2 alike.
    parts = [part for text in texts for part in text.split("=", text.startswith("--"))]
    options = options_of(parts).arguments
    return {f"{name}.{key}": value for key, value in options.items()}


def _doubts_of(
    value: str | bool | list[str], doubts: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [str(value)]
    found = (
        reason
        for text, reasons in doubts.items()
        if any(one and (text == one or text.endswith(_ends(one))) for one in values)
        for reason in reasons
    )
    return tuple(dict.fromkeys(found))


def _ends(value: str) -> tuple[str, ...]:
    """Return the ends that words have in which an option has this value."""
    return (f"={value}", *([value.removeprefix("True")] if BLANK in value else []))
