"""Pass@k and Best@k over k as an SVG picture and as a table; no plotting library needed."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from rich import box
from rich.table import Table

from patchwright.recipes.best_of import Band, BestOf

__all__ = ["svg", "table"]

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 96, 40, 48
_COLOURS = {"Pass@k": "#7f7f7f", "Best@k": "#1f77b4"}
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25)


def table(found: BestOf) -> Table:
    """A line for each k: means over tasks with 95 % bands."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("k", "Pass@k [95 %]", "Best@k [95 %]", "Best@k - Pass@1 [95 %]"):
        shown.add_column(name, justify="right", no_wrap=True)
    for point in found.points:
        shown.add_row(str(point.k), str(point.chance), str(point.best), str(point.lift))
    return shown


def svg(found: BestOf, title: str) -> str:
    """A picture of the two curves with their bands, as the text of an SVG file."""
    ks = [point.k for point in found.points]
    curves = {
        "Pass@k": [point.chance for point in found.points],
        "Best@k": [point.best for point in found.points],
    }
    top = max(band.high for bands in curves.values() for band in bands) or 1.0
    plane = _Plane(ks[-1], min(1.0, top * 1.05))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 22, title, "start", 14),
        *plane.grid(ks),
        *(part for name, bands in curves.items() for part in plane.curve(name, ks, bands)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Plane:
    """Where k and a rate are in the picture."""

    def __init__(self, most: int, top: float) -> None:
        self._most, self._top = most, top

    def x(self, k: float) -> float:
        span = max(1, self._most - 1)
        return round(_LEFT + (k - 1) / span * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, rate: float) -> float:
        return round(_HEIGHT - _BOTTOM - rate / self._top * (_HEIGHT - _TOP - _BOTTOM), 1)

    def grid(self, ks: Sequence[int]) -> list[str]:
        """Axes with their figures."""
        step = next((step for step in _STEPS if self._top / step <= 8), 0.25)
        parts = []
        for number in range(int(self._top / step + 1e-9) + 1):
            y = self.y(number * step)
            parts.append(f'<path d="M{_LEFT} {y}H{_WIDTH - _RIGHT}" stroke="#dddddd"/>')
            parts.append(_text(_LEFT - 6, y + 4, f"{number * step:.0%}", "end"))
        parts += [_text(self.x(k), _HEIGHT - _BOTTOM + 18, str(k), "middle") for k in ks]
        parts.append(_text(self.x((1 + self._most) / 2), _HEIGHT - 10, "attempts k", "middle"))
        return parts

    def curve(self, name: str, ks: Sequence[int], bands: Sequence[Band]) -> list[str]:
        """A line of means, the band around it and its name."""
        colour = _COLOURS[name]
        upper = [(self.x(k), self.y(band.high)) for k, band in zip(ks, bands, strict=True)]
        lower = [(self.x(k), self.y(band.low)) for k, band in zip(ks, bands, strict=True)]
        middle = [(self.x(k), self.y(band.mean)) for k, band in zip(ks, bands, strict=True)]
        end_x, end_y = middle[-1]
        return [
            f'<path d="{_line([*upper, *reversed(lower)])}Z" fill="{colour}" fill-opacity="0.15"/>',
            f'<path d="{_line(middle)}" fill="none" stroke="{colour}" stroke-width="2"/>',
            *(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in middle),
            _text(end_x + 8, end_y + 4, f"{name} {bands[-1].mean:.1%}", "start"),
        ]


def _line(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def _text(x: float, y: float, text: str, anchor: str, size: int = 12) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
