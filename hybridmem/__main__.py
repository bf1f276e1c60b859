"""`python -m hybridmem`: the command line, for environments where the `hybridmem` script is not on PATH."""

from __future__ import annotations

from hybridmem.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
