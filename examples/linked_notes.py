"""A folder of linked notes, as Obsidian and Foam keep them: a question whose answer stands in the note behind a link.

python examples/linked_notes.py
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
QUESTIONS = ("Which office does the lead of Atlas work from?", "What did the retro of the Atlas design decide?")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in NOTES.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        with HybridMemory(folder, embedder=None) as memory:
            for question in QUESTIONS:
                print(question)
                for result in memory.search(question, k=3):
                    print(f"  {result.score:.2f}  {result.memory.title}: {result.text.splitlines()[0][:60]}")
                    print(f"        {result.receipt}")
            assert memory.search(QUESTIONS[0], k=3)[0].id == "People/Mira Okafor"


if __name__ == "__main__":
    main()
