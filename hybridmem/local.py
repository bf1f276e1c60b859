"""LocalEmbedder: the offline default. Static token vectors of the wordllama package: no key, no download, no torch.

vector(text) = mean of its tokens' vectors, scaled to length 1; 256 dimensions, made for Matryoshka prefixes.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridmem._embedding_sources import Source
from hybridmem.embed import Embedder
from hybridmem.errors import EmbeddingError, MissingExtraError

__all__ = ["LocalEmbedder"]

DIM = 256
_TOKENS_AT_ONCE = 1 << 14  # 16 MB of gathered rows at most, whatever the text is
_WORDS_KEPT = 1 << 16
_LONGEST = 200  # characters tokenised at once: a language without spaces makes very long words


class _Model:
    """The token table and its tokenizer. Only the memory of words changes, and a dict is safe to share."""

    def __init__(self, table: npt.NDArray[np.float32], tokenizer: Any) -> None:
        self._table, self._tokenizer = table, tokenizer
        self._words: dict[str, list[int]] = {}

    def embed(self, texts: list[str]) -> npt.NDArray[np.float32]:
        """Mean token vectors, one row a text. A text without tokens gets a zero row."""
        out = np.zeros((len(texts), DIM), dtype=np.float32)
        for number, text in enumerate(texts):
            ids = self._ids(text)
            for start in range(0, len(ids), _TOKENS_AT_ONCE):
                out[number] += self._table[ids[start : start + _TOKENS_AT_ONCE]].sum(axis=0)
            out[number] /= max(len(ids), 1)
        return out

    def _ids(self, text: str) -> list[int]:
        """Token ids, word by word: the vocabulary has no token across a space, and known words cost nothing."""
        clean = text.encode("utf-8", "replace").decode()  # the tokenizer refuses lone surrogates
        ids: list[int] = []
        for word in clean.split():
            for start in range(0, len(word), _LONGEST):
                ids += self._word(word[start : start + _LONGEST])
        return ids

    def _word(self, word: str) -> list[int]:
        known = self._words.get(word)
        if known is None:
            encoded = self._tokenizer.encode(word, add_special_tokens=False).ids
            known = [token for token in encoded if token < len(self._table)]
            if len(self._words) >= _WORDS_KEPT:
                self._words.clear()
            self._words[word] = known
        return known


@lru_cache(maxsize=1)
def _model() -> _Model:
    spec = find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("local", needs="wordllama")
    # The files are read directly: importing wordllama would set up the root logger and bring in an HTTP client.
    try:
        from safetensors import safe_open
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtraError("local", needs=str(error.name)) from error
    folder = Path(next(iter(spec.submodule_search_locations)))
    weights = folder / "weights" / f"l2_supercat_{DIM}.safetensors"
    words = folder / "tokenizers" / "l2_supercat_tokenizer_config.json"
    for path in (weights, words):
        if not path.is_file():
            raise EmbeddingError(
                f"this version of wordllama does not carry {path.name}: pip install 'hybridmem[local]'"
            )
    with safe_open(str(weights), framework="np") as file:
        table = np.ascontiguousarray(file.get_tensor("embedding.weight").astype(np.float32))
    table.flags.writeable = False
    tokenizer = Tokenizer.from_file(str(words))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return _Model(table, tokenizer)


class LocalEmbedder(Embedder):
    """Embeddings that work offline: `pip install 'hybridmem[local]'`.

    >>> LocalEmbedder().query("a cat").shape
    (256,)
    """

    def __init__(self, *, name: str | None = None, prefix: int | None = 64, **settings: Any) -> None:
        model = _model()
        source = Source(f"wordllama-{DIM}", model.embed, lambda text: model.embed([text])[0])
        super().__init__(source, name=name, dim=DIM, prefix=prefix, **settings)
