"""`python -m hybridmem …`: the command line, where the `hybridmem` command is not on the path."""

from __future__ import annotations

from hybridmem.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
