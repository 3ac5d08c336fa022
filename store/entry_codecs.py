"""Entries, rulesets' sections, alignments, molecules and components <-> packed columns.

Encoders are pure functions: the same value, the same bytes. Decoders check lengths, offsets and
row numbers, so that a damaged record is an error and never a wrong sample.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from evofeed.protein.alignment import Alignment, TemplateHits, Templates
from evofeed.protein.components import Component, ComponentTable
from evofeed.protein.entry_record import (
    AssemblyCopies,
    Dropped,
    Entity,
    EntryRecord,
    Link,
    LinkEnd,
    offsets,
)
from evofeed.protein.molecules import Molecule
from evofeed.protein.ruleset_section import RulesetSection
from evofeed.store.arrays import pack_arrays, unpack_arrays
from evofeed.store.atoms import pack_flat, unpack_flat
from evofeed.store.codecs import pack_raw, packed
from evofeed.store.layout import KINDS, Codec, PackedColumn
from evofeed.store.msa_codec import pack_rows, row_nbytes, unpack_rows_compiled

Columns = Mapping[str, PackedColumn]

PROJECTS: Final = KINDS["entry"][2:]
"""Projects that an entry may have a section of."""
_RECORD: Final = tuple(
    field.name
    for field in dataclasses.fields(EntryRecord)
    if "np.ndarray" in str(field.type) and field.name not in ("atom_position", "operators")
)
_SECTION: Final = tuple(
    field.name for field in dataclasses.fields(RulesetSection) if "np.ndarray" in str(field.type)
)
_TEMPLATE_FIELDS: Final = {"templates": ("template_", Templates), "hits": ("hit_", TemplateHits)}
"""Field of `Alignment`, prefix of its arrays, and its class; tuples of texts are in `more`."""
_EMPTY: Final = pack_raw(np.zeros(0, np.uint8))


def encode_entry(
    record: EntryRecord, sections: Mapping[str, RulesetSection]
) -> dict[str, PackedColumn]:
    """Columns of an entry and of its sections, one for each project that accepts it.

    Raises:
        ValueError: a section of a project that the format does not have.
    """
    if unknown := sorted(set(sections) - set(PROJECTS)):
        raise ValueError(f"no project {unknown[0]!r}: the format has {', '.join(PROJECTS)}")
    more = {
        field.name: _plain(getattr(record, field.name))
        for field in dataclasses.fields(EntryRecord)
        if field.name not in (*_RECORD, "atom_position", "operators")
    }
    arrays = {name: _to_hundredths(name, getattr(record, name)) for name in _RECORD}
    arrays["operators"] = record.operators
    fixed = pack_flat(record.atom_position, np.diff(record.residue_atom))
    return {
        "record": pack_arrays(arrays, more),
        "position": pack_arrays({"position": record.atom_position})
        if fixed is None
        else packed(Codec.FIXED_FLAT, fixed),
        **{name: _encode_section(sections.get(name)) for name in PROJECTS},
    }


def _to_hundredths(name: str, array: np.ndarray) -> np.ndarray:
    """Occupancies and B factors as integer hundredths where that is exact; else the array."""
    if name in ("atom_occupancy", "atom_b_factor"):
        cents = np.rint(array * 100)
        with np.errstate(invalid="ignore"):
            if (cents / 100 == array).all() and np.abs(cents).max(initial=0) < 2**31:
                hundredths: np.ndarray = cents.astype(np.int32)
                return hundredths
    return array


def _from_hundredths(name: str, array: np.ndarray) -> np.ndarray:
    if name in ("atom_occupancy", "atom_b_factor") and array.dtype.kind == "i":
        values: np.ndarray = array / 100
        return values
    return array


def decode_entry(columns: Columns) -> EntryRecord:
    """The record of an entry.

    Raises:
        ValueError: the bytes are not those of an entry.
    """
    arrays, more = unpack_arrays(columns["record"])
    fields: dict[str, Any] = {name: _from_hundredths(name, arrays[name]) for name in _RECORD}
    fields |= {"operators": arrays["operators"]} | {name: more[name] for name in more}
    for name in ("release_dates", "methods", "chain_label", "chain_author"):
        fields[name] = tuple(more[name])
    fields["resolutions"] = tuple((str(item), str(text)) for item, text in more["resolutions"])
    fields["entities"] = tuple(_entity(item) for item in more["entities"])
    fields["copies"] = tuple(
        AssemblyCopies(asyms=tuple(item["asyms"]), operators=tuple(item["operators"]))
        for item in more["copies"]
    )
    fields["links"] = tuple(_link(item) for item in more["links"])
    fields["dropped"] = tuple(Dropped(**item) for item in more["dropped"])
    counts = np.diff(fields["residue_atom"])
    position = columns["position"]
    fields["atom_position"] = (
        unpack_flat(position.payload, counts)
        if position.codec == Codec.FIXED_FLAT
        else unpack_arrays(position).arrays["position"]
    )
    record = EntryRecord(**fields)
    atoms, residues = record.num_atoms, record.num_residues
    _check_lengths(fields, {"atom_": atoms, "residue_": residues}, ("residue_atom",))
    _check_offsets(record.residue_atom, residues, atoms)
    _check_offsets(record.chain_residue, record.num_chains, residues)
    return record


def _encode_section(section: RulesetSection | None) -> PackedColumn:
    if section is None:
        return _EMPTY
    arrays = {name: getattr(section, name) for name in _SECTION}
    return pack_arrays(arrays, {"project": section.project, "dropped": _plain(section.dropped)})


def decode_section(columns: Columns, project: str, record: EntryRecord) -> RulesetSection | None:
    """A project's section of an entry; None if the project does not accept the entry.

    Raises:
        ValueError: the bytes are not a section of this record.
    """
    column = columns[project]
    if not column.payload:
        return None
    arrays, more = unpack_arrays(column)
    dropped = tuple(Dropped(**item) for item in more["dropped"])
    section = RulesetSection(project=more["project"], dropped=dropped, **arrays)
    chains, residues = len(section.chain_name), len(section.residue_name)
    atoms = len(section.atom_name)
    sizes = {"chain_": chains, "residue_": residues, "atom_": atoms}
    _check_lengths(arrays, sizes, ("chain_residue", "residue_atom"))
    _check_offsets(section.chain_residue, chains, residues)
    _check_offsets(section.residue_atom, residues, atoms)
    _check_range("atom_row", section.atom_row, -1, record.num_atoms)
    _check_range("chain_asym", section.chain_asym, 0, record.num_chains)
    _check_range("chain_operator", section.chain_operator, -1, len(record.operators))
    _check_range("bond_atom", section.bond_atom, 0, atoms)
    _check_range("interface", section.interface, 0, chains)
    return section


def encode_alignment(alignment: Alignment) -> dict[str, PackedColumn]:
    """Columns of an alignment: the table of its rows, and its distinct sequences in MSA5."""
    arrays = {
        name: getattr(alignment, name)
        for name in (
            "row_letters row_source row_species row_gapless deletion_start deletion_column "
            "deletion_count"
        ).split()
    }
    more = {
        "name": alignment.name,
        "sources": list(alignment.sources),
        "species": list(alignment.species),
        "shape": list(alignment.letters.shape),
    }
    for key, (prefix, kind) in _TEMPLATE_FIELDS.items():
        if table := getattr(alignment, key):
            values = {field.name: getattr(table, field.name) for field in dataclasses.fields(kind)}
            more[key] = [list(value) for value in values.values() if isinstance(value, tuple)]
            arrays |= {prefix + n: v for n, v in values.items() if not isinstance(v, tuple)}
    return {
        "rows": pack_arrays(arrays, more),
        "letters": packed(Codec.MSA5, pack_rows(alignment.letters)),
    }


def decode_alignment(columns: Columns) -> Alignment:
    """The alignment of `encode_alignment`.

    Raises:
        ValueError: the bytes are not those of an alignment.
    """
    arrays, more = unpack_arrays(columns["rows"])
    distinct, length = (int(size) for size in more["shape"])
    letters = columns["letters"]
    if letters.codec != Codec.MSA5 or len(letters.payload) != distinct * row_nbytes(length):
        raise ValueError(f"{len(letters.payload)} bytes are not {distinct} rows of {length}")
    rows = np.frombuffer(letters.payload, np.uint8).reshape(distinct, row_nbytes(length))
    values: dict[str, Any] = {
        key: _templates(key, arrays, more, length) for key in _TEMPLATE_FIELDS
    } | arrays
    alignment = Alignment(
        name=more["name"],
        sources=tuple(more["sources"]),
        species=tuple(more["species"]),
        letters=unpack_rows_compiled(rows, length),
        **values,
    )
    count = len(alignment.row_letters)
    _check_lengths(arrays, {"row_": count}, ())
    _check_offsets(alignment.deletion_start, count, len(alignment.deletion_column))
    _check_lengths(arrays, {"deletion_": len(alignment.deletion_column)}, ("deletion_start",))
    _check_range("row_letters", alignment.row_letters, 0, distinct)
    _check_range("row_source", alignment.row_source, 0, len(alignment.sources))
    _check_range("row_species", alignment.row_species, -1, len(alignment.species))
    _check_range("deletion_column", alignment.deletion_column, 0, length)
    return alignment


def _templates(key: str, arrays: dict[str, Any], more: Mapping[str, Any], length: int) -> Any:
    """A field of `_TEMPLATE_FIELDS`, its arrays removed from `arrays`; None if it is absent."""
    if key not in more:
        return None
    prefix, kind = _TEMPLATE_FIELDS[key]
    texts = (tuple(map(str, column)) for column in more[key])
    names = [field.name for field in dataclasses.fields(kind)]
    values: dict[str, Any] = {
        n: arrays.pop(prefix + n) if prefix + n in arrays else next(texts, ()) for n in names
    }
    shape = (len(values["name"]), length)
    shapes: dict[str, tuple[int, ...]] = {"restype": shape, "position": (*shape, 4, 3)}
    if "seen" in values:
        shapes |= {"seen": (*shape, 37), "position": (int(values["seen"].sum()), 3)}
    sizes = {name: np.shape(value) for name, value in values.items()}
    if sizes != {name: shapes.get(name, shape[:1]) for name in names}:
        raise ValueError(f"{key} of shapes {sizes}")
    return kind(**values)


_MOLECULE: Final[tuple[tuple[str, str, str, Any], ...]] = (
    ("name", "name", "U1", lambda a, b, k, p: a),
    ("element", "element", "i8", lambda a, b, k, p: a),
    ("charge", "charge", "i8", lambda a, b, k, p: a),
    ("mask", "mask", "?", lambda a, b, k, p: a),
    ("bond", "bond", "i8", lambda a, b, k, p: 2 * b),
    ("order", "orders", "i8", lambda a, b, k, p: a * p),
    ("position", "position", "f4", lambda a, b, k, p: 3 * a * k),
)
"""Column, field of `Molecule`, dtype of an empty column, and number of values for a atoms, b bonds,
k conformers and p orders."""


def encode_molecules(molecules: Mapping[str, Molecule]) -> dict[str, PackedColumn]:
    """Columns of reference molecules, concatenated in order of their names."""
    values = [molecules[name] for name in sorted(molecules)]
    sizes = [(len(m.name), len(m.bond), len(m.position), len(m.orders)) for m in values]
    counts = np.array(sizes, np.int64).reshape(-1, 4).T
    arrays = dict(zip(("atoms", "bonds", "conformers", "orders"), counts, strict=True))
    for column, field, dtype, _ in _MOLECULE:
        parts = [getattr(molecule, field).reshape(-1) for molecule in values]
        joined = np.concatenate(parts) if parts else np.zeros(0, dtype)
        arrays[column] = joined.astype(np.float32) if dtype == "f4" else joined
    return {"molecules": pack_arrays(arrays, {"names": sorted(molecules)})}


def decode_molecules(columns: Columns) -> dict[str, Molecule]:
    """Molecules by name.

    Raises:
        ValueError: the bytes are not those of molecules.
    """
    arrays, more = unpack_arrays(columns["molecules"])
    counts = [arrays[name] for name in ("atoms", "bonds", "conformers", "orders")]
    parts: dict[str, list[np.ndarray]] = {}
    for column, field, _, size in _MOLECULE:
        starts = offsets(size(*counts))
        if starts[-1] != len(arrays[column]) or len(counts[0]) != len(more["names"]):
            raise ValueError(f"molecules: {column} has {len(arrays[column])} values")
        parts[field] = np.split(arrays[column], starts[1:-1])
    molecules = {}
    for row, name in enumerate(more["names"]):
        fields = {field: values[row] for field, values in parts.items()}
        atoms = len(fields["name"])
        shapes = {"bond": (-1, 2), "orders": (-1, atoms), "position": (-1, atoms, 3)}
        fields |= {field: fields[field].reshape(shape) for field, shape in shapes.items()}
        molecules[str(name)] = Molecule(**fields)
    return molecules


_TEXT_FIELDS: Final = ("code", "type", "one_letter", "parent", "model_entry")
_ATOM_FIELDS: Final = ("name", "element", "charge", "leaving", "ideal", "model")
_BOND_FIELDS: Final = ("bond", "bond_order", "bond_aromatic")


def encode_components(components: Mapping[str, Component]) -> dict[str, PackedColumn]:
    """Columns of a dictionary of components."""
    values = [components[code] for code in sorted(components)]
    arrays: dict[str, np.ndarray] = {
        "atoms": np.array([len(component.name) for component in values], np.int64),
        "bonds": np.array([len(component.bond) for component in values], np.int64),
    }
    for name in (*_ATOM_FIELDS, *_BOND_FIELDS):
        columns = [getattr(component, name) for component in values]
        arrays[name] = np.concatenate(columns) if columns else np.zeros(0)
    more = {name: [getattr(component, name) for component in values] for name in _TEXT_FIELDS}
    return {"components": pack_arrays(arrays, more)}


def decode_components(columns: Columns) -> ComponentTable:
    """The dictionary of `encode_components`.

    Raises:
        ValueError: the bytes are not those of components.
    """
    arrays, more = unpack_arrays(columns["components"])
    starts = {"atoms": offsets(arrays["atoms"]), "bonds": offsets(arrays["bonds"])}
    components = {}
    for row, code in enumerate(more["code"]):
        fields: dict[str, Any] = {name: more[name][row] for name in _TEXT_FIELDS}
        for kind, names in (("atoms", _ATOM_FIELDS), ("bonds", _BOND_FIELDS)):
            span = slice(starts[kind][row], starts[kind][row + 1])
            fields |= {name: arrays[name][span] for name in names}
        components[str(code)] = Component(**fields)
    return ComponentTable(components)


def _plain(value: Any) -> Any:
    """A value as JSON types: dataclasses as objects, tuples as lists, NaN as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, float) and value != value:
        return None
    return value


def _entity(values: dict[str, Any]) -> Entity:
    return Entity(
        **{
            **values,
            "monomers": tuple(values["monomers"]),
            "rivals": tuple((int(row), str(name)) for row, name in values["rivals"]),
        }
    )


def _link(values: dict[str, Any]) -> Link:
    first, second = (LinkEnd(**{**end, "author": tuple(end["author"])}) for end in values["ends"])
    length = float("nan") if values["length"] is None else float(values["length"])
    return Link(kind=values["kind"], ends=(first, second), length=length)


def _check_lengths(
    arrays: Mapping[str, Any], sizes: Mapping[str, int], skipped: tuple[str, ...]
) -> None:
    for name, array in arrays.items():
        for prefix, size in sizes.items():
            if name.startswith(prefix) and name not in skipped and len(array) != size:
                raise ValueError(f"{name} has {len(array)} rows, not {size}")


def _check_offsets(starts: np.ndarray, rows: int, total: int) -> None:
    valid = len(starts) == rows + 1 and starts[0] == 0 and starts[-1] == total
    if not valid or (np.diff(starts) < 0).any():
        raise ValueError(f"offsets do not run from 0 to {total} over {rows} rows")


def _check_range(name: str, values: np.ndarray, low: int, stop: int) -> None:
    if len(values) and (int(values.min()) < low or int(values.max()) >= stop):
        raise ValueError(f"{name} names a row outside {low} to {stop - 1}")


DECODERS: Final[Mapping[str, Callable[[Columns], Any]]] = {
    "entry": decode_entry,
    "alignment": decode_alignment,
    "molecules": decode_molecules,
    "components": decode_components,
}
"""Decoders of columns by kind of record."""
