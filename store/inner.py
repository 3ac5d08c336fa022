"""What other rooms build on besides the store's public names: the one inner door.

`featurize` publishes with it, `loader` reads packed columns, `service` shows a store. Users of
evofeed need none of it, and it may change with the format.
"""

from typing import TYPE_CHECKING

from evofeed.lazy import names_from

if TYPE_CHECKING:
    from evofeed.store.cache import answers
    from evofeed.store.clusters import parse_clusters
    from evofeed.store.crop import unpack_rows_compiled
    from evofeed.store.dataset import checked_index
    from evofeed.store.decode import FEATURES, ChainDecoder, Place
    from evofeed.store.garbage import sweep
    from evofeed.store.history import diff_indexes
    from evofeed.store.http_connection import Answer, HttpConnection
    from evofeed.store.index import canonical, index_schema, read_index
    from evofeed.store.join import groups_of, join_chains
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
    from evofeed.store.manifest import DIGEST, check_name
    from evofeed.store.msa_codec import row_nbytes
    from evofeed.store.opening import open_storage
    from evofeed.store.overlap import Clusters, overlap
    from evofeed.store.refs import Ref, delete_ref, list_refs, move_ref, read_ref, resident_ref
    from evofeed.store.resident import is_on_disk
    from evofeed.store.s3 import S3Storage
    from evofeed.store.shard import part_key, read_part, shard_key, store_shard
    from evofeed.store.statistics import (
        column_kinds,
        column_statistics,
        is_known,
        known_values,
        plain_values,
    )
    from evofeed.store.storage import Keeping, LocalStorage, Storage, StoredObject, open_regular
    from evofeed.store.unpickle import ArrayUnpickler
    from evofeed.store.writer import MoveRef

__all__ = [
    "Answer",
    "ArrayUnpickler",
    "COLUMNS",
    "COLUMN_NUMBER",
    "DIGEST",
    "FEATURES",
    "HEADER_NBYTES",
    "HttpConnection",
    "ChainDecoder",
    "Clusters",
    "Codec",
    "Compression",
    "Keeping",
    "Lease",
    "LocalStorage",
    "MoveRef",
    "PackedColumn",
    "Place",
    "Ref",
    "S3Storage",
    "Storage",
    "StoredObject",
    "answers",
    "canonical",
    "check_name",
    "checked_index",
    "column_kinds",
    "column_statistics",
    "delete_ref",
    "diff_indexes",
    "groups_of",
    "hold",
    "index_schema",
    "is_known",
    "is_on_disk",
    "known_values",
    "join_chains",
    "list_refs",
    "move_ref",
    "open_regular",
    "open_storage",
    "overlap",
    "parse_clusters",
    "part_key",
    "plain_values",
    "read_index",
    "read_part",
    "read_ref",
    "resident_ref",
    "row_nbytes",
    "shard_key",
    "store_shard",
    "sweep",
    "unpack_column",
    "unpack_rows_compiled",
    "wait_for_none",
]

_HOMES = {
    "cache": "answers",
    "clusters": "parse_clusters",
    "crop": "unpack_rows_compiled",
    "dataset": "checked_index",
    "decode": "ChainDecoder FEATURES Place",
    "garbage": "sweep",
    "history": "diff_indexes",
    "http_connection": "Answer HttpConnection",
    "index": "canonical index_schema read_index",
    "join": "groups_of join_chains",
    "layout": "COLUMNS COLUMN_NUMBER Codec Compression HEADER_NBYTES PackedColumn unpack_column",
    "leases": "Lease hold wait_for_none",
    "manifest": "DIGEST check_name",
    "msa_codec": "row_nbytes",
    "opening": "open_storage",
    "overlap": "Clusters overlap",
    "refs": "Ref delete_ref list_refs move_ref read_ref resident_ref",
    "resident": "is_on_disk",
    "s3": "S3Storage",
    "shard": "part_key read_part shard_key store_shard",
    "statistics": "column_kinds column_statistics is_known known_values plain_values",
    "storage": "Keeping LocalStorage Storage StoredObject open_regular",
    "unpickle": "ArrayUnpickler",
    "writer": "MoveRef",
}

__getattr__ = names_from(
    "evofeed.store", {name: module for module, names in _HOMES.items() for name in names.split()}
)
