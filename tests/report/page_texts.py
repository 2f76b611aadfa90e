# SPDX-License-Identifier: Apache-2.0
"""Texts that a page shows or has read out, collected from the document itself."""

from __future__ import annotations

import re

_TEXTS = """() => {
  const found = new Set();
  const data = ".mono, .name, code, kbd, svg.values-plot text, script, style, noscript";
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const { parentElement, textContent } = walk.currentNode;
    if (!parentElement.closest(data)) found.add(textContent.trim());
  }
  for (const name of ["title", "aria-label", "placeholder"]) {
    for (const each of document.querySelectorAll(`[${name}]`)) found.add(each.getAttribute(name));
  }
  return [document.title, ...found];
}"""
_ENGLISH = re.compile(r"\b[A-Za-z]{2,} [a-z]{2,}")
# Terms that Chinese readers use as they are, commands and lines of code.
_TERMS = re.compile(
    r"\b(micro (step|batch)|step rank|rank rank|msprobe [a-z-]+)\b|File .*, line .*", re.S
)


def english_of(page) -> set[str]:
    """Return what is left in English of a page: in it and in its labels, in sight or not."""
    texts = page.evaluate(_TEXTS)
    assert len(texts) > 20
    return {text for text in texts if _ENGLISH.search(_TERMS.sub("", text))}
