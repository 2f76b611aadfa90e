# SPDX-License-Identifier: Apache-2.0
"""The model as it ran: a dump in, nodes and edges out.

Enter at `msprobe.graph.sources.open_graphs`. `building` makes the `model.Graph` of one rank: its
hierarchy (`hierarchy`), the flow of values (`edges`), repeated layers (`rolling`). `comparing` puts
what `compare/` found at the nodes of two graphs. `page_json` and `exports` write them for pages and
other programs. The room draws nothing, and imports no framework.
"""
