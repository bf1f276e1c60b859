"""Nodes ranked by the bm25s library, as LlamaIndex's own BM25Retriever ranks them (extra `bm25s`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.utils import metadata_dict_to_node

from hybridmem.core.forks import guard
from hybridmem.errors import MissingExtraError
from hybridmem.retrievers.lexical import LexicalHit

__all__ = ["Bm25sCorpus", "english_stemmer"]


class Bm25sCorpus:
    """Nodes with a `bm25s.BM25` index, which is built again after changes."""

    def __init__(
        self,
        nodes: Sequence[BaseNode],
        existing: Any,
        /,
        *,
        stemmer: Any,
        language: str,
        skip_stemming: bool,
        token_pattern: str,
        metadata_mode: MetadataMode,
    ) -> None:
        self._bm25s = _load()
        self._stemmer, self._language, self._pattern = stemmer, language, token_pattern
        self._skip_stemming, self._mode = skip_stemming, metadata_mode
        if existing is not None and existing.corpus is not None:
            nodes = [metadata_dict_to_node(one) for one in existing.corpus]
        self._nodes = {node.id_: node for node in nodes}
        self.given = existing
        """The user's own index, until the nodes change."""
        self._index = existing
        self._lock = guard(threading.Lock())

    def __len__(self) -> int:
        return len(self._nodes)

    def __getstate__(self) -> dict[str, Any]:
        left = ("_bm25s", "_index", "_lock")
        return {name: value for name, value in vars(self).items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _bm25s=_load(), _index=state["given"], _lock=guard(threading.Lock()))

    @property
    def items(self) -> list[BaseNode]:
        """All nodes, in the order in which they were added."""
        return list(self._nodes.values())

    @property
    def bm25(self) -> Any:
        """The `bm25s.BM25` over the current nodes."""
        return self._indexed()[1]

    def _indexed(self) -> tuple[list[BaseNode], Any]:
        """The current nodes and the index over them."""
        with self._lock:
            nodes = self.items
            if self._index is None:
                texts = [node.get_content(metadata_mode=self._mode) for node in nodes]
                self._index = self._bm25s.BM25()
                self._index.index(self._tokens(texts, stopwords=self._language), show_progress=False)
            return nodes, self._index

    def _tokens(self, texts: str | list[str], **settings: Any) -> Any:
        stemmer = None if self._skip_stemming else self._stemmer or english_stemmer()
        settings.update(stemmer=stemmer, token_pattern=self._pattern, show_progress=False)
        return self._bm25s.tokenize(texts, **settings)

    def put(self, rows: Iterable[tuple[str | None, Mapping[str, str], BaseNode]], /) -> list[str]:
        """Add nodes, or replace those of the same id; returns their ids."""
        nodes = [node for _, _, node in rows]
        with self._lock:
            for node in nodes:
                self._nodes.pop(node.id_, None)
                self._nodes[node.id_] = node
            self._index = self.given = None
        return [node.id_ for node in nodes]

    def remove(self, keys: Iterable[str], /) -> int:
        """Remove nodes; returns how many there were."""
        with self._lock:
            gone = [key for key in dict.fromkeys(keys) if self._nodes.pop(key, None) is not None]
            if gone:
                self._index = self.given = None
        return len(gone)

    def search(
        self,
        query: str,
        /,
        *,
        k: int,
        check: Callable[[BaseNode], bool] | None = None,
        weights: Sequence[int] | None = None,
    ) -> list[LexicalHit]:
        """The k best nodes that pass the check, with weighted scores; like the original's, they may score 0."""
        if not self._nodes:
            return []
        nodes, index = self._indexed()
        mask = None if weights is None else np.array(weights)
        if check is not None:
            passing = np.array([int(check(node)) for node in nodes])
            mask = passing if mask is None else mask * passing
            k = min(k, int(passing.sum()))
        if k == 0:
            return []
        places, scores = index.retrieve(
            self._tokens(query),
            corpus=np.arange(len(nodes)),
            k=min(k, len(nodes)),
            show_progress=False,
            weight_mask=mask,
        )
        hits = zip(places[0].tolist(), scores[0].tolist(), strict=True)
        return [LexicalHit(nodes[place], score) for place, score in hits if check is None or check(nodes[place])]


def _load() -> Any:
    try:
        import bm25s
    except ImportError as error:
        raise MissingExtraError("bm25s", needs="bm25s") from error
    return bm25s


def english_stemmer() -> Any:
    """PyStemmer's English stemmer, which LlamaIndex's BM25Retriever uses by default."""
    try:
        import Stemmer
    except ImportError as error:
        raise MissingExtraError("bm25s", needs="PyStemmer") from error
    return Stemmer.Stemmer("english")
