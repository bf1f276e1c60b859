"""The side tables of a store: settings, and saved states of indexes."""

from __future__ import annotations

from typing import Any

__all__ = ["get_meta", "load", "save", "set_meta"]

_PART = 4 * 1024 * 1024  # a blob of a gigabyte would meet SQLite's limit, and be copied whole in memory


def get_meta(conn: Any, key: str, /) -> str | None:
    """A setting, or None."""
    row = conn.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def set_meta(conn: Any, key: str, value: str, /) -> None:
    """Store a setting."""
    conn.execute("INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value))


def load(conn: Any, name: str, namespace: str, /) -> tuple[int, bytes] | None:
    """A saved state with its watermark; None when there is none or parts of it are missing."""
    rows = conn.execute(
        "SELECT watermark, parts, data FROM snapshots WHERE namespace = ? AND name = ? ORDER BY part", (namespace, name)
    ).fetchall()
    if not rows or len(rows) != rows[0][1]:
        return None
    return int(rows[0][0]), rows[0][2] if len(rows) == 1 else b"".join(row[2] for row in rows)


def save(conn: Any, name: str, namespace: str, watermark: int, blob: bytes, /) -> None:
    """Replace a saved state, in parts."""
    conn.execute("DELETE FROM snapshots WHERE namespace = ? AND name = ?", (namespace, name))
    view = memoryview(blob)
    parts = max(1, -(-len(view) // _PART))
    conn.executemany(
        "INSERT INTO snapshots (namespace, name, part, parts, watermark, data) VALUES (?, ?, ?, ?, ?, ?)",
        ((namespace, name, i, parts, watermark, view[i * _PART : (i + 1) * _PART]) for i in range(parts)),
    )
