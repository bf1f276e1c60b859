"""One memory for an agent in both frameworks: save a fact, correct it, search as of a date. Runs offline.

pip install 'hybridmem[langchain,llamaindex,local]' && python examples/agent_memory.py
"""

import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

from hybridmem import HybridMemory
from langchain_hybridmem import FusionRetriever as LangChainRetriever
from langchain_hybridmem import memory_tools
from llamaindex_hybridmem import FusionRetriever as LlamaIndexRetriever

today = datetime(2026, 3, 1, tzinfo=timezone.utc)
with (
    tempfile.TemporaryDirectory() as folder,
    HybridMemory(Path(folder) / "agent.db", clock=lambda: today.timestamp()) as memory,  # noqa: PLW0108  `today` changes below
):
    ana = memory.namespace("ana")

    # March: the agent saves facts through its tool.
    search, save, _forget = memory_tools(memory, namespace="ana")
    save.invoke({"text": "Ana lives in Porto."})
    save.invoke({"text": "Ana's cat is called Pixel."})
    old = ana.search("Where does Ana live?")[0]
    print("March:   ", old.text)

    # May: Ana has moved. The new fact supersedes the old one.
    today += timedelta(days=61)
    ana.add("Ana has moved to Lisbon.", supersedes=old.id)
    question = "Where does Ana live?"
    print("May:     ", ana.search(question)[0].text)
    print("As of March:", ana.search(question, as_of=datetime(2026, 3, 2, tzinfo=timezone.utc))[0].text)

    # The same result through both frameworks and through the agent's search tool.
    chain = LangChainRetriever.from_memory(ana, k=1).invoke(question)
    engine = LlamaIndexRetriever.from_memory(ana, similarity_top_k=1).retrieve(question)
    print("LangChain: ", chain[0].page_content)
    print("LlamaIndex:", engine[0].get_content())
    print("Tool:      ", str(search.invoke({"query": question})).splitlines()[2])
    assert chain[0].page_content == engine[0].get_content() == "Ana has moved to Lisbon."

    # The history of the old fact, and why it is not in the results.
    for version in ana.history(old.id):
        print("History:   ", version.memory.status, "-", version.memory.text)
    print("Why not?   ", ana.explain(question).why_not(old.id))

    # Another namespace of the same file sees none of these memories.
    assert memory.namespace("ben").search(question) == []
