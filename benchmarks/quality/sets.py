"""The evaluation sets, read where they are: memories, cases, and the stored embeddings of every text."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hybridmem.core.times import epoch
from hybridmem.core.types import Memory
from hybridmem.evaluation.cases import Case, load_cases, load_corpus
from hybridmem.memory.memory import HybridMemory

__all__ = ["EvaluationSet", "Part", "load_sets"]


@dataclass(frozen=True)
class Part:
    """One store with its questions: a conversation, or a collection of documents."""

    name: str
    memories: list[Memory]
    cases: list[Case]
    documents: np.ndarray
    questions: dict[str, np.ndarray]

    @property
    def vectors(self) -> dict[str, np.ndarray]:
        """The vector of every text."""
        return dict(zip((memory.embedded for memory in self.memories), self.documents, strict=True)) | self.questions

    def clock(self) -> float:
        """The time at which the questions are asked: after the last memory was made."""
        dates = [when for when in (epoch(memory.created_at) for memory in self.memories) if when is not None]
        return max(dates) + 3600 if dates else 1_800_000_000.0

    def open(self, more: Mapping[str, np.ndarray] | None = None, **settings: Any) -> HybridMemory:
        """A memory filled with this part, asked when its last memory was made; `more` adds vectors of other texts."""
        table = self.vectors | dict(more or {})
        settings.setdefault("embedder", lambda texts: [table[text] for text in texts])
        memory = HybridMemory(clock=self.clock, **settings)
        memory.add_many(self.memories)
        return memory


class EvaluationSet(NamedTuple):
    """Parts to tune on, and parts to report; `documents` are measured by nDCG first, conversations by recall."""

    about: str
    tuning: Sequence[Part]
    held: Sequence[Part]
    documents: bool = False


def load_part(folder: Path, *, threads: bool) -> Part:
    """One folder of a set."""
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
    without_names = folder / "names_out.npz"
    if without_names.is_file():
        bare = np.load(without_names, allow_pickle=True)
        vectors |= dict(zip(map(str, bare["texts"]), bare["Q"], strict=True))
    judged = [case for case in load_cases(folder) if case.relevant]
    return Part(folder.name, memories, judged, arrays["V"], vectors)


def halves(part: Part) -> tuple[list[Part], list[Part]]:
    """The questions in file order: the first half to tune on, the second to report."""
    middle = len(part.cases) // 2
    return [replace(part, cases=part.cases[:middle])], [replace(part, cases=part.cases[middle:])]


def load_sets(data: Path) -> dict[str, Callable[[], EvaluationSet]]:
    """Name → a function that loads the set."""

    def parts(group: str, names: Sequence[str]) -> list[Part]:
        return [load_part(data / group / name, threads=True) for name in names]

    def conversations(about: str, group: str, tuning: Sequence[str], held: Sequence[str]) -> EvaluationSet:
        return EvaluationSet(about, parts(group, tuning), parts(group, held))

    def split(about: str, folder: str) -> EvaluationSet:
        return EvaluationSet(about, *halves(load_part(data / folder, threads=False)), documents=True)

    def whole(about: str, folder: str) -> EvaluationSet:
        return EvaluationSet(about, [], [load_part(data / folder, threads=False)], documents=True)

    return {
        "LoCoMo": lambda: conversations(
            "Long conversations between two people; a memory is one turn. Conversations 42, 43 and 44.",
            "locomo",
            ("conv-26", "conv-30", "conv-41"),
            ("conv-42", "conv-43", "conv-44"),
        ),
        "REALTALK": lambda: conversations(
            "Real messenger chats over weeks; a memory is one message. Chats 4 and 5.",
            "realtalk",
            ("rt1", "rt2", "rt3"),
            ("rt4", "rt5"),
        ),
        "BEAM": lambda: conversations(
            "Long chats of a user with an assistant; a memory is one message. Chats 7 to 10.",
            "beam",
            [f"beam{number}" for number in range(1, 7)],
            [f"beam{number}" for number in range(7, 11)],
        ),
        "SciFact": lambda: split("Scientific claims against abstracts. The second half of the questions.", "scifact"),
        "Cranfield": lambda: split("Aerodynamics abstracts. The second half of the questions.", "cranfield"),
        "CISI": lambda: whole("Library science abstracts. All questions; nothing was tuned on this set.", "cisi"),
        "MuSiQue": lambda: whole("Questions that need two to four passages.", "multihop/musique"),
        "HotpotQA": lambda: whole("Questions that need two passages.", "multihop/hotpotqa"),
    }
