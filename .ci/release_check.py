"""Release check: build sdist and wheel, check their metadata, install the wheel in clean environments, run examples.

    make release-check

Every supported Python of this machine gets a virtual environment of its own with nothing but the wheel and its extras.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.support.pages import console_of, python_of  # noqa: E402  not installed

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PACKAGES = ("hybridmem", "langchain_hybridmem", "llamaindex_hybridmem")
EXTRAS = "langchain,llamaindex,langgraph,agents,mcp,local"


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command; on failure print its output and exit."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    words = [str(part) for part in command]
    done = subprocess.run(words, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"failed: {' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def build() -> Path:
    """Build both distributions into dist/ and return the wheel."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run(sys.executable, "-m", "uv", "build", "-q", "--out-dir", ROOT / "dist", ROOT)
    files = sorted(path for path in (ROOT / "dist").iterdir() if path.suffix in (".whl", ".gz"))
    print("built", *(path.name for path in files))
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    print("twine check: metadata and README rendering are valid")
    (wheel,) = (ROOT / "dist").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    here = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.*")}
    missing = sorted(name for name in here - names if "__pycache__" not in name)
    if missing:
        sys.exit(f"the wheel lacks {', '.join(missing)}")
    print(f"the wheel has every file of {', '.join(PACKAGES)}, the inspector's page too")
    return wheel


def import_tests(folder: Path) -> None:
    """Import every test and benchmark helper of the sdist, unpacked in a folder of its own."""
    (sdist,) = (ROOT / "dist").glob("*.tar.gz")
    shutil.unpack_archive(sdist, folder, filter="data")
    (unpacked,) = folder.iterdir()
    collect = ("-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests")
    print("sdist:", run(sys.executable, *collect, cwd=unpacked).splitlines()[-1])


def pythons() -> dict[str, str]:
    """The supported Pythons of this machine, by version."""
    found = {}
    for version in VERSIONS:
        command = [sys.executable, "-m", "uv", "python", "find", "--no-project", "--no-python-downloads", version]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        installed = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
        if done.returncode == 0:
            found[version] = done.stdout.strip()
        elif installed:  # the shims of pyenv on PATH fail for versions that are not selected
            found[version] = str(installed[-1])
    return found


def check(version: str, python: str, wheel: Path, folder: Path) -> None:
    """Install the wheel in an environment of its own and run the command and every example there."""
    place = folder / version
    run(sys.executable, "-m", "uv", "venv", "-q", "--no-project", "--python", python, place)
    inside = place / "bin" / "python"
    run(sys.executable, "-m", "uv", "pip", "install", "-q", "--python", inside, wheel)
    work = folder / f"work-{version}"
    work.mkdir()
    bare = "import hybridmem; m = hybridmem.HybridMemory(); m.add('Ana has moved.'); assert m.search('Ana')"
    run(inside, "-c", bare, cwd=work)
    everything = f"hybridmem[{EXTRAS}] @ {wheel.as_uri()}"
    run(sys.executable, "-m", "uv", "pip", "install", "-q", "--python", inside, everything)
    shown = run(place / "bin" / "hybridmem", "--version", cwd=work)
    examples = sorted((ROOT / "examples").glob("*.py"))
    for example in examples:
        run(inside, example, cwd=work)
    print(f"Python {version}: {shown}, {len(examples)} examples ran")
    if (place / "lib" / f"python{version}" / "site-packages" / "wordllama").exists():  # no wheel for 3.14 yet
        follow_quick_starts(version, inside, folder)


def follow_quick_starts(version: str, inside: Path, folder: Path) -> None:
    """Run the Python blocks and the console commands of each quick start, in an empty folder."""
    pages = sorted((ROOT / "docs").glob("quickstart-*.md"))
    for page in pages:
        began = time.monotonic()
        work = folder / f"{page.stem}-{version}"
        work.mkdir()
        (work / "start.py").write_text(python_of(page), encoding="utf-8")
        run(inside, "start.py", cwd=work)
        run("bash", "-e", "-c", f"PATH={inside.parent}:$PATH\n{console_of(page)}", cwd=work)
        print(f"Python {version}: {page.stem} took {time.monotonic() - began:.0f} s")


def main() -> None:
    """Build once, then check on every Python present."""
    wheel = build()
    with tempfile.TemporaryDirectory() as folder:
        import_tests(Path(folder) / "sdist")
        for version, python in pythons().items():
            check(version, python, wheel, Path(folder))


if __name__ == "__main__":
    main()
