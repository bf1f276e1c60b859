"""The evaluation sets, read where they are: memories, cases, and the stored embeddings behind every text."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hybridmem.core.types import Memory
from hybridmem.evaluation.evaluate import Case, load_cases, load_corpus
from hybridmem.memory.memory import HybridMemory

TUNED_ON = ("conv-26", "conv-30", "conv-41")
HELD_OUT = ("conv-42", "conv-43", "conv-44")


@dataclass(frozen=True)
class Part:
    """One store with its questions: a conversation, or a collection of documents."""

    name: str
    memories: list[Memory]
    cases: list[Case]
    documents: np.ndarray
    questions: dict[str, np.ndarray]

    def open(self, questions=None, **settings) -> HybridMemory:
        """A memory filled with this part; `questions` adds embeddings of foreign ones."""
        table = dict(zip((memory.embedded for memory in self.memories), self.documents, strict=True))
        table |= self.questions | (questions or {})
        memory = HybridMemory(embedder=lambda texts: [table[text] for text in texts], **settings)
        memory.add_many(self.memories)
        return memory


def load_part(folder: Path, *, threads: bool) -> Part:
    arrays = np.load(folder / "minilm.npz", allow_pickle=True)
    memories = [
        Memory(
            row["text"],
            id=row["id"],
            title=row.get("title") or "",
            thread=row["source_id"] if threads else None,
            created_at=row.get("timestamp"),
        )
        for row in load_corpus(folder)
    ]
    texts = [json.loads(line)["text"] for line in (folder / "queries.jsonl").read_text("utf-8").splitlines()]
    vectors = dict(zip(texts, arrays["Q"], strict=True))
    return Part(folder.name, memories, load_cases(folder), arrays["V"], vectors)


def halves(part: Part) -> tuple[Part, Part]:
    """The questions in file order: the first half to tune on, the second to report."""
    middle = len(part.cases) // 2
    first = Part(part.name, part.memories, part.cases[:middle], part.documents, part.questions)
    second = Part(part.name, part.memories, part.cases[middle:], part.documents, part.questions)
    return first, second


def load_sets(data: Path) -> dict[str, tuple[list[Part], list[Part]]]:
    """Name → (parts to tune on, parts to report)."""
    conversations = {name: load_part(data / "locomo" / name, threads=True) for name in (*TUNED_ON, *HELD_OUT)}
    sets = {"LoCoMo": ([conversations[name] for name in TUNED_ON], [conversations[name] for name in HELD_OUT])}
    for folder in ("scifact", "cranfield"):
        first, second = halves(load_part(data / folder, threads=False))
        sets[{"scifact": "SciFact", "cranfield": "Cranfield"}[folder]] = ([first], [second])
    return sets
