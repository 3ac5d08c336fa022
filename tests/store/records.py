"""Random valid chain records: small, ragged, with values in every field."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.features import RECORD
from evofeed.protein.residues import GAP, RESTYPES, UNKNOWN
from evofeed.store import DatasetWriter, Snapshot
from evofeed.store.writer import SHARD_NBYTES


def random_record(
    seed: int,
    *,
    chain_id: str | None = None,
    num_res: int | None = None,
    num_alignments: int | None = None,
    num_templates: int | None = None,
    has_structure: bool = True,
) -> ChainRecord:
    """A record as featurize makes them: three-decimal coordinates, sparse deletions."""
    rng = np.random.default_rng(seed)
    L = num_res if num_res is not None else int(rng.integers(1, 90))
    N = num_alignments if num_alignments is not None else int(rng.integers(1, 60))
    T = num_templates if num_templates is not None else int(rng.integers(0, 5))
    aatype = rng.integers(0, UNKNOWN + 1, L).astype(np.uint8)
    msa = np.where(rng.random([N, L]) < 0.4, aatype, rng.integers(0, GAP + 1, [N, L]))
    msa = msa.astype(np.uint8)
    msa[0] = aatype
    row, column = np.nonzero(rng.random([N, L]) < 0.02)
    positions, mask = random_atoms(rng, [L])
    template_positions, template_mask = random_atoms(rng, [T, L])
    center = rng.normal(0, 40, [T, 3]).astype(np.float32)
    template_positions = (template_positions - center[:, None, None]) * template_mask[..., None]
    template_positions += 0.0  # no minus zeros where there is no atom
    return ChainRecord(
        chain_id=chain_id or f"chain{seed}_A",
        sequence="".join((RESTYPES + "X")[code] for code in aatype),
        description=f"random protein {seed}, \u00fcnl\u00efkely",
        aatype=aatype,
        residue_index=np.arange(L, dtype=np.int32),
        msa=msa,
        deletion_row=row.astype(np.int32),
        deletion_column=column.astype(np.int32),
        deletion_count=np.minimum(rng.geometric(0.2, len(row)), 400).astype(np.int32),
        msa_source=np.sort(rng.integers(0, 3, N)).astype(np.uint8),
        msa_sources=("bfd_uniclust_hits.a3m", "mgnify_hits.sto", "uniref90_hits.sto"),
        msa_species=tuple(rng.choice(["", "HUMAN", "MOUSE", "9EUKA"], N).tolist()),
        hhblits_profile_counts=profile_counts(msa),
        all_atom_positions=positions if has_structure else None,
        all_atom_mask=mask if has_structure else None,
        template_aatype=rng.integers(0, GAP + 1, [T, L]).astype(np.uint8),
        template_all_atom_positions=template_positions.astype(np.float32),
        template_all_atom_mask=template_mask,
        template_center=center,
        template_sum_probs=rng.random(T).astype(np.float32) * 200,
        template_domain_names=tuple(f"{t}abc_B" for t in range(T)),
        template_sequence=tuple("ACDE-FG"[: 1 + t] for t in range(T)),
        template_release_date=tuple(f"20{t:02}-01-31" for t in range(T)),
        resolution=float(rng.choice([0.0, 1.7, 2.95])),
        release_date="2019-04-01",
        method="X-RAY DIFFRACTION",
        is_distillation=bool(rng.integers(0, 2)),
        inputs={"bfd_uniclust_hits.a3m": "ab" * 32, "1abc.cif": "cd" * 32},
        config_digest="ef" * 32,
        dropped=("template 1xyz_A: released after 2018-04-30", "rows: 12 duplicates"),
    ).validate()


def tiny_record(**changes: Any) -> ChainRecord:
    """Three residues, three rows and one template, written by hand in `data/tiny.json`."""
    fields = json.loads(Path(__file__).with_name("data").joinpath("tiny.json").read_text())
    kinds = {feature.name: feature.dtype for feature in RECORD}
    for name, value in fields.items():
        if isinstance(value, list):
            kind = kinds.get(name, "str")
            fields[name] = tuple(value) if kind == "str" else np.array(value, kind)
    positions = np.zeros([3, 37, 3], np.float32)
    positions[0, :2] = [[1.5, -2.25, 3.125], [2.001, -1.999, 0.0]]
    positions[2, 1] = [-100.007, 250.5, 0.001]
    mask = (positions != 0).any(-1).astype(np.uint8)
    moved = (positions - fields["template_center"]) * mask[..., None] + np.float32(0)
    fields |= {"all_atom_positions": positions, "all_atom_mask": mask}
    fields |= {"template_all_atom_positions": moved[None], "template_all_atom_mask": mask[None]}
    fields |= {"hhblits_profile_counts": np.arange(66, dtype=np.int32).reshape(3, 22)}
    return ChainRecord(**fields | changes)


def random_atoms(rng: np.random.Generator, lead: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Positions f32[..., 37, 3] with three decimals and mask u8[..., 37]; some residues empty."""
    mask = (rng.random([*lead, 37]) < 0.25) & (rng.random([*lead, 1]) < 0.85)
    centre = np.cumsum(rng.normal(0, 2, [*lead, 1, 3]), axis=-3) if lead[-1] else 0
    positions = np.round(centre + rng.normal(0, 2, [*lead, 37, 3]), 3) * mask[..., None]
    return (positions + 0.0).astype(np.float32), mask.astype(np.uint8)


def profile_counts(msa: np.ndarray) -> np.ndarray:
    """Occurrences of each code in each column, i32[L, 22]."""
    return np.stack([(msa == code).sum(0) for code in range(GAP + 1)], 1).astype(np.int32)


def assert_same(actual: Any, expected: Any) -> None:
    """Every field of two records equal: arrays bit for bit, dtype and shape included."""
    for name in type(expected).__dataclass_fields__:
        value, expected_value = getattr(actual, name), getattr(expected, name)
        assert type(value) is type(expected_value), name
        if isinstance(expected_value, np.ndarray):
            assert value.dtype == expected_value.dtype and value.shape == expected_value.shape, name
            assert value.tobytes() == expected_value.tobytes(), name
        else:
            assert value == expected_value, name


def flip(path: Path, offset: int | None = None, bit: int = 1) -> None:
    """Damage one byte of a file in place, by default the one in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if offset is None else offset] ^= bit
    path.chmod(0o644)
    path.write_bytes(data)


def published(
    uri: Path | str,
    records: Iterable[ChainRecord],
    *,
    shard_nbytes: int = SHARD_NBYTES,
    zstd: bool = False,
    **commit: Any,
) -> Snapshot:
    """A snapshot of these records, committed with these options."""
    writer = DatasetWriter(str(uri), shard_nbytes=shard_nbytes, zstd=zstd)
    for record in records:
        writer.add(record)
    return writer.commit(**commit)
