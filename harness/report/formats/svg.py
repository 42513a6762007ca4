"""Drawing SVG to embed in a page: escaped, with titles, coloured by CSS classes."""

from collections.abc import Mapping
from xml.etree.ElementTree import Element, SubElement, tostring

from markupsafe import Markup

from packproof.base.wording import printable

LEVELS = (0.01, 0.1, 1.0, 10.0, 1e3, 1e6)  # of an error, as a multiple of its budget
_CIVIDIS = ((0, 34, 78), (124, 123, 120), (254, 232, 56))  # ends and middle: lightness conveys what colour does


def palette() -> list[str]:
    """One colour for each level, from dark blue to light yellow."""
    colours = []
    for k in range(len(LEVELS) + 1):
        position = 2 * k / len(LEVELS)
        low, high = _CIVIDIS[:2] if position <= 1 else _CIVIDIS[1:]
        fraction = position - (position > 1)
        channels = (round(a + (b - a) * fraction) for a, b in zip(low, high, strict=True))
        colours.append("#" + "".join(f"{channel:02x}" for channel in channels))
    return colours


def level(value: float) -> int:
    """The index in the palette of a multiple of the budget."""
    return sum(not value <= limit for limit in LEVELS)


class Drawing:
    """A picture.

    label: its description for screen readers.
    titles: whether rectangles have their tooltips.
    """

    def __init__(self, width: float, height: float, label: str, *, titles: bool = True) -> None:
        self._titles = titles
        size = {"width": f"{width:g}", "height": f"{height:g}", "viewBox": f"0 0 {width:g} {height:g}"}
        self._svg = Element("svg", {**size, "role": "img", "aria-label": printable(label)})

    def rect(self, x: float, y: float, width: float, height: float, kind: str, title: str = "") -> None:
        element = self._add("rect", kind, {"x": x, "y": y, "width": max(width, 1.0), "height": height})
        if title and self._titles:
            SubElement(element, "title").text = printable(title)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self._add("line", kind, {"x1": x1, "y1": y1, "x2": x2, "y2": y2})

    def cross(self, x: float, y: float, size: float) -> None:
        """A cross inside a square."""
        x0, y0, side = f"{x + size * 0.28:.5g}", f"{y + size * 0.28:.5g}", f"{size * 0.44:.3g}"
        path = {"class": "cross", "d": f"M{x0} {y0}l{side} {side}m-{side} 0l{side} -{side}"}
        SubElement(self._svg, "path", path)

    def text(self, text: str, x: float, y: float, kind: str = "", anchor: str = "middle") -> None:
        if text:
            element = self._add("text", kind, {"x": x, "y": y})
            element.set("text-anchor", anchor)
            element.text = printable(text)

    def markup(self) -> Markup:
        return Markup(tostring(self._svg, encoding="unicode"))  # ElementTree has escaped it

    def _add(self, tag: str, kind: str, geometry: Mapping[str, float]) -> Element:
        style = {"class": kind} if kind else {}
        return SubElement(self._svg, tag, {**style, **{name: f"{value:.5g}" for name, value in geometry.items()}})
