"""Examples on pages and in docstrings shown as code: what begins with ``>>>`` is put into a fence to be rendered.

Both a hook of mkdocs (for pages) and an extension of griffe (for docstrings); see mkdocs.yml. Markdown would read the
prompts as quotations.
"""

from __future__ import annotations

from typing import Any

import griffe

FENCE = "```"


def fenced(text: str) -> str:
    """The text with a fence around every example that has none.

    >>> print(fenced("Say:\\n\\n>>> 1 + 1\\n2\\n\\nThere.").replace("`", "~"))
    Say:
    <BLANKLINE>
    ~~~pycon
    >>> 1 + 1
    2
    ~~~
    <BLANKLINE>
    There.
    """
    lines: list[str] = []
    example = inside = False
    for line in text.split("\n"):
        bare = line.lstrip()
        if bare.startswith(FENCE) and not example:
            inside = not inside
        if not inside and not example and bare.startswith(">>>"):
            lines.append(f"{line[: len(line) - len(bare)]}{FENCE}pycon")
            example = True
        elif example and not bare:
            lines.append(FENCE)
            example = False
        lines.append(line)
    return "\n".join([*lines, FENCE] if example else lines)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    return fenced(markdown)


class FencedExamples(griffe.Extension):
    """Called by griffe for every object."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
