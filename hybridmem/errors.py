"""The tree of exceptions.

```
HybridMemError
├── ConfigError (ValueError)           bad weight, k < 1, half-life ≤ 0, unknown arm or filter operator
├── StoreError
│   ├── StoreClosedError               used after close()
│   ├── StoreBusyError                 another writer held the store for longer than the busy timeout
│   ├── CorruptStoreError              the file is damaged or is no hybridmem store
│   ├── SchemaVersionError             the file was written by a newer hybridmem
│   └── NotFoundError (KeyError)       no memory has this id
├── EmbeddingError                     wrong dimension, not finite, embedder failed, embedder changed
├── ArmError                           .arm names it, __cause__ is the original
└── MissingExtraError (ImportError)    "pip install 'hybridmem[chroma]'"
```
"""

from __future__ import annotations

__all__ = [
    "ArmError",
    "ConfigError",
    "CorruptStoreError",
    "EmbeddingError",
    "HybridMemError",
    "MissingExtraError",
    "NotFoundError",
    "SchemaVersionError",
    "StoreBusyError",
    "StoreClosedError",
    "StoreError",
]


class HybridMemError(Exception):
    """Base class of all errors of this package."""


class ConfigError(HybridMemError, ValueError):
    """A parameter has an invalid value; the message names the parameter, the value and what is allowed."""


class StoreError(HybridMemError):
    """A store operation failed."""


class StoreClosedError(StoreError):
    """The store was used after `close()`."""


class StoreBusyError(StoreError):
    """Another writer held the store for longer than the busy timeout."""


class CorruptStoreError(StoreError):
    """The file is damaged, or is not a hybridmem store."""


class SchemaVersionError(StoreError):
    """The file was written by a newer version of hybridmem."""


class NotFoundError(StoreError, KeyError):
    """No memory has this id (in this namespace)."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError would show the repr


class EmbeddingError(HybridMemError):
    """An embedding is missing, has the wrong dimension, is not finite, or comes from another embedder."""


class ArmError(HybridMemError):
    """One arm of a fusion failed. `.arm` names it; `__cause__` is the original exception."""

    def __init__(self, message: str, *, arm: str) -> None:
        super().__init__(message)
        self.arm = arm


class MissingExtraError(HybridMemError, ImportError):
    """An optional dependency is not installed; the message has the pip command."""

    def __init__(self, extra: str, *, needs: str) -> None:
        super().__init__(f"{needs} is not installed: pip install 'hybridmem[{extra}]'")
        self.extra = extra
