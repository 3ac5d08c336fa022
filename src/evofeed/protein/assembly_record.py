"""One complex of protein chains, as `featurize` makes it and `store` stores it.

Its chains are chain records, each distinct sequence once, with their alignments. In addition it has
the alignment rows to pair by species, and the coordinates of every copy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evofeed.base.errors import FeatureError
from evofeed.protein.chain_record import ChainRecord


def stoichiometry(copies: tuple[int, ...]) -> str:
    """Number of copies of each distinct sequence, largest first: `A2B`, `A3`."""
    letters = (chr(ord("A") + n) if n < 26 else f"({n + 1})" for n in range(len(copies)))
    numbers = sorted(copies, reverse=True)
    return "".join(f"{a}{n if n > 1 else ''}" for a, n in zip(letters, numbers, strict=True))


def chain_numbers(copies: Sequence[int]) -> np.ndarray:
    """`i64[3, chains]`: numbers of each chain, its entity and its copy, from 1."""
    entity = np.repeat(np.arange(1, len(copies) + 1), copies)
    copy = np.concatenate([np.arange(1, number + 1) for number in copies])
    return np.stack([np.arange(1, len(entity) + 1), entity, copy])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AssemblyRecord:
    """A complex. Entities are its distinct sequences, in the order of the file.

    Attributes:
        pairing: alignment of each entity to pair by species: the record's rows and
            `msa_species`, without structure and templates; None where there is none.
        copies: author's ids of the chains of each entity, in the order of the file.
        all_atom_positions: of all chains, entity by entity, `f32[L, 37, 3]`, ångström; None
            without a structure.
        all_atom_mask: resolved atoms, `u8[L, 37]`.
        num_interface: residues with an atom within 10 ångström of another chain's.
        resolution: ångström, 0.0 if unknown.
        release_date: ISO, or empty.
        is_distillation: the structure is a prediction.
        dropped: parts left out, each with its reason.
    """

    assembly_id: str
    chains: tuple[ChainRecord, ...]
    pairing: tuple[ChainRecord | None, ...]
    copies: tuple[tuple[str, ...], ...]
    all_atom_positions: np.ndarray | None = None
    all_atom_mask: np.ndarray | None = None
    num_interface: int = 0
    resolution: float = 0.0
    release_date: str = ""
    method: str = ""
    is_distillation: bool = False
    dropped: tuple[str, ...] = ()

    @classmethod
    def of_chain(cls, chain: ChainRecord) -> AssemblyRecord:
        """A complex of one chain."""
        return cls(
            assembly_id=chain.chain_id,
            chains=(chain,),
            pairing=(None,),
            copies=(("A",),),
            all_atom_positions=chain.all_atom_positions,
            all_atom_mask=chain.all_atom_mask,
        )

    @property
    def members(self) -> list[tuple[ChainRecord, str]]:
        """Record and author's id of every chain, entity by entity, copies included."""
        pairs = zip(self.chains, self.copies, strict=True)
        return [(chain, name) for chain, names in pairs for name in names]

    @property
    def num_chains(self) -> int:
        """Chains, copies included."""
        return len(self.members)

    @property
    def num_res(self) -> int:
        """Residues of all chains (L)."""
        return sum(chain.num_res for chain, _ in self.members)

    @property
    def aatype(self) -> np.ndarray:
        """Residue types of all chains, `u8[L]`."""
        return np.concatenate([chain.aatype for chain, _ in self.members])

    @property
    def stoichiometry(self) -> str:
        """Copies of each sequence, such as `A2B`."""
        return stoichiometry(tuple(map(len, self.copies)))

    @property
    def chain_names(self) -> tuple[str, ...]:
        """Author's ids of all chains; empty if one of them would need quotes in mmCIF."""
        names = tuple(name for _, name in self.members)
        return names if all(re.fullmatch(r"[A-Za-z0-9]+", name) for name in names) else ()

    def asym_id(self) -> np.ndarray:
        """Number of each residue's chain, from 1, `i64[L]`."""
        lengths = [chain.num_res for chain, _ in self.members]
        return np.repeat(np.arange(1, len(lengths) + 1), lengths)

    def validate(self) -> AssemblyRecord:
        """Check that the parts fit each other and return self.

        Raises:
            FeatureError: a part does not fit; names it.
        """
        if not self.chains or not len(self.chains) == len(self.pairing) == len(self.copies):
            raise FeatureError(
                f"{len(self.chains)} sequences, {len(self.pairing)} alignments to pair and "
                f"{len(self.copies)} lists of copies",
                item=self.assembly_id,
            )
        if not all(self.copies):
            raise FeatureError("a sequence without a chain", item=self.assembly_id)
        for chain, rows in zip(self.chains, self.pairing, strict=True):
            if rows is not None and rows.sequence != chain.sequence:
                raise FeatureError(
                    f"the rows to pair of {chain.chain_id} are of another sequence",
                    item=self.assembly_id,
                )
        positions, mask = self.all_atom_positions, self.all_atom_mask
        if (positions is None) != (mask is None):
            raise FeatureError("positions and mask must come together", item=self.assembly_id)
        if positions is not None and mask is not None:
            shape = (self.num_res, 37)
            if positions.shape != (*shape, 3) or mask.shape != shape:
                raise FeatureError(
                    f"positions of shape {positions.shape} for {self.num_res} residues",
                    item=self.assembly_id,
                )
        return self
