"""The conformance suites, run on every index of the package."""

import numpy as np
import pytest

from hybridmem.indexes.bm25.index import BM25Index
from hybridmem.indexes.engines.fts5 import FTS5Index
from hybridmem.indexes.engines.rank_bm25 import RankBM25Index
from hybridmem.indexes.vector.chroma import ChromaIndex
from hybridmem.indexes.vector.compact import CompactVectors
from hybridmem.indexes.vector.index import VectorIndex
from hybridmem.testing.indexes import TextIndexConformance, VectorIndexConformance


class TestBM25Index(TextIndexConformance):
    def make_index(self):
        return BM25Index()


class TestFTS5Index(TextIndexConformance):
    def make_index(self):
        return FTS5Index()


class TestRankBM25Index(TextIndexConformance):
    atomic = False  # it locks one memory at a time

    def make_index(self):
        return RankBM25Index(variant="plus")


class TestVectorIndex(VectorIndexConformance):
    def make_index(self):
        return VectorIndex()


class TestVectorIndexWithSketch(VectorIndexConformance):
    @pytest.fixture(autouse=True)
    def _at_once(self, monkeypatch):
        monkeypatch.setattr("hybridmem.indexes.vector.index._SCANS_BEFORE_SKETCH", 0)

    def make_index(self):
        return VectorIndex(compact_from=0)


class Remembering(CompactVectors):
    """Reads vectors from the changes it was given, as a view reads them from the store."""

    def __init__(self):
        self.stored = {}
        super().__init__(8, lambda seqs: {seq: self.stored[seq] for seq in seqs})

    def apply(self, changes):
        changes = [change._replace(vector_seq=change.seq) for change in changes]
        for change in changes:
            if change.vector is not None:
                self.stored[change.seq] = np.asarray(change.vector, "<f4").tobytes()
        super().apply(changes)


class TestCompactVectors(VectorIndexConformance):
    def make_index(self):
        return Remembering()


class TestChromaIndex(VectorIndexConformance):
    atomic, exact = False, False

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path_factory):
        self.folders = tmp_path_factory

    def make_index(self):
        return ChromaIndex(path=self.folders.mktemp("chroma"))
