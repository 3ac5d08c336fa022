"""Internal names of the store that other rooms may import in addition to its public ones.

`featurize` publishes with them, `loader` reads packed columns, `service` shows a store. They are
not public, and may change with the format.
"""

# ruff: noqa: F401 (imported for other rooms)

from typing import TYPE_CHECKING

from evofeed.base.lazy import names_from

if TYPE_CHECKING:
    from evofeed.store.assemblies import AssemblySpan, read_assembly
    from evofeed.store.cache import answers
    from evofeed.store.decode import FEATURES, ChainDecoder, Origin
    from evofeed.store.entries import read_entry, read_value, record_spans
    from evofeed.store.entry_codecs import (
        PROJECTS,
        encode_alignment,
        encode_components,
        encode_entry,
        encode_molecules,
    )
    from evofeed.store.history import read_manifest
    from evofeed.store.http_connection import Answer, HttpConnection
    from evofeed.store.index import index_schema
    from evofeed.store.layout import (
        COLUMN_NUMBER,
        COLUMNS,
        HEADER_NBYTES,
        Codec,
        Compression,
        PackedColumn,
        unpack_column,
    )
    from evofeed.store.leases import Lease, hold, wait_for_none
    from evofeed.store.likeness import Clusters, connected, overlap, parse_clusters, similar_pairs
    from evofeed.store.manifest import DIGEST, check_name
    from evofeed.store.msa_codec import row_nbytes
    from evofeed.store.opening import open_storage
    from evofeed.store.refs import Ref, list_refs, move_ref, read_ref
    from evofeed.store.s3 import S3Storage
    from evofeed.store.shard import part_key, read_part, shard_key
    from evofeed.store.spans import RecordSpan, SpanTable
    from evofeed.store.statistics import (
        column_kinds,
        column_statistics,
        is_known,
        known_values,
        plain_values,
    )
    from evofeed.store.storage import LocalStorage, Storage, StoredObject, SupportsForget
    from evofeed.store.writer import MoveRef

__getattr__ = names_from(__name__)
