"""Token vectors that rerankers encode on demand: kept in a SQLite file, and shared by models and processes."""

from __future__ import annotations

import logging
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyterrier as pt
import torch

from pyterrier_graph.checks import SpeedWarning
from pyterrier_graph.encoders.checkpoints import dtype_name
from pyterrier_graph.encoders.token_encoder import MANY_TEXTS, TokenEncoder, TokenStates
from pyterrier_graph.storage.artifact import json_sha256

FLOAT16 = np.dtype("<f2")
TEXTS_AT_ONCE = 512  # texts that are encoded before their vectors are written
KEYS_AT_ONCE = 1000  # keys per SELECT
TABLE = "CREATE TABLE IF NOT EXISTS tokens (key BLOB PRIMARY KEY, vectors BLOB)"
PAGE_SIZE = 32_768  # bytes; a matrix is read four times as fast as with SQLite's default

logger = logging.getLogger(__name__)


class TokenCache:
    """Matrices of token vectors, by digests of their texts.

    Several processes may read and write: SQLite locks the file, and a killed process leaves no incomplete matrix. If
    the file cannot be written, matrices stay in memory.

    Args:
        file: The SQLite file; None keeps all matrices in memory.
        width: Length of a token vector.
    """

    def __init__(self, file: Path | None, width: int) -> None:
        self.file, self.width = file, width
        self._memory: dict[bytes, np.ndarray] = {}

    def read(self, keys: Sequence[bytes]) -> dict[bytes, np.ndarray]:
        """The matrices of those keys that have one, each of shape (tokens, width)."""
        matrices = {key: self._memory[key] for key in keys if key in self._memory}
        if self.file is None or not self.file.is_file():
            return matrices
        with self._connection(self.file) as connection:
            for start in range(0, len(keys), KEYS_AT_ONCE):
                some = keys[start : start + KEYS_AT_ONCE]
                marks = ",".join("?" * len(some))
                query = f"SELECT key, vectors FROM tokens WHERE key IN ({marks})"
                for key, vectors in connection.execute(query, some):
                    matrices[key] = np.frombuffer(vectors, FLOAT16).reshape(-1, self.width)
        return matrices

    def write(self, matrices: Mapping[bytes, np.ndarray]) -> None:
        """Adds matrices, in one transaction."""
        if self.file is None:
            self._memory |= matrices
            return
        rows = [(key, matrix.astype(FLOAT16).tobytes()) for key, matrix in matrices.items()]
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self._connection(self.file) as connection:
                connection.executemany("INSERT OR IGNORE INTO tokens VALUES (?, ?)", rows)
        except (OSError, sqlite3.Error) as error:
            logger.warning("Token vectors stay in memory, not in %s: %s", self.file, error)
            self._memory |= matrices

    @contextmanager
    def _connection(self, file: Path) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction; none stays open, so that forks and threads are safe."""
        try:
            with closing(sqlite3.connect(file, timeout=60)) as connection, connection:
                connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")  # of a new file
                connection.execute(TABLE)
                yield connection
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise ValueError(f"{str(file)!r} is damaged: {error}; delete it") from error


def cached_states(
    encoder: TokenEncoder,
    texts: Sequence[str],
    cache: TokenCache,
    device: torch.device | str = "cpu",
    *,
    write: bool = True,
    verbose: bool = True,
) -> TokenStates:
    """Token vectors of passages or titles, in float16. Only texts that the cache lacks are encoded.

    Warns if many texts have to be encoded.

    Args:
        encoder: The encoder.
        texts: Passages or titles.
        cache: A cache of the same encoder, such as :func:`token_cache` returns.
        device: Device of the result.
        write: Whether new vectors are added to the cache.
        verbose: Whether to show progress.
    """
    keys = [blake2b(text.encode(), digest_size=16).digest() for text in texts]
    text_of = dict(zip(keys, texts, strict=True))
    matrices = cache.read([*text_of])
    new = [key for key in text_of if key not in matrices]
    if write and len(new) > MANY_TEXTS:
        advice = "TokenStore(path).build(graph, encoder, workers=2) encodes a corpus in parallel"
        message = f"encoding {len(new):,} texts, which takes long; their vectors are kept in {str(cache.file)!r}"
        warnings.warn(f"{message}. {advice}", SpeedWarning, stacklevel=4)
    progress = {"desc": "encoding", "unit": "text", "delay": 1, "leave": None}
    with pt.tqdm(total=len(new), disable=not verbose, **progress) as bar:
        for start in range(0, len(new), TEXTS_AT_ONCE):
            batch = new[start : start + TEXTS_AT_ONCE]
            states = encoder.encode_passages([text_of[key] for key in batch])
            encoded = dict(zip(batch, states.arrays(FLOAT16), strict=True))
            matrices |= encoded
            if write:
                cache.write(encoded)
            bar.update(len(batch))
    return TokenStates.from_arrays([matrices[key] for key in keys], encoder.dimension, device)


def token_cache(encoder: TokenEncoder, folder: Path | None) -> TokenCache:
    """The cache of an encoder in a folder; without a folder, in a temporary one that this process deletes at its end.

    Encoders with the same weights, lengths and precision share a cache.
    """
    about = {"name": encoder.name, "sha256": encoder.fingerprint()}
    about["dtype"] = dtype_name(encoder.dtype, encoder.network.device)
    folder = Path(_temporary().name) if folder is None else folder.absolute()
    return _open_cache(folder / f"tokens-{json_sha256(about)[:16]}.sqlite", encoder.dimension)


@lru_cache(maxsize=64)
def _open_cache(file: Path, width: int) -> TokenCache:
    return TokenCache(
        file, width
    )  # the same object for all calls, since it may have matrices in memory


@lru_cache(maxsize=1)
def _temporary() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="tokens-", ignore_cleanup_errors=True)
