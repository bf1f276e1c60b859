"""Row-level security: database roles that can read and write only their own namespaces."""

from __future__ import annotations

from psycopg import sql

from hybridmem.errors import ConfigError
from hybridmem.stores.postgres.connection import Conn
from hybridmem.stores.postgres.schema import TENANT_TABLES, has_vectors, protect
from hybridmem.stores.postgres.search.engines import Lexical

__all__ = ["grant", "revoke"]

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
