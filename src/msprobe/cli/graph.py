# SPDX-License-Identifier: Apache-2.0
"""`msprobe graph`: the model as it ran, as a graph."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msprobe.cli.options import add_output, add_ranks, add_steps, port_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msprobe.graph.merging import Layout
    from msprobe.graph.source import PieceSource
    from msprobe.graph.sources import GraphSet

_EXAMPLES: Final = """\
examples:
  msprobe graph dump                                      one recording, as a page to open or mail
  msprobe graph new old -o graph.html                     two, with what differs at its place
  msprobe graph new old --serve                           the same from a local server: large runs
  msprobe graph new old -o graph.vis.db                   for the TensorBoard plugin
  msprobe graph compare_20260131.vis.db --export dot      a file of graphs in another form
  msprobe graph -i compare.json -o DIR                    as mindstudio-probe has it
"""
_SUFFIXES: Final = {
    "html": ".html",
    "json": ".json",
    "vis.db": ".vis.db",
    "model-explorer": ".json",
    "dot": ".dot",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command and add its options."""
    parser.description = (
        "Write the model as it ran as a graph: modules with the calls inside them, and the values "
        "between these; with a REFERENCE, also what differs, at the node where it begins."
    )
    parser.epilog = _EXAMPLES
    parser.usage = "msprobe graph TARGET [REFERENCE] [options]"
    parser.add_argument(
        "dumps", nargs="*", metavar="TARGET REFERENCE", help="a dump, and the trusted one"
    )
    parser.add_argument(
        "-i", "--input-path", type=Path, metavar="FILE", help="compare.json with both paths"
    )
    add_output(parser, "the file to write, or its folder", metavar="PATH")
    parser.add_argument(
        "--export",
        choices=_SUFFIXES,
        metavar="FORMAT",
        help=f"{', '.join(_SUFFIXES)}; default: by the name of the file, else html; vis.db with -i",
    )
    parser.add_argument(
        "--serve", action="store_true", help="show the page from a local server until Ctrl-C"
    )
    parser.add_argument(
        "--port", type=port_number, default=0, metavar="N", help="port of the server; default: any"
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="only print the address of the server"
    )
    parser.add_argument(
        "--propose-mapping",
        type=Path,
        metavar="FILE",
        help="also write the renamed modules that were paired, as a file for -lm",
    )
    add_steps(parser)
    add_ranks(parser)
    add_shared_options(parser, "-f")


def add_shared_options(parser: argparse.ArgumentParser, fuzzy: str) -> None:
    """Add the options that `msprobe graph-visualize` has, too."""
    parser.add_argument(
        *("-lm", "--layer-mapping"),
        nargs="?",
        const="",
        metavar="FILE",
        help="match by names; FILE has renamed children by class of layer",
    )
    parser.add_argument(
        "--pairs",
        type=Path,
        metavar="FILE",
        help="calls that are the same, with all that is in them, as the page saves them",
    )
    parser.add_argument(
        "-oc", "--overflow-check", action="store_true", help="grade calls that met NaN or Inf"
    )
    parser.add_argument(
        fuzzy,
        "--fuzzy-match",
        action="store_true",
        help="align all calls by order and similarity, not only where their numbers differ",
    )
    parser.add_argument(
        "-cs", "--complete-stack", action="store_true", help="accepted: stacks are always complete"
    )


def run(options: argparse.Namespace) -> int:
    """Build the graphs, write them, and say where."""
    from msprobe.errors import UsageError

    target, reference, layouts = _paths(options)
    if target is None:
        raise UsageError("give a dump, or two, or -i compare.json")
    if layouts:
        from msprobe.graph.merging import merged_dumps

        with merged_dumps(target, reference, layouts) as merged:
            return _show(*merged, options)
    return _show(target, reference, options)


def _show(target: Path, reference: Path | None, options: argparse.Namespace) -> int:
    """Serve or write the graphs."""
    if options.serve:
        return _serve(target, reference, options)
    graphs = open_compared(target, reference, options)
    if options.propose_mapping is not None:
        print(_write_mapping(graphs, options.propose_mapping))
    export, path = _output(options, graphs)
    for file in write_graphs(graphs, path, export, overflow=options.overflow_check):
        print(file)
    return 0


def _write_mapping(graphs: GraphSet, path: Path) -> Path:
    """Write the layer mapping that the pairs of a comparison amount to."""
    from msprobe.compare.matching.proposed_layers import proposed_layers
    from msprobe.errors import UsageError
    from msprobe.files import write_report

    if graphs.result is None:
        raise UsageError("--propose-mapping needs two dumps with values")
    pairs = (pair for each in graphs.result.comparisons for pair in each.pairs)
    return write_report(path, proposed_layers(pairs))


def _serve(target: Path, reference: Path | None, options: argparse.Namespace) -> int:
    """Show the page from a local server until Ctrl-C."""
    import threading

    from msprobe.report.graph_server import serve_graphs

    def opened() -> PieceSource:
        source = _opened_pieces(target, reference, options)
        threading.Thread(target=source.prepare, daemon=True).start()
        return source

    serve_graphs(
        opened,
        stamp=lambda: [_stamp(path) for path in (target, reference) if path is not None],
        port=options.port,
        open_browser=not options.no_browser,
        started=lambda url: print(f"{url}   (Ctrl-C ends it)", flush=True),
    )
    return 0


def _opened_pieces(
    target: Path, reference: Path | None, options: argparse.Namespace
) -> PieceSource:
    """Return the graphs by the piece; of a large file without reading all of it."""
    from msprobe.graph.source import source_of
    from msprobe.graph.stored import open_pieces
    from msprobe.graph.vis_reader import is_database

    pieces = open_pieces(target) if reference is None and is_database(target) else None
    return pieces or source_of(open_compared(target, reference, options))


def _stamp(path: Path) -> list[tuple[str, int, int]]:
    """Return names, times and sizes of the files that change when a recording is rewritten."""
    from msprobe.dump.layout import DUMP_JSON

    files = sorted(path.rglob(DUMP_JSON)) if path.is_dir() else [path]
    return [(str(file), stat.st_mtime_ns, stat.st_size) for file in files for stat in [file.stat()]]


def open_compared(target: Path, reference: Path | None, options: argparse.Namespace) -> GraphSet:
    """Return the graphs that the options ask for."""
    from msprobe.compare.options import CompareOptions
    from msprobe.graph.sources import open_graphs

    mapping = options.layer_mapping
    return open_graphs(
        target,
        reference,
        steps=getattr(options, "step", None),
        ranks=getattr(options, "rank", None),
        overflow=options.overflow_check,
        options=CompareOptions(
            align="always" if options.fuzzy_match else "auto",
            layer_mapping=Path(mapping) if mapping else None,
            call_pairs=options.pairs,
        ),
    )


def _paths(
    options: argparse.Namespace,
) -> tuple[Path | None, Path | None, Sequence[Layout]]:
    """Return the dump, its reference, and how their ranks are merged, if they are."""
    from msprobe.errors import UsageError

    if len(options.dumps) > 2 or (options.dumps and options.input_path is not None):
        raise UsageError("give one dump, or a dump and its reference, or -i")
    if options.input_path is not None:
        from msprobe.graph.input_file import read_graph_input

        found = read_graph_input(options.input_path)
        return found.target, found.reference, found.layouts
    paths = [Path(each) for each in options.dumps]
    return (paths[0] if paths else None), (paths[1] if len(paths) > 1 else None), ()


def _output(options: argparse.Namespace, graphs: GraphSet) -> tuple[str, Path]:
    """Return format and path of the file to write."""
    from msprobe.errors import UsageError
    from msprobe.graph.vis_writer import vis_name

    path: Path = options.output or Path()
    endings = (form for form, suffix in _SUFFIXES.items() if path.name.endswith(suffix))
    usual = "html" if options.input_path is None else "vis.db"
    export = options.export or next(endings, usual)
    if path.name.endswith(_SUFFIXES[export]):
        return export, path
    if path.suffix[1:].isalpha() and not path.is_dir():
        raise UsageError(f"{path}: the name has to end with {_SUFFIXES[export]}, or be a folder's")
    return export, path / (vis_name(graphs).removesuffix(".vis.db") + _SUFFIXES[export])


def write_graphs(graphs: GraphSet, path: Path, export: str, *, overflow: bool) -> Sequence[Path]:
    """Write graphs in one of the formats; return the files."""
    if export == "html":
        from msprobe.graph.one_page import comparison_sections
        from msprobe.graph.page_json import whole
        from msprobe.report.graph_page import write_graph_page

        return [write_graph_page(path, whole(graphs), comparison_sections(graphs))]
    if export == "vis.db":
        from msprobe.graph.vis_writer import write_vis_db

        return [write_vis_db(path, graphs, overflow=overflow)]
    if export == "model-explorer":
        from msprobe.graph.exports import write_model_explorer

        return write_model_explorer(path, graphs)
    if export == "dot":
        from msprobe.graph.exports import write_dot

        return [write_dot(path, graphs)]
    import json

    from msprobe.files import write_report
    from msprobe.graph.page_json import whole

    text = json.dumps(whole(graphs), allow_nan=False, separators=(",", ":"))
    return [write_report(path, text)]
