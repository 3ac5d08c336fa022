"""The fast reading of atom tables gives what the plain one gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.featurize.golden import INPUTS
from tests.featurize.test_mmcif import small

from evofeed.featurize import FeaturizeConfig, InputCaps
from evofeed.featurize.atom_loop import cut_atom_loop, factorise, sites_of
from evofeed.featurize.atom_sites import AtomSites
from evofeed.featurize.atom_table import read_atom_sites

FILES = [path for root in INPUTS for path in sorted(root.rglob("*.cif"))]
CAPS = InputCaps()


def plain(data: bytes) -> AtomSites:
    from gemmi import cif

    return read_atom_sites(cif.read_string(data)[0], "", FeaturizeConfig(), b_factor=True)


def fast(data: bytes) -> AtomSites | None:
    _, loop = cut_atom_loop(data, CAPS, b_factor=b"B_iso_or_equiv" in data)
    return None if loop is None else sites_of(loop)


def assert_same_sites(one: AtomSites, two: AtomSites) -> None:
    for name in ("number", "author_number", "hetero", "atom37", "occupancy", "positions"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    for codes, names in (
        ("internal", "internals"),
        ("author", "authors"),
        ("component", "components"),
        ("insertion", "insertions"),
    ):
        first = np.array(getattr(one, names))[getattr(one, codes)]
        assert np.array_equal(first, np.array(getattr(two, names))[getattr(two, codes)]), names
    assert np.array_equal(one.altloc, two.altloc)
    assert (one.b_factor is None) == (two.b_factor is None)
    assert one.b_factor is None or np.array_equal(one.b_factor, two.b_factor)
    assert one.author_of == two.author_of


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_real_tables_read_alike(path: Path, golden: Path) -> None:
    data = path.read_bytes()
    quick = fast(data)
    if quick is not None:  # else it is left to gemmi
        assert_same_sites(quick, plain(data))


NEEDED = ("group_PDB label_atom_id label_alt_id label_comp_id label_asym_id label_seq_id "
          "pdbx_PDB_ins_code Cartn_x Cartn_y Cartn_z occupancy auth_seq_id auth_asym_id "
          "pdbx_PDB_model_num").split()  # fmt: skip


def test_most_real_tables_are_regular(golden: Path) -> None:
    tables = [path.read_bytes() for path in FILES]
    whole = [t for t in tables if all(f"_atom_site.{name}".encode() in t for name in NEEDED)]
    assert sum(fast(table) is not None for table in whole) >= 0.9 * len(whole) > 0


TABLE = small([("A", "0.40", "1.000"), ("B", "0.60", "-2.5")])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"ATOM CA", b"ATOM 'CA'"),
        (b"ATOM CA", b'ATOM "C\'A"'),
        (b"-2.5", b"-0.000"),
        (b"-2.5", b"+12345678.25"),
        (b"-2.5", b"0.1234567890123"),
        (b"\n", b"\r\n"),
        (b" ALA A", b"\tALA\t A"),
        (b"A 1 1 A", b"A . 1 A"),
        (b"A 1 1 A", b"A 1 -7 A"),
    ],
)
def test_odd_but_right_tables_read_alike(old: bytes, new: bytes) -> None:
    data = TABLE.replace(old, new)
    assert data != TABLE
    quick = fast(data)
    if quick is None:
        assert b"12345678" in new or b"A . 1" in new
    else:
        assert_same_sites(quick, plain(data))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"-2.5", b"1e3"),
        (b"-2.5", b"?"),
        (b"-2.5", b"1.2.3"),
        (b"-2.5", b"0.12345678901234567"),
        (b" B ALA", b"\nB ALA"),
        (b"ATOM CA B", b"ATOM\n;CA\n;\nB"),
        (b"ATOM CA B", b"WHAT CA B"),
        (b"ATOM CA B", b";ATOM\n; CA B"),
        (b"ATOM CA B", b"ATOM #A B"),
        (b"ATOM CA B", b"ATOM _A B"),
        (b"ATOM CA B", b"ATOM $A B"),
        (b"ALA A 1", b"ALANINE12 A 1"),
        (b"A 1 1 A", b"A 1.0 1 A"),
        (b"data_tiny", b"data_other\n_x.y 1\ndata_tiny"),
    ],
)
def test_irregular_tables_are_left_to_gemmi(old: bytes, new: bytes) -> None:
    data = TABLE.replace(old, new)
    assert data != TABLE and fast(data) is None


def test_only_the_first_model_is_read() -> None:
    lines = TABLE.decode().splitlines()
    lines.append(lines[-1][:-1] + "2")
    data = ("\n".join(lines) + "\n").encode()
    quick = fast(data)
    assert quick is not None and len(quick.number) == 2
    assert_same_sites(quick, plain(data))


def test_codes_survive_growing_tables() -> None:
    keys = np.random.default_rng(0).integers(0, 5000, 20_000).astype(np.uint64)
    codes, unique = factorise(keys)
    assert np.array_equal(unique[codes], keys)
    assert np.array_equal(unique, np.array(list(dict.fromkeys(keys.tolist())), np.uint64))
