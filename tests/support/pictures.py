"""Makes the pictures of the docs in a real browser: `python -m tests.support.pictures docs [LoCoMo folder]`."""

from __future__ import annotations

import io
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from PIL import Image

from hybridmem import HybridMemory, Memory
from hybridmem.evaluation.cases import load_cases
from hybridmem.server.inspector import Inspector
from tests.support.browser import open_browser, resize, show
from tests.support.demo_store import CASES, SMALL, fill

QUESTION = "Where does the cat sleep?"


class Camera:
    """One browser that takes pictures of an inspector's page."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver, self.folder = driver, folder

    def open(self, inspector: Inspector, *, width: int, height: int, **state: str) -> None:
        """Load the page with a state in its URL, and wait for the answer."""
        resize(self.driver, width, height)
        self.driver.get("about:blank")
        values = "&".join(f"{name}={quote(value)}" for name, value in state.items())
        self.driver.get(f"{inspector.url}#{values}")
        self.wait("document.querySelector('#groups .control')")
        if "q" in state:
            self.wait("document.body.dataset.turn")
        if "open" in state:
            self.wait("!document.getElementById('detail').hidden")

    def wait(self, script: str) -> None:
        """Wait until an expression is true in the page."""
        deadline = time.monotonic() + 60
        while not self.driver.execute_script(f"return Boolean({script})"):
            if time.monotonic() > deadline:
                raise TimeoutError(script)
            time.sleep(0.05)

    def run(self, script: str) -> None:
        """Run a script in the page."""
        self.driver.execute_script(script)

    def take(self, name: str) -> None:
        """Save what the page shows, in 256 colours, a third of the size."""
        time.sleep(0.3)  # transitions
        path = self.folder / f"{name}.png"
        picture = Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
        few = picture.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
        few.save(path, optimize=True)


@contextmanager
def demo_memory() -> Iterator[HybridMemory]:
    """The demo memory with the local embedder."""
    with HybridMemory(embedder="local") as memory:
        fill(memory)
        yield memory


def take_demo(camera: Camera) -> None:
    """The whole page, a why-not with cases in dark colours, and the page on a phone."""
    with demo_memory() as memory, Inspector(memory) as inspector, tempfile.TemporaryDirectory() as folder:
        memory.explain(QUESTION)  # the first search loads indexes; the page shows the time of the next one
        cases = Path(folder) / "cases.jsonl"
        cases.write_text("".join(json.dumps(case) + "\n" for case in CASES), encoding="utf-8")
        camera.open(inspector, width=1400, height=860, q=QUESTION)
        camera.run("theme('light'); point(document.querySelector('.fused .row').dataset.key)")
        camera.take("inspector")
        camera.run("clearWires(); change('weights/bm25', 0.15)")
        camera.wait("document.querySelector('.move.up, .move.down')")
        camera.run("theme('dark'); document.querySelector('#recipe-box').scrollTop = 0")
        camera.driver.find_element("id", "load-cases").send_keys(str(cases))
        camera.wait("document.getElementById('figures').dataset.done === 'true'")
        camera.run(
            "(document.querySelector('#case-list .miss') || document.querySelector('#case-list button')).click()"
        )
        camera.wait("!document.getElementById('detail').hidden")
        camera.take("pictures/inspector-cases")
        camera.open(inspector, width=390, height=844, q=QUESTION)
        camera.run("theme('light')")
        camera.take("pictures/inspector-phone")
        camera.open(inspector, width=900, height=860, q=QUESTION, open="vet")
        camera.take("pictures/inspector-900")
        resize(camera.driver, 1100, 760)
        with tempfile.TemporaryDirectory() as pages:
            show(camera.driver, memory.explain(QUESTION, k=5).to_html(), pages)
            camera.run("document.querySelector('details').open = true")
            camera.take("pictures/explanation")


def take_small(camera: Camera) -> None:
    """An empty memory, and one of seven memories without an embedder."""
    with HybridMemory(embedder=None) as memory, Inspector(memory) as inspector:
        camera.open(inspector, width=1100, height=620)
        camera.run("theme('light')")
        camera.take("pictures/inspector-empty")
        memory.add_many(SMALL)
        camera.open(inspector, width=1100, height=620, q="Where does Pixel sleep?")
        camera.take("pictures/inspector-small")


def take_locomo(camera: Camera, folder: Path) -> None:
    """A real conversation with measured questions, from the LoCoMo data set where it is present."""
    data = np.load(folder / "minilm.npz")
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text("utf-8").splitlines()]
    queries = [json.loads(line) for line in (folder / "queries.jsonl").read_text("utf-8").splitlines()]
    vectors = dict(zip((row["text"] for row in rows), data["V"], strict=True))
    vectors |= dict(zip((row["text"] for row in queries), data["Q"], strict=True))
    bare = np.load(folder / "names_out.npz")  # questions are embedded without the names of speakers
    vectors |= dict(zip(map(str, bare["texts"]), bare["Q"], strict=True))
    other = np.eye(1, data["V"].shape[1])[0]

    def embed(texts: list[str]) -> list[Any]:
        return [vectors.get(text, other) for text in texts]  # `other` for texts that nobody embedded

    with HybridMemory(embedder=embed) as memory, Inspector(memory) as inspector:
        memory.add_many(
            Memory(
                row["text"],
                id=row["id"],
                thread=row["source_id"],
                created_at=datetime.fromisoformat(row["timestamp"]),
            )
            for row in rows
        )
        cases: list[dict[str, Any]] = [
            {"query": case.query, "relevant": dict(case.relevant), "category": case.category}
            for case in load_cases(folder)
            if case.relevant
        ]
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
            file.write("".join(json.dumps(case) + "\n" for case in cases))
            file.flush()
            memory.explain(QUESTION)
            camera.open(inspector, width=1400, height=860, q=cases[0]["query"])
            camera.run("theme('light')")
            camera.driver.find_element("id", "load-cases").send_keys(file.name)
            camera.wait("document.getElementById('figures').dataset.done === 'true'")
            camera.take("pictures/inspector-locomo")


def main(target: str, data: str | None = None) -> None:
    """Make all pictures; that of LoCoMo only where its folder is given."""
    folder = Path(target)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    with open_browser() as driver:
        camera = Camera(driver, folder)
        take_demo(camera)
        take_small(camera)
        if data:
            take_locomo(camera, Path(data))


if __name__ == "__main__":
    main(*sys.argv[1:])
