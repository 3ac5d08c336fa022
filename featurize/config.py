"""Settings of featurizing chains: AF2's safe rules, or OpenFold's to the bit.

Each field in which our default departs from OpenFold says why. `openfold()`
sets them all back, surprises included.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from evofeed.base.configs import Config, check_numbers
from evofeed.protein.features import MODEL_TEMPLATES


@dataclass(frozen=True, slots=True, kw_only=True)
class InputCaps:
    """How large an input may be before it is refused; nothing is allocated first."""

    max_file_bytes: int = 8 << 30
    """Bytes of one file after decompression."""
    max_ratio: int = 400
    """Decompressed over compressed bytes, beyond the first 64 MiB: a bomb's mark."""
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
        check_numbers(self, *(each.name for each in fields(self)), least=1, below=2**63)

    def excess(self, cap: str, got: int, what: str) -> str:
        """What an error says of more than a cap allows; empty if it is not more."""
        most = getattr(self, cap)
        if got <= most:
            return ""
        return f"{what}, more than the cap of {most}; raise InputCaps.{cap} if meant"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturizeConfig(Config):
    """What `featurize_chain` does where formats, AF2 and OpenFold leave a choice."""

    # alignments
    strict_letters: bool = False
    """OpenFold: refuse '.' in alignments and lower-case residues in Stockholm files.
    Ours: '.' is a gap in an insertion column, as the formats say, and case is ignored."""
    hit_names: Literal["any", "openfold"] = "any"
    """OpenFold knows hmmsearch output as `hmm_output.sto` on disk but only as
    `hmmsearch_output.sto` in an alignment_db, and reads the other as an alignment.
    Ours: both names, and AlphaFold's `pdb_hits.sto`, are template hits everywhere, and what
    other programs write for pairing (`uniprot.sto`) or as hits (`hmmsearch.a3m`) is no
    alignment of homologs."""
    subfolders: bool = True
    """Look into `a3m/` and `hhr/` below a chain's folder, as OpenProteinSet ships them, and
    into AlphaFold's `msas/`. OpenFold does not: an un-flattened tree trains on empty
    alignments without a word."""
    check_query: bool = True
    """Refuse an alignment whose query has another length than the chain, naming both,
    and note differing letters. OpenFold does not look."""

    # structures
    require_atom_items: bool = False
    """OpenFold's reader fails where the atom table lacks any item it reads, record
    numbers and B factors included. Ours needs positions, names and sequence numbers."""
    require_entry_id: bool = False
    """OpenFold cannot parse an entry with neither revision history nor `_entry.id`."""
    require_release_date: bool = False
    """OpenFold cannot featurize an entry without revision history. Ours: date unknown."""
    require_observed_chains: bool = False
    """OpenFold refuses a whole entry if one protein chain has no atom at all.
    Ours: that chain alone is missing."""
    sequence_from_atoms: bool = True
    """An mmCIF file without polymer tables (a model, a Biopython export) has the sequence
    of its atoms, X where numbers are left out. OpenFold finds no protein in it."""
    strict_component_types: bool = False
    """OpenFold knows `peptide` in lower case only and refuses an entry whose
    `_chem_comp` lacks a residue. Ours: `L-PEPTIDE LINKING` is protein too; without a type
    `_entity_poly.type` decides, else whether the residue is a known amino acid."""
    collapse_heterogeneity: bool = True
    """A position with two residue types (microheterogeneity) counts once, first type.
    OpenFold counts it twice, which shifts every later residue against its atoms."""
    whole_chain: bool = False
    """Protenix: the chain of a template, modified residues X, is aligned to the query anew,
    whatever the hit aligned. Ours, as OpenFold: the hit's alignment, and parents' letters."""
    require_labels: bool = False
    """OpenFold takes `label_asym_id` '.' for the name of a chain, so all chains are one. Ours:
    where label ids are '.' or '?' the author's count, and residues are aligned to the polymer's."""
    require_coordinates: bool = False
    """OpenFold refuses '.' as a coordinate and trains on `nan`. Ours: that atom is absent."""
    mask_mmcif: bool = True
    """Distillation: mmCIF loses the atoms of unconfident residues as legacy PDB does, by
    `_ma_qa_metric_local` (pLDDT), else B factors. OpenFold masks legacy PDB only."""
    strict_pdb: bool = False
    """OpenFold refuses legacy PDB files with several models, insertion codes, or chain
    ids other than A-Z. Ours: first model, all residues in order, any id."""
    all_pdb_residues: bool = False
    """OpenFold takes every residue of a legacy PDB chain that has one of the 37 atoms: waters,
    ligands, nucleotides and modified residues as X, and reads nothing but atoms. Right for
    predictions. Ours: amino acids only, placed on SEQRES where it is given, modified ones as
    in mmCIF; dates, method and resolution too; a blank chain id is the first free letter."""
    confidence_threshold: float = 50.0
    """Distillation only: a residue is kept if any atom's B factor (pLDDT) exceeds this."""

    # templates
    max_templates: int = 20
    """Featurized templates kept per chain; training draws 4 of them. OpenFold: 4."""
    max_template_date: str = "2021-10-10"
    """No template released later than this ISO date (inclusive bound)."""
    exclude_same_pdb: bool = True
    """AF2: no template from the query's own entry. OpenFold dropped the rule, so a chain
    can see itself or its symmetry mate."""
    released_before_days: int | None = 60
    """AF2: a template must be that many days older than the query's release. OpenFold
    dropped the rule. None or an unknown query date: only `max_template_date` counts."""
    min_align_ratio: float = 0.1
    """Aligned columns over query length must exceed this (AF2)."""
    max_subsequence_ratio: float = 0.95
    """A hit that is an exact piece of the query longer than this share is a duplicate (AF2)."""
    locate_query: Literal["numbering", "search"] = "numbering"
    """Where a hit's part of the query is: by the hit file's own numbers where the letters
    agree, else by search. OpenFold only searches: a repeat is found at its first place,
    a query with an odd letter nowhere, which shifts the template by one residue."""
    unmatched_to_last: bool = False
    """OpenFold and AF2 give residues that realignment leaves without a partner the atoms
    of the chain's last residue (an index of -1). Ours: they have none."""
    lone_chain: bool = True
    """Realign a hit to an entry's only chain though the hit names another. OpenFold does,
    and then finds no atoms under the name it asked for: the hit is lost."""
    old_hhr: bool = True
    """Read hhr files of older hh-suites, without `Template_Neff`. OpenFold cannot."""

    caps: InputCaps = field(default_factory=InputCaps)

    def __post_init__(self) -> None:
        check_numbers(self, "max_templates", least=0, below=2**31)
        finite = ("confidence_threshold", "min_align_ratio", "max_subsequence_ratio")
        check_numbers(self, *finite, above=-math.inf, below=math.inf)
        try:
            date = datetime.date.fromisoformat(self.max_template_date).isoformat()
        except ValueError:
            date = ""
        if date != self.max_template_date:
            raise ValueError(f"max_template_date is {self.max_template_date!r}, not YYYY-MM-DD")

    @classmethod
    def openfold(cls, **changes: Any) -> FeaturizeConfig:
        """OpenFold's behaviour (commit ce0029e), in all it does to well-formed input."""
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
    """What is cut off offline, by work and never by time."""

    max_msa_rows: int | None = None
    """MSA rows kept per chain."""
    msa_budget: float | int | None = None
    """Cells kept per chain: rows <= msa_budget / residues. 5e7 is High-Flyer's rule."""
    row_choice: Literal["random", "first"] = "random"
    """Which rows stay: a fair sample, as training would draw, or the first ones, which
    are the best hits of the first alignment file (High-Flyer). The query always stays."""
    max_templates: int | None = None
    """Templates kept per chain; None is all of the record's."""
    seed: int = 0
    """Of the rows, which are a pure function of this and the chain's id."""

    def __post_init__(self) -> None:
        check_numbers(self, "max_msa_rows", "msa_budget", least=1)
        check_numbers(self, "max_templates", least=0)
