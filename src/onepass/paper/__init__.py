"""Every table and figure of the paper, a file each: the runs it needs, the published numbers, and how it is drawn.

`ITEMS` has them by name, in the paper's order and then ours; what an item is, `item.py` says.
"""

from onepass.paper import (
    fig_alpha,
    fig_boundaries,
    fig_confusion,
    fig_drift,
    fig_time,
    fig_tsne,
    tab_ablation,
    tab_backward_transfer,
    tab_blurry,
    tab_clear,
    tab_controls,
    tab_hp,
    tab_ncm,
    tab_recipes,
    tab_teacher_quality,
    tab_views,
)
from onepass.paper.item import Item

_MODULES = (
    tab_teacher_quality,
    fig_boundaries,
    tab_clear,
    tab_blurry,
    tab_ablation,
    fig_alpha,
    fig_confusion,
    tab_ncm,
    fig_drift,
    fig_tsne,
    tab_backward_transfer,
    tab_hp,
    fig_time,
    tab_controls,
    tab_views,
    tab_recipes,
)
ITEMS: dict[str, Item] = {module.ITEM.name: module.ITEM for module in _MODULES}
