"""Embed texts with a sentence-transformers model (extra `embed`); what was embedded once is kept on disk."""

import functools
import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from xmlpreck.config import InputError
from xmlpreck.files import FormatError
from xmlpreck.files.atomic import atomic_path
from xmlpreck.files.contents import file_sha256, load_array
from xmlpreck.files.progress import progress_bar

TEXTS_AT_ONCE = 256  # that are embedded, and kept in one file
CACHE = "~/.cache/xmlpreck/embeddings"


class Embedder:
    """Turns texts into rows of float32, (n_texts, n_dense)."""

    def __init__(self, name: str) -> None:
        """Load a model by the name of a sentence-transformers model, or by its folder."""
        self.name = name
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise InputError(
                f"--embed {name}: needs the package sentence-transformers: pip install 'xmlpreck[embed]', or make the "
                "embedding yourself and give it by --dense"
            ) from None
        path = Path(name).expanduser()
        if not path.is_dir() and (path.is_absolute() or name.startswith(".")):
            raise InputError(f"--embed {name}: no such folder")
        try:
            self.encoder: Any = SentenceTransformer(str(path) if path.is_dir() else name, device="cpu")
        except Exception as error:  # its loaders raise anything
            first = str(error).strip().partition("\n")[0]
            raise InputError(f"--embed {name}: cannot be loaded: {first:.200}") from None
        self.identity = _identity(path) if path.is_dir() else name

    @property
    def cache(self) -> Path:
        """The folder of what was embedded; $XMLPRECK_CACHE/embeddings if that is set."""
        root = os.environ.get("XMLPRECK_CACHE")
        return Path(root) / "embeddings" if root else Path(CACHE).expanduser()

    def embed(self, texts: Sequence[str], progress: bool = False) -> np.ndarray:
        """Embed texts some hundred at a time."""
        parts = []
        with progress_bar(len(texts), "embed", progress) as bar:
            for start in range(0, len(texts), TEXTS_AT_ONCE):
                some = list(texts[start : start + TEXTS_AT_ONCE])
                parts.append(self._embed_some(some))
                bar.update(len(some))
        return np.concatenate(parts) if parts else np.zeros((0, self.n_dense), np.float32)

    @property
    def n_dense(self) -> int:
        return int(self._embed_some([""]).shape[1])

    def _embed_some(self, texts: list[str]) -> np.ndarray:
        digest = hashlib.sha256(self.identity.encode())
        for text in texts:
            content = text.encode("utf-8", "surrogatepass")
            digest.update(len(content).to_bytes(8, "little") + content)
        path = self.cache / digest.hexdigest()[:2] / f"{digest.hexdigest()}.npy"
        with suppress(OSError, ValueError):  # not there, or damaged: embedded again
            kept = load_array(path)
            if kept.ndim == 2 and len(kept) == len(texts) and kept.dtype == np.float32:
                return np.array(kept)
        found = np.asarray(self.encoder.encode(texts, show_progress_bar=False), np.float32)
        with suppress(OSError, FormatError, InputError):  # a cache that cannot be written is none
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as temporary:
                np.save(temporary, found)
        return found


def _identity(folder: Path) -> str:
    """Hash the files of a model: a folder may get another model under the same name."""
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.suffix in (".json", ".safetensors", ".bin")
    )
    return hashlib.sha256("".join(f"{path.name} {file_sha256(path)}\n" for path in files).encode()).hexdigest()


@functools.lru_cache(maxsize=2)
def open_embedder(name: str) -> Embedder:
    """Open an embedder once in a process."""
    return Embedder(name)


def embed_chunks(name: str, chunks: Iterable[Sequence[str]], progress: bool = False) -> np.ndarray:
    """Embed texts that come in chunks."""
    embedder = open_embedder(name)
    texts = [text for chunk in chunks for text in chunk]
    return embedder.embed(texts, progress)
