"""Elements of a page, built as a tree so that whatever text is put in is text in the end.

Names of files and folders are other people's, and may look like HTML. Here they can only become the text or an
attribute of an element, and both are escaped when the tree is written out.
"""

from __future__ import annotations

import html
from collections.abc import Iterator

#: Elements that have no end tag in HTML.
_VOID = frozenset({"meta", "br", "hr", "link", "col"})

#: Control characters that neither HTML nor SVG may hold, and those that turn the direction of all text behind them.
_FORBIDDEN = [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]

#: They are shown as the replacement character.
_SHOWN = {code: "�" for code in _FORBIDDEN if chr(code) not in "\t\n\r"}


class Element:
    """An element with attributes and children. An underscore in an attribute's name stands for a hyphen."""

    def __init__(self, name: str, /, *children: Node, **attributes: str | float | None) -> None:
        self.name = name
        self.children = list(children)
        self.attributes = {
            key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None
        }

    def add(self, *children: Node) -> Element:
        """The element, with further children."""
        self.children += children
        return self

    def __str__(self) -> str:
        return "".join(self._parts())

    def _parts(self) -> Iterator[str]:
        attributes = "".join(f' {key}="{escape(_value(value))}"' for key, value in self.attributes.items())
        yield f"<{self.name}{attributes}>"
        if self.name in _VOID:
            return
        for child in self.children:
            yield str(child) if isinstance(child, Element | Verbatim) else escape(child)
        yield f"</{self.name}>"


class Verbatim:
    """Text that is written out as it is: the style sheet, which is ours."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


#: What may be in an element.
Node = Element | Verbatim | str


def escape(text: str) -> str:
    """Text that means itself in HTML and SVG, in elements and in attributes."""
    return html.escape(text.encode("utf-8", "replace").decode().translate(_SHOWN), quote=True)


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
