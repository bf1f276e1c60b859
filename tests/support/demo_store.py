"""A small memory for pictures: what an assistant could know about Ana, Ben, their cat and their work."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from hybridmem import HybridMemory, Memory

__all__ = ["CASES", "MEMORIES", "SMALL", "fill"]

_START = datetime(2025, 3, 3, 9, 0, tzinfo=timezone.utc)
_TALKS: dict[str, tuple[int, tuple[str, ...]]] = {
    "moving": (
        0,
        (
            "Ana: We signed the lease for the flat in Lisbon yesterday!",
            "Ben: Congratulations! When do you move?",
            "Ana: On the first of May. The old flat in Porto has to be empty by then.",
            "Ben: Do you need help with the boxes?",
            "Ana: Yes please, the books alone fill twenty of them.",
            "Ben: I can borrow my sister's van that weekend.",
        ),
    ),
    "cat": (
        9,
        (
            "Ben: How is the cat taking it?",
            "Ana: Pixel hides as soon as she hears packing tape.",
            "Ben: Where does she sleep these days?",
            "Ana: On the blue sofa, of course, right on top of the winter coats.",
            "Ben: Did you find a vet in Lisbon?",
            "Ana: Dr. Matos, near the river. She asked for the vaccination papers.",
            "Ana: Pixel is allergic to chicken, remind me to tell them.",
        ),
    ),
    "trip": (
        24,
        (
            "Ben: Are you still going to the mountains at Easter?",
            "Ana: Yes, three days of hiking in Gerês with my brother Tomás.",
            "Ben: What about your knee?",
            "Ana: Much better. The physiotherapist says ten kilometres a day is fine.",
            "Ben: Send pictures of the waterfalls!",
            "Ana: The hut has no reception, you will get them on Monday.",
        ),
    ),
    "incident": (
        41,
        (
            "Ben: Exports are failing again, E0427 on POST /v2/exports.",
            "Ana: Since when?",
            "Ben: Since the deploy on Tuesday. Imports through /v2/imports are fine.",
            "Ana: Then it is the new connection pool, max_client_conn is still 20.",
            "Ben: I raised it to 100 and the queue is empty now.",
            "Ana: Please add that to the runbook before you forget it.",
        ),
    ),
    "birthday": (
        63,
        (
            "Ana: What does your mother want for her birthday?",
            "Ben: She keeps talking about the pottery course she took in spring.",
            "Ana: A set of glazes, then. My neighbour runs a studio.",
            "Ben: Perfect. She turns seventy on the 14th of June.",
            "Ana: I will bring the lemon cake, no nuts because of your nephew.",
        ),
    ),
    "lisbon": (
        70,
        (
            "Ben: So, how is life by the river?",
            "Ana: Loud trams, good coffee. I cycle to the office in twelve minutes.",
            "Ben: And the new job?",
            "Ana: I lead the search team now, four people and one very old cluster.",
            "Ben: Any chance you come to Porto this month?",
            "Ana: On the 21st, for the concert. May I sleep on your couch?",
        ),
    ),
}
_FACTS = (
    ("lives", "Ana lives in Porto.", "ana"),
    ("allergy", "Ben's nephew is allergic to nuts.", "ben"),
    ("coffee", "Ana drinks her coffee black, two cups before ten.", "ana"),
    ("runbook", "Runbook: when exports fail with E0427, raise max_client_conn and drain the queue.", "work"),
    ("pool", "The connection pool of the export service allows 100 clients since April.", "work"),
    ("vet", "The cat's vaccination is due every year in September.", "pixel"),
    ("knee", "Ana hurt her knee skiing in January.", "ana"),
    ("bike", "Ana bought a second-hand bicycle from a colleague.", "ana"),
)


def _memories() -> list[Memory]:
    rows = []
    for thread, (day, turns) in _TALKS.items():
        for n, text in enumerate(turns):
            at = _START + timedelta(days=day, minutes=2 * n)
            rows.append(Memory(text, id=f"{thread}-{n + 1}", thread=thread, created_at=at, updated_at=at))
    for n, (key, text, subject) in enumerate(_FACTS):
        at = _START + timedelta(days=8 * n)
        rows.append(Memory(text, id=key, subject=subject, tags=(subject,), created_at=at, updated_at=at))
    return rows


MEMORIES = _memories()
SMALL = MEMORIES[6:13]
CASES: list[dict[str, Any]] = [
    {"query": "Where does the cat sleep?", "relevant": ["cat-4"], "category": "home"},
    {"query": "In which city does Ana live now?", "relevant": ["lives"], "category": "home"},
    {"query": "What food must the cat not get?", "relevant": ["cat-7"], "category": "home"},
    {"query": "How did Ben fix the failing exports?", "relevant": ["incident-5", "runbook"], "category": "work"},
    {"query": "Who is Ana's brother?", "relevant": ["trip-2"], "category": "people"},
    {"query": "When is the birthday of Ben's mother?", "relevant": ["birthday-4"], "category": "people"},
    {"query": "How does Ana get to work?", "relevant": ["lisbon-2", "bike"], "category": "work"},
    {"query": "Why must the cake have no nuts?", "relevant": ["birthday-5", "allergy"], "category": "people"},
    {"query": "What is wrong with Ana's health?", "relevant": ["knee", "trip-4"], "category": "people"},
    {"query": "Who helps with the move?", "relevant": ["moving-6", "moving-4"], "category": "home"},
]


def fill(memory: HybridMemory) -> None:
    """Add all memories; one fact is updated, so that it has a history."""
    memory.add_many(MEMORIES)
    memory.update("lives", text="Ana lives in Lisbon, near the river.")
    memory.link("runbook", "pool", "explains")
    memory.link("cat-6", "vet", "about")
