"""BM25Retriever: exact BM25 over nodes, an index, a docstore, a vector store or a memory."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from llama_index.core.callbacks import CallbackManager
from llama_index.core.constants import DEFAULT_SIMILARITY_TOP_K
from llama_index.core.schema import BaseNode, IndexNode, MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.storage.docstore.utils import doc_to_json, json_to_doc
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
from typing_extensions import Unpack

from hybridmem.core.fanout import Job, Steps, in_thread, one_job
from hybridmem.errors import ConfigError, CorruptStoreError
from hybridmem.retrievers.arms import TimeOption
from hybridmem.retrievers.lexical import (
    LexicalCorpus,
    LexicalHit,
    LexicalSettings,
    check_fields,
    fields_of,
    pattern_terms,
)
from hybridmem.retrievers.lexical_file import LexicalFile
from hybridmem.retrievers.options import check_items, check_memory, refuse_keywords, refuse_settings
from hybridmem.text.analyzer import Analyzer
from hybridmem.text.stopwords import STOPWORDS
from llamaindex_hybridmem._arms import check_of
from llamaindex_hybridmem._bm25s import Bm25sCorpus, english_stemmer
from llamaindex_hybridmem._calls import SearchRetriever, exactly_one, memory_nodes
from llamaindex_hybridmem._conversion import own_copy, scored_nodes
from llamaindex_hybridmem._settings import Filters, Settings

if TYPE_CHECKING:
    from bm25s import BM25
    from llama_index.core import VectorStoreIndex
    from llama_index.core.storage.docstore.types import BaseDocumentStore
    from llama_index.core.vector_stores.types import BasePydanticVectorStore

    from hybridmem.memory.memory import HybridMemory
    from llamaindex_hybridmem._settings import (
        BM25DefaultsSettings,
        BM25FolderSettings,
        BM25Settings,
        BM25sFiles,
        MemorySettings,
        WordStemmer,
    )

__all__ = ["BM25Retriever"]

Engine = Literal["hybridmem", "fts5", "rank-bm25", "bm25s"]
_FILE = "bm25.sqlite"
_ORIGINAL = "retriever.json"
"""The file that LlamaIndex's BM25Retriever writes beside its index."""
_FILES = ("allow_pickle", "mmap", "show_progress")
"""Options of the files of bm25s: ours is one SQLite file."""
_PATTERN = r"(?u)\b\w\w+\b"
_CODES = {
    "da": "danish", "de": "german", "en": "english", "en_plus": "english", "es": "spanish", "fi": "finnish",
    "fr": "french", "hu": "hungarian", "it": "italian", "ko": "none", "nl": "dutch", "no": "norwegian",
    "pt": "portuguese", "ru": "russian", "sv": "swedish", "tr": "turkish", "zh": "none", "zh-cn": "none",
}  # fmt: skip
"""Language codes of the original. Chinese and Korean need no stemmer: their words are found by character pairs."""

log = logging.getLogger(__name__)


class BM25Retriever(SearchRetriever):
    """Exact BM25 over nodes, which can be added, deleted, filtered and kept in a file.

    >>> from llama_index.core.schema import TextNode
    >>> nodes = [TextNode(text="Ana moved to Lisbon"), TextNode(text="Bo drinks tea")]
    >>> [result.text for result in BM25Retriever.from_defaults(nodes=nodes).retrieve("Who moved?")]
    ['Ana moved to Lisbon']

    The text that an embedder would see is searched: the node's text and the metadata that is not excluded
    (`metadata_mode`). `similarity_top_k` and `filters` can also be given to `retrieve` and `aretrieve`. A node that
    shares no word with the query is not a result, so there may be fewer than `similarity_top_k`. `engine="bm25s"`
    gives the ranking of LlamaIndex's class exactly, with its scores and its padding.
    """

    def __init__(
        self,
        nodes: Sequence[BaseNode] | None = None,
        stemmer: WordStemmer | None = None,
        language: str | None = None,
        existing_bm25: BM25 | None = None,
        similarity_top_k: int = DEFAULT_SIMILARITY_TOP_K,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
        skip_stemming: bool = False,
        token_pattern: str | None = None,
        filters: Filters = None,
        corpus_weight_mask: Sequence[int] | None = None,
        *,
        memory: HybridMemory | None = None,
        engine: Engine | None = None,
        k1: float | None = None,
        b: float | None = None,
        preprocess_func: Callable[[str], list[str]] | None = None,
        tokenizer: Callable[[str], list[str]] | None = None,
        bm25_variant: str = "okapi",
        bm25_params: Mapping[str, Any] | None = None,
        fields: Mapping[str, str] | None = None,
        metadata_mode: MetadataMode = MetadataMode.EMBED,
        persist_path: str | Path | None = None,
        as_of: TimeOption = None,
        namespace: str | None = None,
        **unknown: NoReturn,
    ) -> None:
        refuse_settings(type(self).__name__, unknown, list(inspect.signature(BM25Retriever.__init__).parameters)[1:-1])
        if tokenizer is not None:
            log.warning("tokenizer is ignored, as LlamaIndex's BM25Retriever does: use preprocess_func")
        self._stemmer, self._preprocess_func, self._path = stemmer, preprocess_func, persist_path
        self._fields = check_fields(fields)
        self._mode = metadata_mode
        self._memory = memory
        self._nodes: LexicalCorpus[BaseNode] | Bm25sCorpus | None = None
        self._stored: dict[str, Any] = {"engine": engine, "k1": k1, "b": b, "language": language}
        self._stored.update(skip_stemming=skip_stemming, token_pattern=token_pattern, bm25_variant=bm25_variant)
        self._stored.update(bm25_params=None if bm25_params is None else dict(bm25_params), fields=self._fields)
        self._stored["metadata_mode"] = metadata_mode.value
        if memory is None:
            self._nodes = self._indexed(nodes or (), existing_bm25)
        elif nodes is not None or persist_path is not None or self._lexical() != LexicalSettings() or self._fields:
            raise ConfigError("nodes, files and lexical settings do not go with a memory, which has its own")
        else:
            check_memory(memory)
        self.corpus_weight_mask = None if corpus_weight_mask is None else list(corpus_weight_mask)
        more: Any = {"as_of": as_of, "namespace": namespace}
        settings = Settings().changed(similarity_top_k=similarity_top_k or None, filters=filters, **more)
        self._settings = self._checked(settings if similarity_top_k else settings._replace(k=0))
        super().__init__(callback_manager=callback_manager, objects=objects, object_map=object_map, verbose=verbose)

    def _lexical(self) -> LexicalSettings:
        """The settings of the lexical engine."""
        stored = self._stored
        language = stored["language"]
        named = _CODES.get(language, language) if isinstance(language, str) else language
        given = self._preprocess_func
        skip_stemming = stored["skip_stemming"]
        terms = given or _terms(named, self._stemmer, stored["token_pattern"], skip_stemming=skip_stemming)
        variant = None if stored["bm25_variant"] == "okapi" else stored["bm25_variant"]
        return LexicalSettings(
            stored["engine"], stored["k1"], stored["b"], named, terms, variant, stored["bm25_params"]
        )

    def _indexed(
        self, nodes: Sequence[BaseNode], existing: BM25 | None = None
    ) -> LexicalCorpus[BaseNode] | Bm25sCorpus:
        """The nodes in an index of the chosen engine, or of the user's own index."""
        if self._stored["engine"] == "bm25s" or existing is not None:
            return self._bm25s_corpus(nodes, existing)
        corpus = LexicalCorpus.at(self._path, self._lexical(), write=doc_to_json, read=json_to_doc)
        corpus.begin(self._rows(nodes))
        return corpus

    def _bm25s_corpus(self, nodes: Sequence[BaseNode], existing: BM25 | None = None) -> Bm25sCorpus:
        return Bm25sCorpus(
            nodes,
            existing,
            stemmer=self._stemmer,
            language=self.language,
            skip_stemming=self.skip_stemming,
            token_pattern=self.token_pattern,
            metadata_mode=self._mode,
        )

    def _change_words(self, **changed: Any) -> None:
        """Change settings of the words that are searched; the nodes are indexed again."""
        corpus = self._corpus()
        self._stored.update(changed)
        self._nodes = self._indexed(corpus.items, corpus.given if isinstance(corpus, Bm25sCorpus) else None)

    # --- constructors

    @classmethod
    def from_defaults(
        cls,
        index: VectorStoreIndex | None = None,
        nodes: Sequence[BaseNode] | None = None,
        docstore: BaseDocumentStore | None = None,
        stemmer: WordStemmer | None = None,
        language: str | None = None,
        similarity_top_k: int = DEFAULT_SIMILARITY_TOP_K,
        verbose: bool = False,
        skip_stemming: bool = False,
        token_pattern: str | None = None,
        filters: Filters = None,
        *,
        vector_store: BasePydanticVectorStore | None = None,
        **settings: Unpack[BM25DefaultsSettings],
    ) -> BM25Retriever:
        """Over nodes, or all nodes of an index, a docstore or a vector store that stores texts (such as Chroma)."""
        exactly_one({"index": index, "nodes": nodes, "docstore": docstore, "vector_store": vector_store})
        if index is not None:
            nodes = list(index.docstore.docs.values()) or _stored_nodes(index.vector_store)
        elif docstore is not None:
            nodes = list(docstore.docs.values())
        elif vector_store is not None:
            nodes = _stored_nodes(vector_store)
        given: Any = {"stemmer": stemmer, "language": language, "similarity_top_k": similarity_top_k}
        given.update(verbose=verbose, skip_stemming=skip_stemming, token_pattern=token_pattern, filters=filters)
        return cls(nodes, **{**given, **settings})

    @classmethod
    def from_nodes(cls, nodes: Sequence[BaseNode], /, **settings: Unpack[BM25Settings]) -> BM25Retriever:
        """Over nodes."""
        return cls(nodes, **settings)

    @classmethod
    def from_memory(cls, memory: HybridMemory, /, **settings: Unpack[MemorySettings]) -> BM25Retriever:
        """Over a `HybridMemory`: its BM25 arm alone, with raw scores."""
        return cls(memory=memory, **settings)

    @classmethod
    def from_persist_dir(
        cls, path: str | Path, encoding: str = "utf-8", **settings: Unpack[BM25FolderSettings]
    ) -> BM25Retriever:
        """What `persist` wrote, with its settings; later changes are written there too.

        Functions (`preprocess_func`, a `stemmer`) cannot be stored and have to be given again. A folder that
        LlamaIndex's BM25Retriever wrote is read too: its nodes, `similarity_top_k` and mask. Options of bm25s's files,
        such as `mmap`, are ignored.
        """
        folder = Path(path)
        file = folder / _FILE
        for name in _FILES:
            settings.pop(name, None)  # type: ignore[misc]
        if file.exists():
            stored = LexicalFile(file, write=doc_to_json, read=json_to_doc).settings()
            stored["metadata_mode"] = MetadataMode(stored.get("metadata_mode", MetadataMode.EMBED.value))
            given: Any = {**stored, **settings}
            if given.get("engine") == "bm25s":
                nodes = LexicalCorpus.at(file, LexicalSettings(), write=doc_to_json, read=json_to_doc).items
                return cls(nodes, **given)
            return cls(persist_path=file, **given)
        if not (folder / _ORIGINAL).exists():
            raise CorruptStoreError(f"{file} does not exist: {path} is not a folder of BM25Retriever.persist")
        stored = json.loads((folder / _ORIGINAL).read_text(encoding))
        lines = (folder / "corpus.jsonl").read_text(encoding).splitlines()
        nodes = [metadata_dict_to_node(json.loads(line)) for line in lines if line]
        own: Any = {**{name: value for name, value in stored.items() if value is not None}, **settings}
        return cls(nodes, **own)

    def get_persist_args(self) -> dict[str, Any]:
        """The settings of the original that `persist` stores."""
        return {
            "similarity_top_k": self.similarity_top_k,
            "verbose": self._verbose,
            "corpus_weight_mask": self.corpus_weight_mask,
        }

    def persist(self, path: str | Path, encoding: str = "utf-8", **ignored: Unpack[BM25sFiles]) -> None:  # noqa: ARG002
        """Write nodes, index and settings into a folder, as they are now. Options of bm25s's files are ignored."""
        refuse_keywords("persist", ignored, ("path", "encoding", *_FILES))
        corpus, folder = self._corpus(), Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        settings = {**self._stored, **self.get_persist_args()}
        file = LexicalFile(folder / _FILE, write=doc_to_json, read=json_to_doc)
        if isinstance(corpus, Bm25sCorpus):
            made: LexicalCorpus[BaseNode] = LexicalCorpus(LexicalSettings())
            made.begin(self._rows(corpus.items))
            made.save(file, settings)
        else:
            corpus.save(file, settings)

    @classmethod
    async def afrom_persist_dir(
        cls, path: str | Path, encoding: str = "utf-8", **settings: Unpack[BM25FolderSettings]
    ) -> BM25Retriever:
        """`from_persist_dir` without blocking the event loop."""
        made: BM25Retriever = await in_thread(lambda: cls.from_persist_dir(path, encoding, **settings))
        return made

    async def apersist(self, path: str | Path, encoding: str = "utf-8", **ignored: Unpack[BM25sFiles]) -> None:
        """`persist` without blocking the event loop."""
        await in_thread(lambda: self.persist(path, encoding, **ignored))

    # --- nodes

    @property
    def nodes(self) -> list[BaseNode]:
        """All nodes, in the order in which they were added."""
        return self._corpus().items

    @property
    def corpus(self) -> list[dict[str, Any]]:
        """All nodes as dicts, as the original has them."""
        return [node_to_metadata_dict(node) | {"node_id": node.node_id} for node in self.nodes]

    @property
    def language(self) -> str:
        """The language of stemmer and stop words, as it was given."""
        return self._stored["language"] or "en"

    @property
    def stemmer(self) -> WordStemmer:
        """The stemmer of words. Setting it, `skip_stemming` or `token_pattern` indexes the nodes again."""
        if self._stemmer is not None:
            return self._stemmer
        return english_stemmer() if self._stored["engine"] == "bm25s" else _OurStemmer(self._lexical().language)

    @stemmer.setter
    def stemmer(self, stemmer: WordStemmer | None) -> None:
        self._stemmer = stemmer
        self._change_words()

    @property
    def skip_stemming(self) -> bool:
        """Whether words are searched as they are."""
        skip: bool = self._stored["skip_stemming"]
        return skip

    @skip_stemming.setter
    def skip_stemming(self, skip: bool) -> None:
        self._change_words(skip_stemming=skip)

    @property
    def token_pattern(self) -> str:
        """The pattern of words that LlamaIndex's class uses; our own engine follows it once it is given."""
        return self._stored["token_pattern"] or _PATTERN

    @token_pattern.setter
    def token_pattern(self, pattern: str) -> None:
        self._change_words(token_pattern=pattern)

    @property
    def bm25(self) -> BM25:
        """A `bm25s.BM25` over the nodes, as the original has it; with another engine one is made for each access.

        Setting it makes that index, which must be over the same nodes, the one that is searched.
        """
        corpus = self._corpus()
        return corpus.bm25 if isinstance(corpus, Bm25sCorpus) else self._bm25s_corpus(corpus.items).bm25

    @bm25.setter
    def bm25(self, index: BM25) -> None:
        self._nodes = self._bm25s_corpus(self.nodes, index)

    @property
    def similarity_top_k(self) -> int:
        """How many nodes a query returns at most."""
        return _k(self._settings)

    @similarity_top_k.setter
    def similarity_top_k(self, k: int) -> None:
        self._settings = self._settings.changed(similarity_top_k=k)

    def add_nodes(self, nodes: Sequence[BaseNode], /) -> list[str]:
        """Add nodes, or replace those of the same id; returns their ids."""
        return self._corpus().put(self._rows(nodes))

    async def aadd_nodes(self, nodes: Sequence[BaseNode], /) -> list[str]:
        """The same without blocking the event loop."""
        return await in_thread(lambda: self.add_nodes(nodes))

    def delete(self, node_ids: Sequence[str], /) -> int:
        """Remove nodes by their ids; returns how many there were."""
        return self._corpus().remove(node_ids)

    async def adelete(self, node_ids: Sequence[str], /) -> int:
        """The same without blocking the event loop."""
        return await in_thread(lambda: self.delete(node_ids))

    delete_nodes, adelete_nodes = delete, adelete

    def _corpus(self) -> LexicalCorpus[BaseNode] | Bm25sCorpus:
        if self._nodes is None:
            raise ConfigError("this BM25Retriever has no nodes of its own: change them in its memory")
        return self._nodes

    def _rows(self, nodes: Sequence[BaseNode]) -> list[tuple[str | None, dict[str, str], BaseNode]]:
        nodes = check_items("nodes", nodes, BaseNode)
        texts = [node.get_content(metadata_mode=self._mode) for node in nodes]
        rows = zip(nodes, texts, strict=True)
        return [(node.id_, fields_of(text, node.metadata, self._fields), node) for node, text in rows]

    # --- search

    def _found(self, bundle: QueryBundle, call: Settings) -> Steps[list[NodeWithScore]]:
        if call.k == 0:  # the original allows it
            return []
        if self._memory is not None:
            return (yield from memory_nodes(self._memory, "bm25", bundle, call))
        corpus, query, mask = self._corpus(), bundle.query_str, self.corpus_weight_mask
        how: dict[str, Any] = {"k": _k(call), "check": None if call.filter is None else check_of(call.filter)}
        if isinstance(corpus, Bm25sCorpus):
            job = Job("bm25", partial(corpus.search, query, weights=mask, **how))
        elif mask is None:
            job = Job("bm25", partial(corpus.search, query, **how), partial(corpus.asearch, query, **how))
        else:
            job = Job("bm25", partial(_masked, corpus, mask, query, **how))
        hits = yield from one_job(job)
        return scored_nodes([(own_copy(hit.item), hit.score) for hit in hits])


class _OurStemmer:
    """The stemmer of our analyzer with PyStemmer's methods."""

    def __init__(self, language: str | None) -> None:
        self._analyzer = Analyzer(language=language or "english")

    def stemWord(self, word: str, /) -> str:  # noqa: N802 - PyStemmer's name
        return self._analyzer.stemmed(word)

    def stemWords(self, words: Sequence[str], /) -> list[str]:  # noqa: N802
        return list(map(self.stemWord, words))


def _k(call: Settings) -> int:
    return DEFAULT_SIMILARITY_TOP_K if call.k is None else call.k


def _masked(
    corpus: LexicalCorpus[BaseNode], mask: Sequence[int], query: str, /, *, k: int, check: Any
) -> list[LexicalHit]:
    """The best nodes by score times weight; those of weight 0 are no hits."""
    if len(mask) != len(corpus):
        raise ConfigError(f"corpus_weight_mask has {len(mask)} weights for {len(corpus)} nodes: give one for each node")
    weights = dict(zip(corpus.keys, mask, strict=True))
    hits = corpus.search(query, k=max(1, len(corpus)), check=check)
    weighted = [hit._replace(score=hit.score * weights.get(hit.item.id_, 0)) for hit in hits]
    return sorted([hit for hit in weighted if hit.score > 0], key=lambda hit: -hit.score)[:k]


def _stored_nodes(vector_store: BasePydanticVectorStore) -> list[BaseNode]:
    """All nodes of a vector store that stores their texts."""
    kind = type(vector_store).__name__
    try:
        nodes: list[BaseNode] = list(vector_store.get_nodes(None))
    except (AttributeError, NotImplementedError, TypeError) as error:
        raise ConfigError(f"{kind} cannot list its nodes: give nodes= or docstore= instead") from error
    return nodes


def _terms(
    language: str | None, stemmer: WordStemmer | None, pattern: str | None, *, skip_stemming: bool
) -> Callable[[str], list[str]] | None:
    """The function to terms that LlamaIndex's parameters describe; None: our analyzer for the language."""
    if stemmer is None and pattern is None:
        return Analyzer(language=language or "english", stem=False) if skip_stemming else None
    name = Analyzer(language=language or "english", stem=False).language
    stem: Callable[[str], str] | None = None
    if not skip_stemming:
        stem = stemmer.stemWord if stemmer is not None else Analyzer(language=name).stemmed
    return pattern_terms(pattern or _PATTERN, stem=stem, stops=STOPWORDS.get(name, ()))
