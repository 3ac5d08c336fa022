"""How a mmCIF file differs from those of the wwPDB, and what becomes of it: for `evofeed check`.

Pipelines that are made for the archive's files read some of their tables without asking; a
file that another program wrote lacks these, and fails late or not at all. Which tables these are
was taken from OpenFold3's preprocessing (`primitives/structure/metadata.py`).
"""

from __future__ import annotations

from typing import Any, Final

from evofeed.featurize.structures.cif import RESOLUTIONS, UNSET, pairs_of, read_block, values_of
from evofeed.protein.residues import RESTYPE_3

DEVIATIONS: Final[dict[str, str]] = {
    "no sequence of its polymers": "the residues seen are taken for all; unseen ones are unknown "
    "(write _entity_poly_seq)",
    "no experimental method": "filters by method leave it in (write _exptl.method)",
    "no resolution": "filters by resolution leave it in (write _refine.ls_d_res_high)",
    "no table of chains": "chains are distinguished by the author's names (write _struct_asym)",
    "no assembly": "a complex is what the file holds (write _pdbx_struct_assembly_gen)",
    "components that are not defined": "of no known type, so they are no residue of a chain "
    "(write _chem_comp.type)",
    "polymer atoms without a place in the sequence": "placed by the author's numbers (write "
    "_atom_site.label_seq_id)",
    "ligand under the name of a polymer": "left out of the chain; others read it as residues "
    "(give it a label_asym_id of its own)",
    "several models": "the first is read",
}
"""What is different, and what it does."""

_ANY_OF: Final = {
    "no sequence of its polymers": ("_entity_poly_seq.mon_id", "_pdbx_poly_seq_scheme.mon_id"),
    "no experimental method": ("_exptl.method",),
    "no table of chains": ("_struct_asym.id",),
    "no assembly": ("_pdbx_struct_assembly_gen.assembly_id",),
}
_UNKNOWN: Final = ("", *UNSET)
_ITEMS: Final = "label_comp_id label_asym_id label_seq_id group_PDB pdbx_PDB_model_num".split()


def deviations(data: bytes, path: str = "") -> list[tuple[str, str]]:
    """What of `DEVIATIONS` holds for a mmCIF file, each with the case that shows it.

    Raises:
        MmcifError: it is no mmCIF.
    """
    block = read_block(data, path)

    def has_any(items: tuple[str, ...]) -> bool:
        return any(v not in _UNKNOWN for item in items for v in block.find_values(item))

    found = [
        (kind, f"neither {' nor '.join(items)}" if len(items) > 1 else f"no {items[0]}")
        for kind, items in _ANY_OF.items()
        if not has_any(items)
    ]
    is_nmr = any("NMR" in method.upper() for method in values_of(block, "_exptl.method"))
    if not is_nmr and not has_any(RESOLUTIONS):
        found.append(("no resolution", f"none of {', '.join(RESOLUTIONS)}"))
    return found + _of_atoms(block)


def _of_atoms(block: Any) -> list[tuple[str, str]]:
    """What is different in the table of atoms."""
    columns = [list(block.find_values(f"_atom_site.{item}")) for item in _ITEMS]
    size = max(map(len, columns))
    comps, chains, places, groups, models = (c if len(c) == size else ["."] * size for c in columns)
    types = dict(pairs_of(block, "_chem_comp.id", "_chem_comp.type"))
    undefined = {c for c in comps if types.get(c, "?") in _UNKNOWN and c not in RESTYPE_3}
    polymers = {c for c, group in zip(chains, groups, strict=True) if group == "ATOM"}
    ligands, unplaced = set(), set()
    for comp, chain, place, group in zip(comps, chains, places, groups, strict=True):
        if place in _UNKNOWN and group == "ATOM" and comp in RESTYPE_3:
            unplaced.add(chain)
        elif place in _UNKNOWN and group == "HETATM" and chain in polymers and comp != "HOH":
            ligands.add(f"{comp} in {chain}")
    cases = {
        "components that are not defined": ", ".join(sorted(undefined - {"HOH", "."})[:5]),
        "polymer atoms without a place in the sequence": ", ".join(sorted(unplaced)[:5]),
        "ligand under the name of a polymer": ", ".join(sorted(ligands)[:5]),
        "several models": f"{len(set(models))} models" if len(set(models)) > 1 else "",
    }
    return [(kind, case) for kind, case in cases.items() if case]
