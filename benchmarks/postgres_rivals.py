"""The rivals of benchmarks/postgres.py on the same server and data, each the way its own documentation says.

Both get their full-text index and an index on the field that tells users apart (LangChain's metadata column,
LlamaIndex's `indexed_metadata_keys`). The tables are made by their own code; the rows are copied in.
"""

from __future__ import annotations

import json
import uuid

import psycopg

DIM, K = 384, 10


def copied(url: str, table: str, columns: str, rows) -> None:
    with psycopg.connect(url) as conn, conn.cursor().copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


def settled(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement)


def langchain(url: str, rows, lookup):
    from langchain_core.embeddings import Embeddings
    from langchain_postgres import Column, PGEngine, PGVectorStore
    from langchain_postgres.v2.hybrid_search_config import HybridSearchConfig, reciprocal_rank_fusion

    class Known(Embeddings):
        def embed_documents(self, texts):
            return [lookup[text].tolist() for text in texts]

        def embed_query(self, text):
            return lookup[text].tolist()

    def config(**words):
        return HybridSearchConfig(
            tsv_column="content_tsv", primary_top_k=K, secondary_top_k=K,
            fusion_function=reciprocal_rank_fusion, **words,
        )  # fmt: skip

    engine = PGEngine.from_connection_string(url.replace("postgresql://", "postgresql+asyncpg://"))
    engine.init_vectorstore_table("lc", DIM, metadata_columns=[Column("space", "TEXT")], hybrid_search_config=config())
    settled(url, "ALTER TABLE lc ALTER content_tsv DROP NOT NULL")
    copied(
        url, "lc", "langchain_id, content, embedding, space, langchain_metadata",
        ((uuid.uuid4(), r.text, str(r.vector.tolist()), r.space, json.dumps({"id": r.id})) for r in rows),
    )  # fmt: skip
    settled(
        url,
        "UPDATE lc SET content_tsv = to_tsvector('pg_catalog.english', content)",
        "CREATE INDEX lc_tsv ON lc USING gin (content_tsv)",
        "CREATE INDEX lc_space ON lc (space)",
        "VACUUM FULL ANALYZE lc",  # the UPDATE above left every row twice
    )
    store = PGVectorStore.create_sync(
        engine, Known(), "lc", metadata_columns=["space"], hybrid_search_config=config(), k=K
    )

    def ask(text: str, space: str | None):
        # a config of its own for each question: the store keeps the first question's words for everyone otherwise
        found = store.similarity_search(
            text, k=K, filter=None if space is None else {"space": space}, hybrid_search_config=config(fts_query=text)
        )
        return [document.metadata["id"] for document in found]

    return ask


def llamaindex(url: str, rows, lookup):
    from llama_index.core.vector_stores.types import (
        MetadataFilter,
        MetadataFilters,
        VectorStoreQuery,
        VectorStoreQueryMode,
    )  # fmt: skip
    from llama_index.vector_stores.postgres import PGVectorStore

    store = PGVectorStore.from_params(
        connection_string=url.replace("postgresql://", "postgresql+psycopg2://"),
        async_connection_string=url.replace("postgresql://", "postgresql+asyncpg://"),
        table_name="li", hybrid_search=True, embed_dim=DIM, indexed_metadata_keys={("space", "text")},
    )  # fmt: skip
    store._initialize()  # noqa: SLF001

    def stored(row):
        content = json.dumps({"id_": row.id, "text": row.text, "class_name": "TextNode"})
        meta = json.dumps({"space": row.space, "_node_type": "TextNode", "_node_content": content})
        return row.text, meta, row.id, str(row.vector.tolist())

    copied(url, "data_li", "text, metadata_, node_id, embedding", map(stored, rows))
    settled(url, "VACUUM ANALYZE data_li")

    def ask(text: str, space: str | None):
        filters = None if space is None else MetadataFilters(filters=[MetadataFilter(key="space", value=space)])
        query = VectorStoreQuery(
            query_embedding=lookup[text].tolist(), query_str=text, mode=VectorStoreQueryMode.HYBRID,
            similarity_top_k=K // 2, sparse_top_k=K // 2, filters=filters,
        )  # fmt: skip
        return store.query(query).ids[:K]

    return ask


def add_hnsw(url: str) -> None:
    """HNSW for both, as their own code makes it."""
    settled(
        url,
        "SET maintenance_work_mem = '512MB'",
        "CREATE INDEX ON lc USING hnsw (embedding vector_cosine_ops) WITH (m = 16, ef_construction = 64)",
        "CREATE INDEX ON data_li USING hnsw (embedding vector_cosine_ops) WITH (m = 16, ef_construction = 64)",
    )
