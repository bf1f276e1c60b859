"""Indexes of namespaces that are not searched any more are dropped."""

from hybridmem import HybridMemory


def test_the_indexes_of_the_least_recently_searched_namespaces_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr("hybridmem.memory.engine.VIEWS", 5)
    with HybridMemory(tmp_path / "memory.db", embedder=None) as memory:
        for number in range(12):
            view = memory.namespace(f"n{number}")
            view.add(f"cat {number}", id="a")
            assert [result.text for result in view.search("cat")] == [f"cat {number}"]
            assert [result.text for result in memory.namespace("n0").search("cat")] == ["cat 0"]
        kept = [view.namespace for view in memory._engine._views]
        assert len(kept) == 5
        assert "n0" in kept
        assert "n1" not in kept
        assert [result.text for result in memory.namespace("n1").search("cat")] == ["cat 1"]
