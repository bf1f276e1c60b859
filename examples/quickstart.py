"""The demo: a small memory, searched by words, meaning and association, with the reason behind each result.

Runs offline: the embedder comes from a package, the store is one file in a temporary folder.
"""

import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

from hybridmem import HybridMemory, Memory

now = datetime.now(timezone.utc)
with tempfile.TemporaryDirectory() as folder, HybridMemory(Path(folder) / "memory.db") as memory:
    print(f"A memory with the arms {', '.join(memory.arms)} and a graph, in one SQLite file.\n")
    memory.add_many(
        [
            Memory("Where does Pixel sleep these days?", id="ask", thread="chat-7", created_at=now - timedelta(days=3)),
            Memory("On the blue sofa, of course.", id="answer", thread="chat-7", created_at=now - timedelta(days=3)),
            Memory("Ana's cat is called Pixel.", id="cat", subject="ana", created_at=now - timedelta(days=90)),
            Memory("Ana lives in Porto.", id="porto", subject="ana", created_at=now - timedelta(days=400)),
            Memory("The export job fails with E0427 on POST /v2/exports.", id="ticket", type="incident"),
            Memory("Imports through /v2/imports have been fine since Monday.", id="imports", type="incident"),
        ]
    )
    memory.add("Ana has moved to Lisbon.", id="lisbon", subject="ana", supersedes="porto")

    for question in ("Where does the cat sleep?", "Which city is Ana's home?", "what about /v2/exports"):
        print(memory.explain(question, k=3), "\n")

    told = memory.explain("Which city is Ana's home?", k=3)
    print("Why not?")
    print(" ", told.why_not("ticket"))
    print("  porto was superseded by lisbon:", [version.memory.status for version in memory.history("porto")])
    assert memory.search("Where does the cat sleep?", k=3)[1].id in {"answer", "cat"}
    assert memory.search("what about /v2/exports")[0].id == "ticket"
