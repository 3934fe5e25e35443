"""Events, atoms and profiles in Milvus: written by upsert, searched by meaning and by keyword.

One store is an :class:`~stores.protocols.EventIndex`, an :class:`~stores.protocols.AtomStore`,
a :class:`~stores.protocols.ProfileStore`, a :class:`~stores.protocols.Neighbours` and a
:class:`~stores.protocols.Searcher`. It speaks to a Milvus server (2.3.5 and 2.5 or newer) or to
milvus-lite through :func:`stores.embedded.open_embedded`.

``milvus_collections`` makes and verifies the collections, ``milvus_writing`` and
``milvus_reading`` are what their names say, all on ``milvus_base``; ``milvus_schema`` says how a
record lies in its collection.

**What is visible when.** ``atoms_of``, ``get_atom``, ``vectors_of``, ``events_of``,
``get_events``, ``profiles_of``, ``get_profile`` and ``holds`` read strongly: everything whose
upsert returned is there, and nothing whose deletion returned (about 200 ms on a server).
Searches, ``events_within`` and ``profiles_seen`` read with bounded staleness. On milvus-lite they
see a write or a deletion at once; on a Milvus 2.3.5 server an upsert was found 0.2 to 0.4 s after
it returned, a deletion as soon as it returned or up to 0.2 s later.

**One request, one change.** Rows of one scope in one upsert call that fit in a request (1,000
rows, some megabytes of text) change together: while a writer did nothing but rewrite two atoms in
one call, no read or search gave one old and one new, in 2,000 on milvus-lite and 5,000 on a Milvus
2.3.5 server. milvus-lite does so by its make: a request is one record of its log, applied under one
lock. A server does so within a shard, and collections are made with one. On that server one
search of 5,000 left out a row that was being rewritten. Rows of different layers, and a deletion
beside an upsert, are separate changes; so may be rows of different scopes.

**Crashes.** An upsert or deletion that returned survives ``kill -9``. One that did not may be
there, of a large one, or one for many scopes, some requests; repeating it leaves the same rows.

**What deleting does not do.** The row is gone for every read at once; its bytes leave the disk
when the store joins its files, which is up to the store and may be never for a file that gets
no company. To be rid of them now, drop the collections and rebuild.
"""

from __future__ import annotations

from stores.milvus_collections import MilvusCollections
from stores.milvus_reading import MilvusReading
from stores.milvus_writing import MilvusWriting

__all__ = ["MilvusStore"]


class MilvusStore(MilvusCollections, MilvusWriting, MilvusReading):
    """Milvus or milvus-lite behind the store protocols. Thread-safe.

    Nothing is asked of the server before :meth:`ensure_collections` or :meth:`describe`.
    Every call raises :class:`~stores.errors.ServiceUnavailable` when the store cannot be
    reached, is not ready, or does not answer in time, and :class:`~stores.errors.Terminal` when
    it refuses the call itself.

    :arg uri: ``http://host:port`` of the server.
    :arg token: ``user:password``, or the token of the embedded store.
    :arg prefix: what the collection names begin with.
    :arg dimension: length of every vector.
    :arg embedding_name: the model that makes the vectors; another one may not write here.
    :arg analyzer: ``jieba`` (Chinese and English) or ``standard`` (languages with spaces).
    :arg timeout_s: seconds after which a call is given up.
    :arg refuse_writes: why this store may not write, shown to the user; empty when it may.
    :arg reads: what searches go through instead of the connection;
        :attr:`stores.embedded.EmbeddedStore.reads` in the process that owns the embedded store.
    :arg observe: told the operation and its seconds after every call that succeeded.
    """
