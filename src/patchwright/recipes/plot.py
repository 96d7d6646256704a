"""Curves with bands as an SVG picture; no plotting library needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from xml.sax.saxutils import escape

__all__ = ["Banded", "Curve", "picture"]

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 116, 40, 48
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25)
_MOST_FIGURES = 16
"""Figures along the lower axis."""


class Banded(Protocol):
    """A mean between two ends: `metrics.Interval`, `best_of.Band`."""

    @property
    def mean(self) -> float:
        """The middle."""

    @property
    def low(self) -> float:
        """Lower end of the band."""

    @property
    def high(self) -> float:
        """Upper end of the band."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """A line with its band. Example: `Curve(name="Pass@k", points={1: band}, colour="#7f7f7f")`"""

    name: str
    points: dict[int, Banded]
    """Rates, by the whole number they belong to."""
    colour: str
    dashed: bool = False


def picture(curves: Sequence[Curve], *, title: str, below: str) -> str:
    """The curves over the same axis, as the text of an SVG file; `below` says what the axis counts."""
    xs = sorted({x for curve in curves for x in curve.points})
    top = max((band.high for curve in curves for band in curve.points.values()), default=0.0) or 1.0
    plane = _Plane(xs, min(1.0, top * 1.05))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 22, title, "start", 14),
        *plane.grid(below),
        *(part for curve in curves for part in plane.curve(curve)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Plane:
    """Where a number and a rate are in the picture."""

    def __init__(self, xs: Sequence[int], top: float) -> None:
        self._xs, self._top = xs or [0], top

    def x(self, x: float) -> float:
        span = max(1, self._xs[-1] - self._xs[0])
        return round(_LEFT + (x - self._xs[0]) / span * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, rate: float) -> float:
        return round(_HEIGHT - _BOTTOM - rate / self._top * (_HEIGHT - _TOP - _BOTTOM), 1)

    def grid(self, below: str) -> list[str]:
        """Axes with their figures."""
        step = next((step for step in _STEPS if self._top / step <= 8), 0.25)
        parts = []
        for number in range(int(self._top / step + 1e-9) + 1):
            y = self.y(number * step)
            parts.append(f'<path d="M{_LEFT} {y}H{_WIDTH - _RIGHT}" stroke="#dddddd"/>')
            parts.append(_text(_LEFT - 6, y + 4, f"{number * step:.0%}", "end"))
        shown = self._xs[:: -(-len(self._xs) // _MOST_FIGURES)]
        parts += [_text(self.x(x), _HEIGHT - _BOTTOM + 18, str(x), "middle") for x in shown]
        parts.append(_text(self.x((self._xs[0] + self._xs[-1]) / 2), _HEIGHT - 10, below, "middle"))
        return parts

    def curve(self, curve: Curve) -> list[str]:
        """A line of means, the band around it and its name."""
        points = sorted(curve.points.items())
        if not points:
            return []
        upper = [(self.x(x), self.y(band.high)) for x, band in points]
        lower = [(self.x(x), self.y(band.low)) for x, band in points]
        middle = [(self.x(x), self.y(band.mean)) for x, band in points]
        end_x, end_y = middle[-1]
        dashes = ' stroke-dasharray="5 4"' if curve.dashed else ""
        return [
            f'<path d="{_line([*upper, *reversed(lower)])}Z" fill="{curve.colour}" fill-opacity="0.15"/>',
            f'<path d="{_line(middle)}" fill="none" stroke="{curve.colour}" stroke-width="2"{dashes}/>',
            *(f'<circle cx="{x}" cy="{y}" r="3" fill="{curve.colour}"/>' for x, y in middle),
            _text(end_x + 8, end_y + 4, f"{curve.name} {points[-1][1].mean:.1%}", "start"),
        ]


def _line(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def _text(x: float, y: float, text: str, anchor: str, size: int = 12) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
