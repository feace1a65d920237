"""Every table and figure of the paper, a file each: the runs it needs, the published numbers, and how it is drawn.

`ITEMS` has them by name, in the paper's order; what an item is, `item.py` says.
"""

from onepass.paper import tab_clear
from onepass.paper.item import Item

ITEMS: dict[str, Item] = {item.name: item for item in (tab_clear.ITEM,)}
