# SPDX-License-Identifier: Apache-2.0
"""Communication between ranks: what a recorded call sends and to whom, and which calls meet.

`calls.communication_calls` reads the calls of one rank from its records; `matching.connect` says
which calls of different ranks are one communication. Pure functions. May import `msprobe.dump`.
"""
