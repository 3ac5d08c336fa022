"""Orders that the atoms of a crop's components may stand in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.loader.views.crop import Crop
from evofeed.loader.views.entry_view import EntryView

Orders = Callable[[EntryView, int, np.ndarray], np.ndarray]
"""Of a molecule, and of the rows in it of a component's atoms, `[P, a]`."""


def crop_orders(
    view: EntryView, crop: Crop, orders_of: Orders, held: Bool[np.ndarray, " A"] | None = None
) -> tuple[Integer[np.ndarray, " g"], Integer[np.ndarray, " g"], Integer[np.ndarray, " p"]]:
    """How many orders each component has, of how many atoms, and all of them, row by row.

    An order has the places in the component that the crop's atoms of it may take; those with an
    atom that is not there, of -1, are left out, and those that move one that is held.
    """
    offsets = view.component_atom()
    place = crop.atom - offsets[crop.component][crop.run]
    sizes = np.bincount(crop.run, minlength=len(crop.component))
    stops = np.cumsum(sizes).tolist()
    molecule = view.component_molecule[crop.component]
    several = np.array([len(one) > 1 for one in view.molecule_orders])[molecule]
    counts = np.ones(len(sizes), np.int64)
    held = np.zeros(len(place), bool) if held is None else held
    parts, done = [place[:0]], 0
    whole: dict[tuple[int, bytes], np.ndarray] = {}
    seen: dict[tuple[int, bytes, bytes, bytes], np.ndarray] = {}
    for number in np.flatnonzero(several).tolist():
        mine = slice(stops[number] - int(sizes[number]), stops[number])
        first, stop = offsets[crop.component[number] : crop.component[number] + 2]
        reference = view.atom_reference[first:stop]
        one = int(molecule[number]), reference.tobytes()
        key = *one, place[mine].tobytes(), held[mine].tobytes()
        if (orders := seen.get(key)) is None:
            if one not in whole:
                whole[one] = orders_of(view, one[0], reference)
            orders = whole[one][:, place[mine]]
            orders = orders[(orders >= 0).all(1)]
            fixed = held[mine]
            orders = seen[key] = orders[(orders[:, fixed] == orders[:1, fixed]).all(1)]
        counts[number] = len(orders)
        parts += [place[done : mine.start], orders.ravel()]
        done = mine.stop
    return counts, sizes, np.concatenate([*parts, place[done:]])
