"""What mattered in a search, as bars: each dimension's part of the variance of the accuracy."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from onepass.figures.style import PALETTE, head, laid_out, styled


@styled
def importance(parts: Mapping[str, float], title: str, note: str = "") -> Figure:
    """A bar for each dimension, the most important first; together they are 1."""
    ranked = dict(sorted(parts.items(), key=lambda part: -part[1]))
    figure = Figure(figsize=(5.6, 0.9 + 0.28 * len(ranked)))
    axes = figure.add_subplot(xlabel="importance")
    for place, value in enumerate(ranked.values()):
        axes.barh(place, value, height=0.72, color=PALETTE[0])
        axes.annotate(f"{value:.2f}", (value, place), (3, 0), textcoords="offset points", va="center", size="small")
    axes.set_yticks(range(len(ranked)), list(ranked))
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, 1.12 * max(ranked.values())), ylim=(len(ranked) - 0.4, -0.6))
    head(axes, title, note)
    return laid_out(figure)
