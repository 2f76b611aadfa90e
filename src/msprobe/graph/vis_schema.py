# SPDX-License-Identifier: Apache-2.0
"""The tables of a ``.vis.db``.

Numbers are stored as numbers, names once. What programs for mindstudio-probe's files ask for, the
table ``tb_nodes`` with everything as text, is a view of these tables. It may be written to: its
triggers keep what was changed, as a pair of nodes matched by hand.
"""

from __future__ import annotations

from typing import Final

from msprobe.graph.model import Severity

STATISTICS: Final = ("max", "min", "mean", "norm")
_TITLES: Final = {"max": "Max", "min": "Min", "mean": "Mean", "norm": "Norm"}
_DIFFERENCES: Final = {"max": "Max", "min": "Min", "mean": "Mean", "norm": "L2norm"}

FEWEST_NODES: Final = 30_000
"""Files with fewer nodes are read whole, in seconds: columns make writing half as dear again."""

PRECISION: Final = {
    Severity.EQUAL: 0.0,
    Severity.CLOSE: 0.0,
    Severity.INHERITED: 0.45,
    Severity.AMPLIFIED: 0.7,
    Severity.ONE_SIDED: 0.45,
    Severity.INTRODUCED: 1.0,
}
"""Index of precision by severity. Below 0.3 a node passes, from 0.6 on it is an error."""

TABLES: Final = """
CREATE TABLE text (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE side (
    id INTEGER PRIMARY KEY, data_source TEXT NOT NULL, step INTEGER NOT NULL,
    rank INTEGER NOT NULL, rank_name TEXT NOT NULL, graph_id TEXT NOT NULL,
    framework TEXT, task TEXT, level TEXT, notes TEXT, dump_data_dir TEXT
);
CREATE TABLE record (
    id INTEGER PRIMARY KEY, side INTEGER NOT NULL, node_order INTEGER NOT NULL,
    name INTEGER NOT NULL, node_type TEXT NOT NULL, up INTEGER NOT NULL, precision_index REAL,
    overflow_level TEXT, micro_step_id INTEGER NOT NULL, partner INTEGER, stack INTEGER,
    matched_distributed TEXT, parallel_merge_info TEXT, modified INTEGER NOT NULL DEFAULT 0,
    status TEXT, origin TEXT, error REAL, severity INTEGER,
    input_data TEXT, output_data TEXT, matched_node_link TEXT
);
CREATE TABLE value (
    id INTEGER PRIMARY KEY, record INTEGER NOT NULL, is_output INTEGER NOT NULL,
    slot INTEGER NOT NULL, type INTEGER NOT NULL, dtype INTEGER, shape INTEGER,
    max, min, mean, norm, requires_grad INTEGER, md5 TEXT, data_name TEXT, content TEXT,
    value_id INTEGER, partner INTEGER, result TEXT, reason INTEGER, metrics TEXT
);
CREATE TABLE tb_stack (id TEXT PRIMARY KEY, stack_info TEXT);
CREATE TABLE tb_config (
    id TEXT PRIMARY KEY, graph_type TEXT NOT NULL, task TEXT, tool_tip TEXT, micro_steps INTEGER,
    overflow_check INTEGER, node_colors TEXT NOT NULL, rank_list TEXT NOT NULL,
    step_list TEXT NOT NULL
);
CREATE TABLE msprobe (key TEXT PRIMARY KEY, value TEXT);
"""
INDEXES: Final = """
CREATE INDEX record_by_parent ON record (side, up, node_order);
CREATE INDEX record_by_name ON record (name, side);
CREATE INDEX value_by_record ON value (record);
"""


def _differences() -> str:
    """Return the members of a value's JSON that tell how it differs from its partner's."""
    members = []
    for name in STATISTICS:
        members.append(f"'{_DIFFERENCES[name]} diff', CAST(v.{name} - p.{name} AS TEXT)")
    for name in STATISTICS:
        members.append(
            f"'{_TITLES[name]}RelativeErr', CASE"
            f" WHEN typeof(v.{name} - p.{name}) = 'null' THEN NULL"
            f" WHEN v.{name} = p.{name} THEN '0.000000%'"
            f" WHEN p.{name} = 0 THEN 'inf'"
            f" ELSE printf('%.6f%%', abs((v.{name} - p.{name}) / p.{name}) * 100.0) END"
        )
    return ",\n".join(members)


def _data(is_output: int) -> str:
    """Return an expression for the values of a record as JSON text."""
    statistics = ", ".join(f"'{_TITLES[name]}', CAST(v.{name} AS TEXT)" for name in STATISTICS)
    return f"""
    (SELECT json_group_object(
        n.text || '.' || slot.text,
        json(json_patch(json_patch('{{}}', json_object(
            'type', type.text, 'dtype', dtype.text, 'shape', shape.text, {statistics},
            'requires_grad', CASE v.requires_grad WHEN 1 THEN 'True' WHEN 0 THEN 'False' END,
            'value', v.content, 'md5', v.md5, 'data_name', coalesce(v.data_name, '-1'))),
        CASE WHEN v.result IS NULL THEN '{{}}' ELSE json_patch('{{}}', json_patch(json_object(
            {_differences()},
            'Result', v.result, 'Err_message', coalesce(reason.text, '')),
            coalesce(v.metrics, '{{}}'))) END)))
    FROM value v
        JOIN text slot ON slot.id = v.slot
        JOIN text type ON type.id = v.type
        LEFT JOIN text dtype ON dtype.id = v.dtype
        LEFT JOIN text shape ON shape.id = v.shape
        LEFT JOIN text reason ON reason.id = v.reason
        LEFT JOIN value p ON p.id = v.partner
    WHERE v.record = r.id AND v.is_output = {is_output})"""


# The chain of boxes around the partner, the outermost first, and the partner.
_LINK: Final = """
    (WITH RECURSIVE chain (side, name, up, depth) AS (
        SELECT q.side, q.name, q.up, 0 FROM record q WHERE q.id = r.partner
        UNION ALL
        SELECT o.side, o.name, o.up, chain.depth + 1 FROM chain
            JOIN record o ON o.side = chain.side AND o.name = chain.up
        WHERE chain.depth < 1000)
    SELECT json_group_array(name) FROM (
        SELECT t.text AS name FROM chain JOIN text t ON t.id = chain.name
        ORDER BY chain.depth DESC))"""

VIEW: Final = f"""
CREATE VIEW tb_nodes AS SELECT
    s.graph_id || '_' || n.text AS id, s.graph_id AS graph_id, r.node_order AS node_order,
    n.text AS node_name, r.node_type AS node_type, u.text AS up_node,
    (SELECT json_group_array(name) FROM (
        SELECT t.text AS name FROM record c JOIN text t ON t.id = c.name
        WHERE c.side = r.side AND c.up = r.name ORDER BY c.node_order)) AS sub_nodes,
    r.precision_index AS precision_index, r.overflow_level AS overflow_level,
    r.micro_step_id AS micro_step_id,
    coalesce(r.matched_node_link, {_LINK}) AS matched_node_link,
    CAST(r.stack AS TEXT) AS stack_id, coalesce(r.parallel_merge_info, '') AS parallel_merge_info,
    coalesce(r.matched_distributed, '{{}}') AS matched_distributed, r.modified AS modified,
    coalesce(r.input_data, {_data(0)}) AS input_data,
    coalesce(r.output_data, {_data(1)}) AS output_data,
    s.data_source AS data_source, s.dump_data_dir AS dump_data_dir, s.step AS step, s.rank AS rank,
    r.matched_distributed IS NOT NULL AS is_distributed
FROM side s JOIN record r ON r.side = s.id JOIN text n ON n.id = r.name JOIN text u ON u.id = r.up;
CREATE TRIGGER tb_nodes_update INSTEAD OF UPDATE ON tb_nodes BEGIN
    UPDATE record SET
        precision_index = NEW.precision_index, modified = NEW.modified,
        matched_node_link = NEW.matched_node_link, input_data = NEW.input_data,
        output_data = NEW.output_data, overflow_level = NEW.overflow_level
    WHERE side IN (SELECT id FROM side WHERE graph_id = NEW.graph_id)
        AND name = (SELECT id FROM text WHERE text = NEW.node_name);
END;
"""
