"""Documents as rows: where the texts of a split are, and the way from them to a Dataset."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from xmlpreck import formats
from xmlpreck.config import InputError, TextConfig
from xmlpreck.formats import Dataset, Documents
from xmlpreck.formats.dataset import stack_rows
from xmlpreck.shards import is_remote, without_secrets
from xmlpreck.text import TextVectorizer, fit_labels, fit_text, label_matrix, read_parquet_documents

# A held-back split has one of these names.
PARQUET_FILES = {"train": ("train.parquet",), "test": ("test.parquet", "dev.parquet")}


@dataclass(frozen=True)
class Columns:
    """How documents are to be read: columns of a Parquet file, or a text format that is forced."""

    text: str | None = None
    labels: str | None = None
    format: str | None = None


class Corpus:
    """The documents of one split, read anew for each pass."""

    def __init__(self, path: Path, split: str, columns: Columns) -> None:
        self.path, self.split, self.columns = path, split, columns

    def chunks(self) -> Iterator[Documents]:
        if self.columns.text is not None:
            return read_parquet_documents(self.path, self.columns.text, self.columns.labels)
        return formats.document_chunks(self.path, self.split, self.columns.format)


def find_corpus(data: str, split: str, columns: Columns) -> Corpus | None:
    """The documents of a file or folder; None where `data` has numbers, as all URIs have, or has no such split."""
    if is_remote(data):
        if columns.text is not None:
            raise InputError(f"{without_secrets(data)}: raw text is read from local files only: copy them here")
        return None
    path = Path(data)
    if columns.text is not None:
        names = PARQUET_FILES[split]
        files = [path / name for name in names] if path.is_dir() else [path]
        found = next((file for file in files if file.is_file()), None)
        if found is None and split == "train":
            raise InputError(f"{path}: no {split} documents here: looked for {', '.join(names)}")
        return None if found is None else Corpus(found, split, columns)
    if not path.exists() or not formats.has_split(path, split):
        return None
    kind = columns.format or formats.recognise(path)
    return Corpus(path, split, columns) if kind in formats.DOCUMENT_FORMATS else None


def learn(corpus: Corpus, config: TextConfig) -> tuple[TextVectorizer, list[str]]:
    """Vocabulary and names of labels, in one pass over the documents."""
    seen: set[str] = set()

    def texts() -> Iterator[list[str]]:
        for chunk in corpus.chunks():
            seen.update(name for names in chunk.labels for name in names)
            yield chunk.texts

    vectorizer = fit_text(texts(), **asdict(config))
    return vectorizer, fit_labels([[sorted(seen)]])


def vectorize(corpus: Corpus, vectorizer: TextVectorizer, label_names: list[str]) -> Dataset:
    """All documents as rows. Labels beyond `label_names` get columns behind them: nothing can predict these."""
    rows, label_lists = [], []
    for chunk in corpus.chunks():
        rows.append(vectorizer.transform(chunk.texts))
        label_lists += chunk.labels
    if not rows:
        raise InputError(f"{corpus.path}: has no documents")
    names = fit_labels([label_lists], label_names)
    labels = label_matrix(label_lists, {name: column for column, name in enumerate(names)})
    return Dataset(stack_rows(rows), labels, names, vectorizer.feature_names)
