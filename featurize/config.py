"""Settings of featurization: AF2's safe rules by default, or OpenFold's to the bit.

Each field whose default departs from OpenFold gives the reason. `openfold()` sets
them all to OpenFold's behaviour, defects included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from evofeed.base.configs import Config, check_numbers, is_iso_date
from evofeed.protein.features import MODEL_TEMPLATES


@dataclass(frozen=True, slots=True, kw_only=True)
class InputCaps:
    """Largest accepted size of an input; a larger one is refused before anything is allocated."""

    max_file_bytes: int = 8 << 30
    """Bytes of one file after decompression."""
    max_ratio: int = 400
    """Decompressed over compressed bytes, beyond the first 64 MiB: more is a bomb."""
    max_rows: int = 4_000_000
    """Rows of one alignment file."""
    max_columns: int = 100_000
    """Residues of a chain."""
    max_cells: int = 8 << 30
    """Rows times residues of one alignment."""
    max_atoms: int = 20_000_000
    """Atom records of one structure file."""
    max_hits: int = 200_000
    """Template hits of one file."""

    def __post_init__(self) -> None:
        check_numbers(self, *(cap.name for cap in fields(self)), least=1, below=2**63)

    def excess(self, cap: str, size: int, subject: str) -> str:
        """Error message for a size above a cap, beginning with `subject`; empty within it."""
        limit = getattr(self, cap)
        if size <= limit:
            return ""
        return f"{subject}, more than the cap of {limit}; raise InputCaps.{cap} if meant"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturizeConfig(Config):
    """Choices of `featurize_chain` where formats, AF2 and OpenFold differ."""

    # alignments
    strict_letters: bool = False
    """OpenFold refuses '.' in alignments and lower-case residues in Stockholm files.
    Default: '.' is a gap in an insertion column, as in the formats, and case is ignored."""
    hit_names: Literal["any", "openfold"] = "any"
    """OpenFold takes `hmm_output.sto` on disk, but only `hmmsearch_output.sto` in an alignment_db,
    for hmmsearch's template hits, and reads the other as an alignment. Default: both names, and
    AlphaFold's `pdb_hits.sto`, are template hits everywhere; other programs' alignments for
    pairing (`uniprot.sto`) and hits (`hmmsearch.a3m`) are not part of the MSA."""
    subfolders: bool = True
    """Read `a3m/` and `hhr/` in a chain's folder, as OpenProteinSet ships them, and
    AlphaFold's `msas/`. OpenFold does not: it silently trains on empty alignments if the tree is
    not flattened."""
    check_query: bool = True
    """Refuse an alignment whose query has another length than the chain, naming both,
    and note differing letters. OpenFold does not check."""

    # structures
    require_atom_items: bool = False
    """OpenFold's reader fails where the atom table lacks any item it reads, record
    numbers and B factors included. Default: only positions, names and sequence numbers are
    required."""
    require_entry_id: bool = False
    """OpenFold cannot parse an entry with neither revision history nor `_entry.id`."""
    require_release_date: bool = False
    """OpenFold cannot featurize an entry without revision history. Default: date unknown."""
    require_observed_chains: bool = False
    """OpenFold refuses an entry if any protein chain has no atom at all.
    Default: only that chain is missing."""
    sequence_from_atoms: bool = True
    """An mmCIF file without polymer tables (a model, a Biopython export) has the sequence
    of its atoms, X where numbers are skipped. OpenFold finds no protein in it."""
    strict_component_types: bool = False
    """OpenFold reads `peptide` in lower case only and refuses an entry whose
    `_chem_comp` lacks a residue. Default: `L-PEPTIDE LINKING` is protein too; a missing type is
    replaced by `_entity_poly.type`, else by a table of amino acids."""
    collapse_heterogeneity: bool = True
    """A position with two residue types (microheterogeneity) counts once, first type.
    OpenFold counts it twice, which shifts every later residue against its atoms."""
    whole_chain: bool = False
    """Protenix aligns the full chain of a template, modified residues as X, to the query again.
    Default, as OpenFold: the hit's alignment, and the letters of parent residues."""
    require_labels: bool = False
    """OpenFold takes `label_asym_id` '.' for the name of a chain, so all chains are one. Default:
    author's ids replace labels '.' and '?', and residues are aligned to the polymer's."""
    require_coordinates: bool = False
    """OpenFold refuses '.' as a coordinate and trains on `nan`. Default: that atom is absent."""
    mask_mmcif: bool = True
    """Distillation: mmCIF loses the atoms of unconfident residues as legacy PDB does, by
    `_ma_qa_metric_local` (pLDDT), else B factors. OpenFold masks legacy PDB only."""
    strict_pdb: bool = False
    """OpenFold refuses legacy PDB files with several models, insertion codes, or chain
    ids other than A-Z. Default: first model, all residues in order, any id."""
    all_pdb_residues: bool = False
    """OpenFold takes every residue of a legacy PDB chain that has one of the 37 atoms: waters,
    ligands, nucleotides and modified residues as X, and reads only atoms. Right for
    predictions. Default: amino acids only, placed on SEQRES if present, modified ones as
    in mmCIF; dates, method and resolution too; the first free letter for a blank chain id."""
    confidence_threshold: float = 50.0
    """Distillation only: a residue is kept if any atom's B factor (pLDDT) exceeds this."""

    # templates
    max_templates: int = 20
    """Featurized templates kept per chain; training draws 4 of them. OpenFold: 4."""
    max_template_date: str = "2021-10-10"
    """No template released later than this ISO date (inclusive bound)."""
    exclude_same_pdb: bool = True
    """AF2: no template from the query's entry. OpenFold dropped the rule, so a chain
    can see itself or its symmetry mate."""
    released_before_days: int | None = 60
    """AF2: a template must be that many days older than the query's release. OpenFold
    dropped the rule. None or an unknown query date: only `max_template_date` counts."""
    min_align_ratio: float = 0.1
    """Aligned columns over query length must exceed this (AF2)."""
    max_subsequence_ratio: float = 0.95
    """A hit that is an exact piece of the query longer than this share is a duplicate (AF2)."""
    locate_query: Literal["numbering", "search"] = "numbering"
    """Position of a hit in the query: by the numbers of the hit file where the letters agree, else
    by search. OpenFold only searches: a repeat is found at its first occurrence, a query with an
    unusual letter not at all, which shifts the template by one residue."""
    unmatched_to_last: bool = False
    """OpenFold and AF2 give residues that realignment leaves without a partner the atoms
    of the chain's last residue (an index of -1). Default: they have none."""
    lone_chain: bool = True
    """Realign a hit to an entry's only chain although the hit names another. OpenFold does,
    but then reads no atoms, by the other name: the hit is lost."""
    old_hhr: bool = True
    """Read hhr files of older hh-suites, without `Template_Neff`. OpenFold cannot."""

    caps: InputCaps = field(default_factory=InputCaps)

    def __post_init__(self) -> None:
        check_numbers(self, "max_templates", least=0, below=2**31)
        finite = ("confidence_threshold", "min_align_ratio", "max_subsequence_ratio")
        check_numbers(self, *finite, above=-math.inf, below=math.inf)
        if not is_iso_date(self.max_template_date):
            raise ValueError(f"max_template_date is {self.max_template_date!r}, not YYYY-MM-DD")

    @classmethod
    def openfold(cls, **changes: Any) -> FeaturizeConfig:
        """OpenFold's behaviour (commit ce0029e) for well-formed input."""
        preset: dict[str, Any] = {
            "strict_letters": True,
            "hit_names": "openfold",
            "subfolders": False,
            "check_query": False,
            "require_atom_items": True,
            "require_entry_id": True,
            "require_release_date": True,
            "require_observed_chains": True,
            "sequence_from_atoms": False,
            "strict_component_types": True,
            "collapse_heterogeneity": False,
            "require_labels": True,
            "require_coordinates": True,
            "mask_mmcif": False,
            "strict_pdb": True,
            "all_pdb_residues": True,
            "max_templates": MODEL_TEMPLATES,
            "exclude_same_pdb": False,
            "released_before_days": None,
            "locate_query": "search",
            "unmatched_to_last": True,
            "lone_chain": False,
            "old_hhr": False,
        }
        return cls(**{**preset, **changes})


@dataclass(frozen=True, slots=True, kw_only=True)
class CropConfig(Config):
    """Limits of offline cropping, by size and never by time."""

    max_msa_rows: int | None = None
    """MSA rows kept per chain."""
    msa_budget: float | int | None = None
    """Cells kept per chain: rows <= msa_budget / residues. 5e7 is High-Flyer's rule."""
    row_choice: Literal["random", "first"] = "random"
    """Rows to keep: a uniform sample, as training would draw, or the first ones, which
    are the best hits of the first alignment file (High-Flyer). The query is always kept."""
    max_templates: int | None = None
    """Templates kept per chain; None is all of the record's."""
    seed: int = 0
    """Seed of the rows, which are a pure function of it and the chain's id."""

    def __post_init__(self) -> None:
        check_numbers(self, "max_msa_rows", "msa_budget", least=1)
        check_numbers(self, "max_templates", least=0)
