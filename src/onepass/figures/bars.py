"""How long each method takes, as bars."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from onepass.figures.style import PALETTE, SOFT, head, laid_out, legend, styled, wrapped
from onepass.metrics import mean_std

ALONE = "alone"
WIDTH = 6.2  # inches


@styled
def durations(rows: Mapping[str, Sequence[float]], title: str, note: str = "") -> Figure:
    """A bar for each method (`er`, `er+mkd`, ...): the mean over its runs, of their seconds; by what is added to it, a colour."""
    kinds = list(dict.fromkeys(_added(name) for name in rows))
    groups = [name.partition("+")[0] for name in rows]
    places = np.arange(len(rows)) + 0.55 * np.cumsum([i > 0 and g != groups[i - 1] for i, g in enumerate(groups)])
    said = 0.2 * len(wrapped(note, 0.9 * WIDTH).splitlines())
    figure = Figure(figsize=(WIDTH, 1.1 + said + 0.2 * (places[-1] + 1)))
    unit, seconds = ("minutes", 60) if max((v for values in rows.values() for v in values), default=0) >= 120 else ("seconds", 1)
    axes = figure.add_subplot(xlabel=unit)
    known = {name: mean_std([v / seconds for v in values]) for name, values in rows.items() if len(values)}
    longest = max((mean + (std if std == std else 0.0) for mean, std in known.values()), default=1.0)
    for place, name in zip(places, rows, strict=True):
        if name not in known:
            axes.annotate("not run yet", (0, place), (3, 0), textcoords="offset points", va="center", color=SOFT, size="small")
            continue
        mean, std = known[name]
        color = PALETTE[kinds.index(_added(name))]
        axes.barh(place, mean, height=0.82, color=color, xerr=std if std == std else None, error_kw={"lw": 0.8}, label=_added(name))
        end = mean + (std if std == std else 0.0)
        axes.annotate(_written(mean), (end, place), (3, 0), textcoords="offset points", va="center", size="small")
    axes.set_yticks(places, list(rows))
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, 1.12 * longest), ylim=(places[-1] + 0.6, -0.6))
    legend(figure, "outside lower left")
    head(axes, title, note)
    return laid_out(figure)


def _added(name: str) -> str:
    return name[len(name.partition("+")[0]) :] or ALONE


def _written(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
