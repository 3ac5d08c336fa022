"""The loop of Boltz's crop, compiled. `no_type_check` keeps shape checks from wrapping it."""

from typing import Any, no_type_check

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
@no_type_check
def grow(
    order: Any, chain: Any, residue: Any, atoms: Any, chain_start: Any, chain_stop: Any,
    neighborhood: Any, max_tokens: Any, max_atoms: Any, stop: Any,
) -> Any:  # fmt: skip
    """Which tokens are taken, `bool[n]`.

    Neighbourhoods of `order`'s tokens are added while they fit: the whole chain if it has no more
    tokens than `neighborhood`, else residues to both sides until there are so many. A chain's
    tokens are `chain_start` to `chain_stop`, its residues ascend.
    """
    taken = np.zeros(len(chain), np.bool_)
    tokens = 0
    total = 0
    for token in order:
        first = chain_start[token]
        last = chain_stop[token]
        lo = first
        hi = last
        if last - first > neighborhood:
            lo = token
            while lo > first and residue[lo - 1] == residue[token]:
                lo -= 1
            hi = token + 1
            while hi < last and residue[hi] == residue[token]:
                hi += 1
            step = 0
            while hi - lo < neighborhood:
                step += 1
                while lo > first and residue[lo - 1] >= residue[token] - step:
                    lo -= 1
                while hi < last and residue[hi] <= residue[token] + step:
                    hi += 1
        new = 0
        new_atoms = 0
        for row in range(lo, hi):
            if not taken[row]:
                new += 1
                new_atoms += atoms[row]
        if new > max_tokens - tokens or total + new_atoms > max_atoms:
            if stop:
                break
            continue
        for row in range(lo, hi):
            taken[row] = True
        tokens += new
        total += new_atoms
    return taken
