"""A folder of linked notes, as Obsidian and Foam keep them: answers one link away from the words of the question.

pip install 'hybridmem[markdown]' && python examples/linked_notes.py
"""

import tempfile
from pathlib import Path

from hybridmem import HybridMemory

NOTES = {
    "Projects/Atlas.md": (
        "The route planner. Led by [[Mira Okafor]]; the design is in [[Atlas design#Storage|the design note]]. #project"
    ),
    "People/Mira Okafor.md": "Joined in 2021, works from the Lisbon office. Reports to [[Jon Vega]].",
    "People/Jon Vega.md": "Head of platform. Prefers written updates on Friday.",
    "Atlas design.md": "# Storage\n\nRoutes are kept in PostgreSQL. See also [the retro](Meetings/2024-05%20retro.md).",
    "Meetings/2024-05 retro.md": "We agreed to drop the cache. Nobody missed it.",
    "Recipes/Bread.md": "Flour, water, salt, time. #kitchen",
    **{f"Journal/2024-06-{day:02}.md": f"Day {day}: a walk, some reading, rain." for day in range(1, 29)},
}
QUESTIONS = {  # a question, and the note that answers it without sharing a word with it
    "Where is the lead of Atlas based?": "People/Mira Okafor",
    "What should I send to the manager of Mira Okafor?": "People/Jon Vega",
    "What happened in the meeting about the Atlas design?": "Meetings/2024-05 retro",
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in NOTES.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        with HybridMemory(folder, embedder=None) as memory:
            for question, answer in QUESTIONS.items():
                words = [hit.id for hit in memory.search_arm("bm25", question, k=len(NOTES))]
                print(f"{question}\n  BM25 alone: {', '.join(words)}\n  with links:")
                for result in memory.search(question, k=3):
                    print(f"  {'->' if result.id == answer else '  '} {result.receipt}")
                assert answer not in words
                assert answer in [result.id for result in memory.search(question, k=3)]
                print()


if __name__ == "__main__":
    main()
