"""Pass@k and Best@k over k as an SVG picture and as a table."""

from __future__ import annotations

from rich import box
from rich.table import Table

from patchwright.recipes.best_of import BestOf
from patchwright.recipes.plot import Curve, picture

__all__ = ["svg", "table"]


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
    curves = [
        Curve(name="Pass@k", points={one.k: one.chance for one in found.points}, colour="#7f7f7f"),
        Curve(name="Best@k", points={one.k: one.best for one in found.points}, colour="#1f77b4"),
    ]
    return picture(curves, title=title, below="attempts k")
