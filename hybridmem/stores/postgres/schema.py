"""Schema in PostgreSQL: tables of the log (see `sqlite/schema.py`), derived tables, migrations, row-level security."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from psycopg import sql

from hybridmem.core.validation import text_digest
from hybridmem.errors import ConfigError, SchemaVersionError, StoreError
from hybridmem.stores.postgres import derived
from hybridmem.stores.postgres.connection import Conn, one_line
from hybridmem.stores.postgres.search.engines import Lexical
from hybridmem.text.conversation import cues_of, speaker_of

__all__ = [
    "MIGRATIONS",
    "TABLES",
    "VERSION",
    "ensure_vectors",
    "get_setting",
    "grant",
    "has_vectors",
    "prepare",
    "protect",
    "revoke",
    "set_setting",
    "version_of",
]

VERSION = 4
MAX_SKEW = 60
"""Seconds by which the clock of a client may be ahead of the server's."""

# The log: the same tables as in SQLite, each row with its namespace (for row-level security and for sharding).
#   counter    the sequence of seq; taken last in a write, so that numbers follow the order of commits
#   spaces     one row per namespace, locked by its writer: the newest seq, and live N and Σ|D| for BM25
# Derived, for the memories in the live view (not deleted, not superseded):
#   documents  a memory's terms and length       postings   (namespace, term, memory, tf, length)
#   terms      how many memories have a term     mentions   its entities
#   pointers   the ids listed in its metadata
#   speakers   how many memories a speaker has, given in `speaker` or as "Name:" at the start of the text
#   names      its folded names (title, aliases) and the labels of its links, by their longest word
#   embeddings its vector at length 1 (created with the first vector, since it needs pgvector)
SPEAKERS = """
CREATE TABLE IF NOT EXISTS speakers (
  namespace text COLLATE "C" NOT NULL, speaker text COLLATE "C" NOT NULL, named bigint NOT NULL,
  prefixed bigint NOT NULL, PRIMARY KEY (namespace, speaker)) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS versions_erased ON versions (namespace, seq) WHERE op = 5;
CREATE INDEX IF NOT EXISTS memories_by_sample ON memories (namespace, md5(id))
  WHERE live AND status <> 'superseded' AND vector IS NOT NULL;
"""
NAMES = """
CREATE TABLE IF NOT EXISTS names (
  namespace text COLLATE "C" NOT NULL, word text COLLATE "C" NOT NULL, id text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL, target text COLLATE "C" NOT NULL, PRIMARY KEY (namespace, word, id, name, target));
CREATE INDEX IF NOT EXISTS names_by_memory ON names (namespace, id);
"""
# Runs with the rights of the owner, so it checks its arguments: a time ahead of the server's clock by more than
# MAX_SKEW seconds would move the recorded times of all clients, and a large step would use up the numbers.
ADVANCE = """
CREATE OR REPLACE FUNCTION advance(step bigint, now float8) RETURNS TABLE (seq bigint, at float8)
  LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
  UPDATE counter c SET seq = c.seq + step,
    at = greatest(c.at, least(now, extract(epoch FROM clock_timestamp())::float8 + {skew}))
  WHERE step BETWEEN 0 AND 1000000000 AND now > '-Infinity'
  RETURNING c.seq, c.at $$;
""".replace("{skew}", str(MAX_SKEW))
TABLES = (
    """
CREATE TABLE settings (key text PRIMARY KEY, value text NOT NULL);
CREATE TABLE counter (one boolean PRIMARY KEY DEFAULT true CHECK (one), seq bigint NOT NULL, at float8 NOT NULL)
  WITH (fillfactor = 10);
INSERT INTO counter VALUES (true, 0, 0);
CREATE TABLE spaces (
  namespace text COLLATE "C" PRIMARY KEY, seq bigint NOT NULL DEFAULT 0, at float8 NOT NULL DEFAULT 0,
  memories bigint NOT NULL DEFAULT 0, length float8 NOT NULL DEFAULT 0, vectors bigint NOT NULL DEFAULT 0)
  WITH (fillfactor = 40);
CREATE VIEW state WITH (security_invoker = true) AS
  SELECT COALESCE(max(seq), 0) AS seq, COALESCE(max(at), 0) AS at FROM spaces;

CREATE SEQUENCE mems;
CREATE TABLE memories (
  mem bigint PRIMARY KEY, namespace text COLLATE "C" NOT NULL, id text COLLATE "C" NOT NULL,
  seq bigint NOT NULL, written bigint NOT NULL, live boolean NOT NULL, body bigint, vector bigint,
  status text NOT NULL, strength float8 NOT NULL, access_count bigint NOT NULL, last_accessed float8,
  decayed float8 NOT NULL, born bigint NOT NULL, source_id text, thread text COLLATE "C", created_at float8,
  updated_at float8, confidence float8 NOT NULL, words integer NOT NULL,
  speaker text, cues integer NOT NULL DEFAULT 0, event_at float8, expires_at float8,
  digest bigint, UNIQUE (namespace, id));
CREATE INDEX memories_by_seq ON memories (namespace, seq);
CREATE INDEX memories_by_expiry ON memories (namespace, expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX memories_by_digest ON memories (namespace, digest);
CREATE INDEX memories_by_thread ON memories (namespace, thread, created_at, born)
  WHERE live AND status <> 'superseded' AND thread IS NOT NULL;

CREATE TABLE versions (
  seq bigint PRIMARY KEY, namespace text COLLATE "C" NOT NULL, mem bigint NOT NULL, at float8 NOT NULL,
  op smallint NOT NULL, live boolean NOT NULL, body bigint, vector bigint, status text NOT NULL,
  strength float8 NOT NULL, access_count bigint NOT NULL, last_accessed float8, decayed float8 NOT NULL,
  born bigint NOT NULL);
CREATE INDEX versions_by_memory ON versions (mem, seq);
CREATE INDEX versions_by_time ON versions (at, seq);

CREATE TABLE bodies (
  seq bigint PRIMARY KEY, namespace text COLLATE "C" NOT NULL, words integer NOT NULL, title text NOT NULL,
  tags json, predicate text NOT NULL, subject text NOT NULL, source_id text, thread text, type text NOT NULL,
  entities json, created_at float8,
  updated_at float8, confidence float8 NOT NULL, supersedes text, metadata json, text text NOT NULL,
  speaker text NOT NULL DEFAULT '', event_at float8, expires_at float8, spoken_by text,
  cues integer NOT NULL DEFAULT 0);
CREATE TABLE vectors (seq bigint PRIMARY KEY, namespace text COLLATE "C" NOT NULL, data bytea NOT NULL);
ALTER TABLE vectors ALTER data SET STORAGE EXTERNAL;

CREATE TABLE edge_log (
  seq bigint PRIMARY KEY, at float8 NOT NULL, namespace text COLLATE "C" NOT NULL, a text COLLATE "C" NOT NULL,
  b text COLLATE "C" NOT NULL, relation text NOT NULL, weight float8 NOT NULL, gone boolean NOT NULL);
CREATE INDEX edge_log_by_space ON edge_log (namespace, seq);
CREATE INDEX edge_log_by_time ON edge_log (at, seq);
CREATE TABLE edges (
  namespace text COLLATE "C" NOT NULL, a text COLLATE "C" NOT NULL, b text COLLATE "C" NOT NULL,
  relation text COLLATE "C" NOT NULL, weight float8 NOT NULL, seq bigint NOT NULL,
  PRIMARY KEY (namespace, a, b, relation));
CREATE INDEX edges_by_end ON edges (namespace, b);

CREATE TABLE meta (key text PRIMARY KEY, value text NOT NULL);
CREATE TABLE snapshots (
  namespace text COLLATE "C" NOT NULL, name text NOT NULL, part integer NOT NULL, parts integer NOT NULL,
  watermark bigint NOT NULL, data bytea NOT NULL, UNIQUE (namespace, name, part));

CREATE TABLE documents (
  namespace text COLLATE "C" NOT NULL, mem bigint NOT NULL, length real NOT NULL, terms text[] COLLATE "C" NOT NULL,
  PRIMARY KEY (namespace, mem));
CREATE TABLE postings (
  namespace text COLLATE "C" NOT NULL, term text COLLATE "C" NOT NULL, mem bigint NOT NULL, tf real NOT NULL,
  length real NOT NULL, PRIMARY KEY (namespace, term, mem) INCLUDE (tf, length));
{terms}
CREATE TABLE mentions (
  namespace text COLLATE "C" NOT NULL, entity text COLLATE "C" NOT NULL, id text COLLATE "C" NOT NULL,
  name text NOT NULL, PRIMARY KEY (namespace, entity, id));
CREATE INDEX mentions_by_memory ON mentions (namespace, id, entity);
{speakers}
{names}
CREATE TABLE pointers (
  namespace text COLLATE "C" NOT NULL, id text COLLATE "C" NOT NULL, target text COLLATE "C" NOT NULL,
  PRIMARY KEY (namespace, id, target));
CREATE INDEX pointers_by_target ON pointers (namespace, target);

{advance}
""".replace("{terms}", derived.TERMS_TABLE)
    .replace("{speakers}", SPEAKERS)
    .replace("{names}", NAMES)
    .replace("{advance}", ADVANCE)
)

TENANT_TABLES = (
    "spaces", "memories", "versions", "bodies", "vectors", "edge_log", "edges", "snapshots", "documents", "postings",
    "terms", "mentions", "pointers", "speakers", "names",
)  # fmt: skip
"""The tables whose rows belong to a namespace (and `embeddings`, once it exists)."""

# What `hybridmem.core.times.epoch` reads from a JSON text or number, as SQL: NULL when it is no time.
EPOCH = r"""
CREATE FUNCTION epoch(given text, number boolean) RETURNS float8 LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  plain text := btrim(given, E' \t\n\r\f\v');
  parts text[];
  seconds float8;
  zone text;
  shift integer := 0;
BEGIN
  IF number OR plain ~ '^[+-]?[0-9]{9,}([.][0-9]+)?$' THEN
    seconds := plain::float8;
    IF abs(seconds) > 1e11 THEN seconds := seconds / 1000; END IF;
  ELSE
    parts := regexp_match(plain, '^([0-9]{4})(-?)([0-9]{2})(-?)([0-9]{2})'
      '(?:[Tt ]([0-9]{2})(?::?([0-9]{2})(?::?([0-9]{2})'
      '(?:[.,]([0-9]+))?)?)?\s*([Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?)?$');
    IF parts IS NULL OR parts[2] <> parts[4] OR coalesce(parts[6], '0')::int > 23 OR coalesce(parts[7], '0')::int > 59
       OR coalesce(parts[8], '0')::int > 59 OR parts[1] = '0000' THEN RETURN NULL; END IF;
    zone := parts[10];
    IF zone IS NOT NULL AND upper(zone) <> 'Z' THEN
      shift := rpad(replace(substr(zone, 2), ':', ''), 4, '0')::int;
      IF shift / 100 > 23 OR shift % 100 > 59 THEN RETURN NULL; END IF;
      shift := (shift / 100) * 3600 + (shift % 100) * 60;
      IF left(zone, 1) = '-' THEN shift := -shift; END IF;
    END IF;
    seconds := (make_date(parts[1]::int, parts[3]::int, parts[5]::int) - DATE '1970-01-01')::float8 * 86400
      + coalesce(parts[6], '0')::int * 3600 + coalesce(parts[7], '0')::int * 60 + coalesce(parts[8], '0')::int - shift;
    IF parts[9] IS NOT NULL THEN seconds := seconds + rpad(left(parts[9], 6), 6, '0')::int / 1e6::float8; END IF;
  END IF;
  IF seconds >= -62135596800 AND seconds < 253402300800 THEN RETURN seconds; END IF;
  RETURN NULL;
EXCEPTION WHEN data_exception THEN RETURN NULL;
END $$
"""

# The policy uses the role's name, which the role cannot change; it could change a setting.
_OWN_ROWS = "namespace IN (SELECT t.namespace FROM tenants t WHERE t.role = current_user)"


# The numbers of all namespaces come from one sequence: a role that wrote rows with numbers that are not given out yet
# would make the next writes of all others fail.
_GIVEN_OUT = """
CREATE OR REPLACE FUNCTION given_out() RETURNS TABLE (seq bigint, mem bigint)
  LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
  SELECT c.seq, s.last_value FROM counter c, mems s $$
"""
_NUMBERED = dict.fromkeys(("spaces", "versions", "bodies", "vectors", "edge_log"), "seq") | {"memories": "mem"}
"""The tables with numbers of all namespaces, and the column."""


def protect(conn: Conn, table: str, /) -> None:
    """Enable row-level security for one table: a role reads and writes the rows of its namespaces."""
    column = _NUMBERED.get(table)
    given = f" AND {column} <= (SELECT g.{column} FROM given_out() g)" if column else ""  # noqa: S608 - names are ours
    conn.raw.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    conn.raw.execute(f"DROP POLICY IF EXISTS own ON {table}")
    conn.raw.execute(f"CREATE POLICY own ON {table} USING ({_OWN_ROWS}) WITH CHECK ({_OWN_ROWS}{given})")


Migration = Callable[[Conn], None]


def _drop_full_indexes(conn: Conn) -> None:
    """1 → 2: HNSW indexes hold half-precision vectors; those of full vectors are built again when needed."""
    found = conn.raw.execute(
        "SELECT indexname FROM pg_indexes WHERE schemaname = current_schema() "
        "AND indexname LIKE 'embeddings\\_hnsw\\_%'"
    )
    for (name,) in found.fetchall():
        conn.raw.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(name)))


def _count_terms(conn: Conn) -> None:
    """2 → 3: the number of memories with a term is stored. Open clients of the old version can no longer write."""
    from hybridmem.stores.postgres.derived import Deriver

    conn.raw.execute("SET LOCAL statement_timeout = 0")
    conn.raw.execute(derived.TERMS_TABLE)
    derived.recount_terms(conn.raw)
    set_setting(conn, "derived", {**Deriver().to_dict(), **(get_setting(conn, "derived") or {})})
    _protect_new(conn, "terms")


def _protect_new(conn: Conn, table: str) -> None:
    """Give a new table the row-level security of the others, if there is any."""
    if conn.raw.execute("SELECT to_regclass('tenants')").fetchone() != (None,):
        protect(conn, table)
        for (role,) in conn.raw.execute("SELECT DISTINCT role FROM tenants JOIN pg_roles ON rolname = role").fetchall():
            conn.raw.execute(
                sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {}").format(
                    sql.Identifier(table), sql.Identifier(role)
                )
            )


def _add_speakers(conn: Conn) -> None:
    """3 → 4: speaker, event_at, expires_at, digest and cues; cues replace the column `asks`."""
    run = conn.raw.execute
    run("SET LOCAL statement_timeout = 0")
    run(
        "ALTER TABLE bodies ADD speaker text NOT NULL DEFAULT '', ADD event_at float8, ADD expires_at float8, "
        "ADD spoken_by text, ADD cues integer NOT NULL DEFAULT 0"
    )
    run(
        "ALTER TABLE memories DROP asks, ADD speaker text, ADD cues integer NOT NULL DEFAULT 0, ADD event_at float8, "
        "ADD expires_at float8, ADD digest bigint"
    )
    last = 0
    while rows := run("SELECT seq, text FROM bodies WHERE seq > %s ORDER BY seq LIMIT 2000", (last,)).fetchall():
        run(
            "UPDATE bodies b SET cues = n.cues, spoken_by = n.speaker FROM unnest(%s::bigint[], %s::integer[], "
            "%s::text[]) AS n (seq, cues, speaker) WHERE b.seq = n.seq",
            ([row[0] for row in rows], [cues_of(row[1]) for row in rows], [speaker_of(row[1]) for row in rows]),
        )
        run(
            "UPDATE memories m SET digest = n.digest FROM unnest(%s::bigint[], %s::bigint[]) AS n (seq, digest) "
            "WHERE m.body = n.seq",
            ([row[0] for row in rows], [text_digest(row[1]) for row in rows]),
        )
        last = rows[-1][0]
    run("CREATE INDEX memories_by_expiry ON memories (namespace, expires_at) WHERE expires_at IS NOT NULL")
    run("CREATE INDEX memories_by_digest ON memories (namespace, digest)")
    run("UPDATE memories m SET speaker = b.spoken_by, cues = b.cues FROM bodies b WHERE b.seq = m.body")
    run("DELETE FROM snapshots")
    run(SPEAKERS)
    run(NAMES)
    run(ADVANCE)
    for table in ("speakers", "names"):
        _protect_new(conn, table)
    from hybridmem.stores.postgres.derived import Deriver
    from hybridmem.stores.postgres.maintenance import rebuild

    rebuild(conn, Deriver.from_dict({**Deriver().to_dict(), **(get_setting(conn, "derived") or {})}))


MIGRATIONS: Mapping[int, Migration] = {1: _drop_full_indexes, 2: _count_terms, 3: _add_speakers}
"""From each version to the next: `{1: change}` brings a store of version 1 to version 2."""


def prepare(
    conn: Conn, schema: str, name: str, /, *, version: int = VERSION, migrations: Mapping[int, Migration] = MIGRATIONS
) -> None:
    """Create the tables in an empty schema, migrate an older one, refuse a newer one.

    Runs in a transaction that locks the whole store, so that two clients never both create or migrate.
    """
    found = version_of(conn, schema)
    if found is None:
        conn.raw.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        conn.raw.execute(TABLES)
        conn.raw.execute(EPOCH)
        set_setting(conn, "version", VERSION)
        found = VERSION
    if found > version:
        raise SchemaVersionError(
            f"{name} has schema version {found}, and this hybridmem reads up to {version}: upgrade hybridmem to open it"
        )
    for step in range(found, version):
        migrations[step](conn)
        set_setting(conn, "version", step + 1)


def version_of(conn: Conn, schema: str, /) -> int | None:
    """The version of the schema; None when there are no tables."""
    there = "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = 'settings'"
    if conn.raw.execute(there, (schema,)).fetchone() is None:
        return None
    return int(get_setting(conn, "version") or 0)


def get_setting(conn: Conn, key: str, /) -> Any:
    """A setting of the store itself (never exported), or None."""
    row = conn.raw.execute("SELECT value FROM settings WHERE key = %s", (key,)).fetchone()
    return None if row is None else json.loads(row[0])


def set_setting(conn: Conn, key: str, value: Any, /) -> None:
    """Write a setting of the store itself."""
    conn.raw.execute(
        "INSERT INTO settings VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, json.dumps(value)),
    )


def has_vectors(conn: Conn, /) -> bool:
    """Whether the table of vectors exists."""
    # Reading pg_class refreshes the server's cache. With to_regclass alone, a client that has just waited for another's
    # lock would not see the new table.
    found = conn.raw.execute("SELECT 1 FROM pg_class WHERE oid = to_regclass('embeddings')").fetchone()
    return found is not None


def ensure_vectors(conn: Conn, name: str, /) -> None:
    """Create the extension pgvector and the table of vectors, with the first vector."""
    if has_vectors(conn):
        return
    try:
        with conn.raw.transaction():
            conn.raw.execute("CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA public")
    except psycopg.Error as error:
        raise StoreError(
            f"{name}: vectors need the extension pgvector, which cannot be created here: install it on the server and "
            f"run CREATE EXTENSION vector as its owner, or open the memory with embedder=None ({one_line(error)})"
        ) from error
    conn.raw.execute(
        'CREATE TABLE IF NOT EXISTS embeddings (namespace text COLLATE "C" NOT NULL, mem bigint NOT NULL, '
        "dim integer NOT NULL, embedding vector NOT NULL, PRIMARY KEY (namespace, mem))"
    )
    conn.raw.execute("ALTER TABLE embeddings ALTER embedding SET STORAGE MAIN")


# --- row-level security

_TENANTS = """
CREATE TABLE IF NOT EXISTS tenants (
  role text NOT NULL, namespace text COLLATE "C" NOT NULL, PRIMARY KEY (role, namespace));
ALTER TABLE tenants ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS own ON tenants;
CREATE POLICY own ON tenants FOR SELECT USING (role = current_user);
CREATE UNIQUE INDEX IF NOT EXISTS memories_in_space ON memories (namespace, mem);
ALTER TABLE versions DROP CONSTRAINT IF EXISTS versions_in_space;
ALTER TABLE versions ADD CONSTRAINT versions_in_space FOREIGN KEY (namespace, mem)
  REFERENCES memories (namespace, mem) DEFERRABLE INITIALLY DEFERRED
"""


def grant(conn: Conn, schema: str, role: str, namespace: str, lexical: Lexical, /) -> None:
    """Let a role read and write one namespace, and enable row-level security. Run by the owner of the tables."""
    if conn.raw.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone() is None:
        raise ConfigError(f"role {role!r} does not exist: CREATE ROLE it first, without SUPERUSER and BYPASSRLS")
    strong = "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = %s"
    if conn.raw.execute(strong, (role,)).fetchone() == (True,):
        raise ConfigError(f"role {role!r} has SUPERUSER or BYPASSRLS, which ignore row-level security")
    conn.raw.execute(_TENANTS)
    conn.raw.execute(_GIVEN_OUT)
    engine = lexical.engine_table
    optional = [*(["embeddings"] if has_vectors(conn) else []), *([] if engine is None else [engine.table])]
    tables = [*TENANT_TABLES, *optional]
    for table in tables:
        protect(conn, table)
    name, place = sql.Identifier(role), sql.Identifier(schema)
    owned = sql.SQL(", ").join(map(sql.Identifier, tables))
    for statement in (
        sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(place, name),
        sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {}").format(owned, name),
        sql.SQL("GRANT SELECT ON settings, meta, state, tenants TO {}").format(name),
        sql.SQL("GRANT USAGE ON SEQUENCE mems TO {}").format(name),
    ):
        conn.raw.execute(statement)
    conn.raw.execute("INSERT INTO tenants VALUES (%s, %s) ON CONFLICT DO NOTHING", (role, namespace))


def revoke(conn: Conn, role: str, namespace: str, /) -> None:
    """Revoke a role's access to a namespace."""
    conn.raw.execute("DELETE FROM tenants WHERE role = %s AND namespace = %s", (role, namespace))
