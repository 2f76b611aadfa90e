# SPDX-License-Identifier: Apache-2.0
"""Import paths of the monitor that users of mindstudio-probe have in their scripts."""
