"""What the plots of a report have in common: drawings, labels, axes.

A drawing tells its content in one sentence for whoever cannot see it, and stands beside a table with the same figures.
Colours are the page's, by class; causes have a hatching too, so that they can be told apart without colours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sutler.analysis.scales import Scale, upper_end
from sutler.analysis.svg import Element
from sutler.analysis.wording import number

#: The width of every drawing in its own units; the page scales it.
WIDTH = 760.0

#: From how many times the least value on an axis is logarithmic.
LOGARITHMIC_FROM = 40.0


def drawing(height: float, label: str, *children: Element) -> Element:
    """An empty drawing; the label says what it shows."""
    return Element("svg", *children, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", aria_label=label)


def text(x: float, y: float, words: str, *, anchor: str = "start", class_: str = "label") -> Element:
    """Words in a drawing."""
    return Element("text", words, x=x, y=y, text_anchor=anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Element:
    """A straight line."""
    return Element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def dot(x: float, y: float, title: str, *, radius: float = 4.0) -> Element:
    """A value, with words for a pointer that rests on it."""
    return Element("circle", Element("title", title), cx=x, cy=y, r=radius, class_="dot-mark")


def whisker(x1: float, x2: float, y: float) -> Element:
    """The interval that a value lies in, from left to right."""
    path = f"M{x1:.1f} {y - 5:.1f} v10 M{x1:.1f} {y:.1f} H{x2:.1f} m0 -5 v10"
    return Element("path", d=path, class_="whisker")


def filled(cause: str, x: float, y: float, width: float, height: float, title: str) -> Element:
    """A rectangle in the colour and hatching of a cause, with words for a pointer that rests on it."""
    place = {"x": x, "y": y, "width": max(width, 0.0), "height": max(height, 0.0)}
    group = Element("g", Element("title", title), Element("rect", **place, class_=f"cause-{cause}"))
    if cause in _HATCHED:
        group.add(Element("rect", **place, fill=f"url(#hatch-{cause})"))
    return group


#: How causes are marked beside their colour; the others are plain.
_HATCHED = {
    "fetch": Element("path", d="M-2 10 L10 -2", class_="hatch"),
    "transport": Element("circle", cx=4, cy=4, r=1.4, class_="hatch-dot"),
}


def hatchings() -> Element:
    """What the drawings mark causes with; to stand once in the page."""
    defined = [
        Element("pattern", mark, id=f"hatch-{cause}", width=8, height=8, patternUnits="userSpaceOnUse")
        for cause, mark in _HATCHED.items()
    ]
    return Element(
        "svg", Element("defs", *defined), class_="definitions", aria_hidden="true", focusable="false"
    )


def swatch(cause: str) -> Element:
    """A small square in a cause's colour and hatching."""
    return Element(
        "svg", filled(cause, 0, 0, 14, 14, cause), viewBox="0 0 14 14", class_="swatch", aria_hidden="true"
    )


def value_axis(lows: Sequence[float], highs: Sequence[float], begin: float, end: float) -> Scale:
    """An axis for some values: from 0, unless they lie too far apart to be told from it then."""
    least = min((low for low in lows if low > 0), default=0.0)
    if least > 0 and max(highs) > LOGARITHMIC_FROM * least:
        return Scale(least / 1.5, max(highs) * 1.5, begin, end, logarithmic=True)
    return Scale(0.0, upper_end(highs), begin, end)


def across(x: Scale, y: float, name: str, show: Callable[[float], str] = number) -> list[Element]:
    """A horizontal axis with its grid, and its name below."""
    drawn = [text((x.begin + x.end) / 2, y + 33, name, anchor="middle", class_="axis")]
    for tick in x.ticks():
        drawn.append(line(x.at(tick), 4, x.at(tick), y, "grid"))
        drawn.append(text(x.at(tick), y + 15, show(tick), anchor="middle", class_="tick"))
    return drawn


def upwards(y: Scale, left: float, right: float, show: Callable[[float], str] = number) -> list[Element]:
    """A vertical axis with its grid."""
    drawn = []
    for tick in y.ticks(5):
        drawn.append(line(left, y.at(tick), right, y.at(tick), "grid"))
        drawn.append(text(left - 8, y.at(tick) + 4, show(tick), anchor="end", class_="tick"))
    return drawn
