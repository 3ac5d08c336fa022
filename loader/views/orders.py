"""Atom orders (symmetries) of the components of a crop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.loader.views.crop import Crop
from evofeed.loader.views.entry_view import EntryView

Orders = Callable[[EntryView, int, np.ndarray], np.ndarray]
"""Orders `[P, a]` of a component, from its molecule and the molecule's rows of its atoms."""


def crop_orders(
    view: EntryView, crop: Crop, orders_of: Orders, fixed: Bool[np.ndarray, " A"] | None = None
) -> tuple[Integer[np.ndarray, " g"], Integer[np.ndarray, " g"], Integer[np.ndarray, " p"]]:
    """Number of orders of each component, its number of atoms, and all orders, row by row.

    An order lists the indices in the component that the crop's atoms of it may take. Orders with
    an absent atom (-1), and those that move a `fixed` atom, are left out.
    """
    offsets = view.component_atom()
    index = crop.atom - offsets[crop.component][crop.run]
    sizes = np.bincount(crop.run, minlength=len(crop.component))
    stops = np.cumsum(sizes).tolist()
    molecule = view.component_molecule[crop.component]
    symmetric = np.array([len(orders) > 1 for orders in view.molecule_orders])[molecule]
    counts = np.ones(len(sizes), np.int64)
    fixed = np.zeros(len(index), bool) if fixed is None else fixed
    parts, done = [index[:0]], 0
    of_component: dict[tuple[int, bytes], np.ndarray] = {}
    of_crop: dict[tuple[int, bytes, bytes, bytes], np.ndarray] = {}
    for number in np.flatnonzero(symmetric).tolist():
        atoms = slice(stops[number] - int(sizes[number]), stops[number])
        first, stop = offsets[crop.component[number] : crop.component[number] + 2]
        reference = view.atom_reference[first:stop]
        component = int(molecule[number]), reference.tobytes()
        key = *component, index[atoms].tobytes(), fixed[atoms].tobytes()
        if (orders := of_crop.get(key)) is None:
            if component not in of_component:
                of_component[component] = orders_of(view, component[0], reference)
            orders = of_component[component][:, index[atoms]]
            orders = orders[(orders >= 0).all(1)]
            still = fixed[atoms]
            orders = of_crop[key] = orders[(orders[:, still] == orders[:1, still]).all(1)]
        counts[number] = len(orders)
        parts += [index[done : atoms.start], orders.ravel()]
        done = atoms.stop
    return counts, sizes, np.concatenate([*parts, index[done:]])
