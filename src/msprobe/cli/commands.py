# SPDX-License-Identifier: Apache-2.0
"""`COMMANDS`: the table of all commands, in the order of `msprobe --help`.

A command is a module with two functions: ``add_options(parser)``, which also sets the description
and the examples, and ``run(options)``, which returns the exit code. It is imported only when used.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, cast


class Group(StrEnum):
    """The headings of `msprobe --help`."""

    RECORD = "record"
    LOOK = "look"
    COMPARE = "compare"
    CHECK = "check"
    WATCH = "watch"
    CONVERT = "convert"
    COMPATIBILITY = "compatibility"


class CommandModule(Protocol):
    """The contract of a command's module."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Describe the command and add its options."""

    def run(self, options: argparse.Namespace) -> int | Callable[[], int]:
        """Return the exit code, or a function that runs a program of the user's and returns it."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        name: with hyphens; two words for a command below another one, as in ``monitor show``.
        group: its heading in the help.
        help: its line there.
        aliases: further names. All names are accepted with underscores for hyphens, too.
        module: its module in `msprobe.cli`; empty if it is called like the command.
        takes_program: whether the first word that is no option begins the command line of
            another program, which nothing is taken from.
    """

    name: str
    group: Group
    help: str
    aliases: tuple[str, ...] = ()
    module: str = ""
    takes_program: bool = False

    def names(self) -> Iterator[str]:
        """Return all names that are accepted, each once."""
        given = (self.name, *self.aliases)
        yield from dict.fromkeys((*given, *(name.replace("-", "_") for name in given)))

    def load(self) -> CommandModule:
        """Import and return its module."""
        from importlib import import_module

        name = self.module or self.name.replace("-", "_").replace(" ", "_")
        return cast("CommandModule", import_module(f"msprobe.cli.{name}"))


COMMANDS: Final = (
    Command(
        "run",
        Group.RECORD,
        "run a training script and record it; nothing in it is changed",
        takes_program=True,
    ),
    Command(
        "estimate",
        Group.RECORD,
        "measure what recording a script costs: records, time, disk",
        takes_program=True,
    ),
    Command("attach", Group.RECORD, "have a running program record its next steps"),
    Command("keep", Group.RECORD, "protect a recording from being replaced by a later run"),
    Command("show", Group.LOOK, "look into a dump: overview, tree of calls, one record in detail"),
    Command("graph", Group.LOOK, "show the model as it ran as a graph, alone or beside another"),
    Command("compare", Group.COMPARE, "compare two dumps: where they differ, which call began it"),
    Command("triage", Group.COMPARE, "find out why two runs part, the cheapest question first"),
    Command("bisect", Group.COMPARE, "find the step in which two finished runs part"),
    Command("compare-ckpt", Group.COMPARE, "compare two checkpoints: added, removed, changed"),
    Command(
        "config-check",
        Group.COMPARE,
        "collect what a run was started with, or compare two such collections",
    ),
    Command(
        "overflow-check",
        Group.CHECK,
        "find where NaN and Inf begin in a dump, across ranks",
        aliases=("nan-analyze",),  # its name in mindstudio-probe 8
    ),
    Command(
        "determinism",
        Group.CHECK,
        "run a script twice: is it deterministic, and if not, which call is the first",
        takes_program=True,
    ),
    Command("verify", Group.CHECK, "judge every call of one dump against float64"),
    Command("perturb", Group.CHECK, "rank the calls of one dump by how they magnify rounding"),
    Command("noise", Group.CHECK, "how many digits of each value can be trusted"),
    Command("op-script", Group.CHECK, "write a recorded call as a script for a bug report"),
    Command(
        "acc-check",
        Group.CHECK,
        "run every recorded API again on a device, against float64 on the CPU",
        aliases=("run-ut",),  # its name in the documents
    ),
    Command(
        "multi-acc-check",
        Group.CHECK,
        "the same in several processes",
        aliases=("multi-run-ut",),
    ),
    Command("online-keys", Group.CHECK, "make the keys with which calls are sent to acc-check"),
    Command(
        "run-overflow-check",
        Group.CHECK,
        "run APIs again and tell unavoidable NaN and Inf from wrong ones",
    ),
    Command(
        "api-precision-compare",
        Group.CHECK,
        "compare the accuracy checks of two devices",
    ),
    Command("dump-config", Group.CHECK, "check the settings of MindSpore's own Dump, explain them"),
    Command("monitor show", Group.WATCH, "incidents and series of a recorded training run"),
    Command("monitor compare", Group.WATCH, "the first step and layer where two runs part"),
    Command("monitor check", Group.WATCH, "a recorded run against the log of its training"),
    Command("monitor view", Group.WATCH, "heat maps and series of runs in the browser"),
    Command("grad-compare", Group.WATCH, "compare gradients that the task grad_probe recorded"),
    Command("repair", Group.CONVERT, "make dump.json & co. of a recording that was killed"),
    Command(
        "data2db",
        Group.CONVERT,
        "write a monitored run as a trend.db, csv, Parquet or TensorBoard files",
    ),
    Command("config-schema", Group.CONVERT, "print the JSON schema of config.json"),
    Command("export", Group.CONVERT, "write the values of a dump as parquet, csv or JSON lines"),
    Command("parse", Group.CONVERT, "convert binary kernel dumps to .npy or .pt files"),
    Command("code-mapping", Group.CONVERT, "join a kernel dump of MindSpore to lines of code"),
    Command(
        "op-generate",
        Group.COMPATIBILITY,
        "write the script of a recorded call that a config_op.json names",
    ),
    Command(
        "graph-visualize",
        Group.COMPATIBILITY,
        "write graphs as .vis.db, with the options of mindstudio-probe",
    ),
    Command("merge-result", Group.COMPATIBILITY, "merge the tables that compare made of ranks"),
)


def names_of_commands() -> dict[str, Command]:
    """Return every accepted name with its command."""
    return {name: command for command in COMMANDS for name in command.names()}
