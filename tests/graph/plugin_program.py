# SPDX-License-Identifier: Apache-2.0
"""What a reader of the TensorBoard plugin does with a file, asked of the plugin's own handlers.

    python plugin_program.py FILE.vis.db NODE

Runs where tb-graph-ascend is installed, without msprobe. Prints the answers as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

from server.plugin import GraphsPlugin
from werkzeug.test import Client


def main() -> None:
    path, node = Path(sys.argv[1]), sys.argv[2]
    apps = GraphsPlugin(SimpleNamespace(logdir=str(path.parent))).get_plugin_apps()
    file = {"run": path.parent.name, "tag": path.name.removesuffix(".vis.db"), "type": "db"}
    place = {**file, "step": 0, "rank": 0, "microStep": -1, "lang": "en"}

    def get(name, **words):
        return Client(apps[name]).get(query_string=words).get_data(as_text=True)

    def ask(name, **words):
        answer = Client(apps[name]).post(json={"metaData": place, **words})
        return json.loads(answer.get_data(as_text=True))

    def expanded(name, side="NPU"):
        found = ask("/changeNodeExpandState", nodeInfo={"nodeName": name, "nodeType": side})
        return {key: each["precisionIndex"] for key, each in found["data"].items()}

    def lists():
        found = ask("/loadGraphAllNodeList")["data"]
        return {key: len(names) for key, names in found.items()}

    answers = {"files": json.loads(get("/load_meta_dir")), "read": get("/loadGraphData", **file)}
    answers["config"] = ask("/loadGraphConfigInfo")["data"]
    answers["lists"] = lists()
    answers["levels"] = [expanded(name) for name in ("root", *sys.argv[3:])]
    answers["reference"] = expanded("root", "Bench")
    answers["node"] = ask("/getNodeInfo", nodeInfo={"nodeName": node, "nodeType": "NPU"})["data"]
    answers["red"] = ask("/screen", type="precision", values=[[0.6, 1]])["data"]
    answers["alone"] = ask("/screen", type="precision", values=[-1])["data"]
    both = {"npuNodeName": node, "benchNodeName": node}
    ask("/deleteMatchNodes", **both, isUnMatchChildren=False)
    answers["apart"] = lists()
    ask("/addMatchNodes", **both, isMatchChildren=False)
    answers["together"] = lists()
    answers["overflow"] = ask("/screen", type="overflow", values=["medium", "high", "critical"])
    answers["chosen"] = ask("/updatePrecisionError", filterValue=["Max relative error"])
    answers["chosen red"] = ask("/screen", type="precision", values=[[0.6, 1]])["data"]
    colours = {"#FF0000": {"value": [0, 1], "description": "all"}}
    answers["colours"] = ask("/updateColors", colors=json.dumps(colours))
    answers["laid out"] = ask("/updateHierarchyData", graphType="NPU")["success"]
    saved = ask("/saveMatchedRelations")
    loaded = ask("/addMatchNodesByConfig", configFile=saved["data"])
    answers["saved"], answers["loaded"] = saved["success"], loaded["success"]
    answers["rewritten"] = ask("/saveData")["success"]
    sys.stdout.write(json.dumps(answers) + "\n")


main()
