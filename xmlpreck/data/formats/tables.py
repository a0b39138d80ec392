"""Read documents from tables: delimited text, Parquet, and tables in memory (pandas, polars, Arrow, `datasets`)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from xmlpreck.data.dataset import Documents
from xmlpreck.data.formats.column_choice import LISTS, SAMPLE_ROWS, Chooser, Chosen, Columns, read_list, split_labels
from xmlpreck.data.formats.delimited import DelimitedTable
from xmlpreck.files import AnyPath, FormatError, first_line

BATCH_ROWS = 4096  # unpacked at a time

# Where a row is, and its fields.
Row = tuple[str, Sequence[Any]]


class Opened(NamedTuple):
    """Documents that can be read several times: what is read of them, and chunks of a number of rows."""

    chosen: Chosen | None  # None: the format has no columns
    written: str | None  # how the file is written, as it was recognised
    chunks: Callable[[int], Iterator[Documents]]


def open_delimited(path: AnyPath, columns: Columns, remembered: Columns | None = None) -> Opened:
    """Open CSV, TSV or the like."""
    table = DelimitedTable(path, columns)
    sample = [row for _, row in islice(table.rows(), SAMPLE_ROWS)]
    chosen = Chooser(path, table.names, sample).choose(columns, remembered)
    return Opened(chosen, str(table.dialect), lambda n: as_documents(table.rows(), chosen, n))


def open_parquet(path: AnyPath, columns: Columns, remembered: Columns | None = None) -> Opened:
    """Open the columns of a Parquet file; only those that are read are unpacked."""

    def batches(n_rows: int, names: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        try:
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(n_rows, columns=names)
        except (OSError, KeyError, ValueError, pa.ArrowException) as error:
            raise FormatError(f"{path}: cannot be read as Parquet: {first_line(error)}") from None

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
    except (OSError, ValueError, pa.ArrowException) as error:
        raise FormatError(f"{path}: cannot be read as Parquet: {first_line(error)}") from None
    sample = next(batches(SAMPLE_ROWS), None)
    chosen = Chooser(path, names, [] if sample is None else _values(path, sample, names)).choose(columns, remembered)
    wanted = _read_names(chosen)
    part = chosen._replace(names=wanted)
    return Opened(chosen, None, lambda n: as_documents(_arrow_rows(path, batches(BATCH_ROWS, wanted), wanted), part, n))


def open_table(table: Any, name: str, columns: Columns, remembered: Columns | None = None) -> Opened:
    """Open a table in memory: a data frame of pandas or polars, an Arrow table, or a data set of `datasets`."""

    def batches(n_rows: int) -> Iterator[Any]:
        if hasattr(table, "with_format"):  # `datasets`, which may be on disk and have its rows in another order
            yield from table.with_format("arrow").iter(batch_size=n_rows)
        else:
            yield from as_arrow(table, name).to_batches(n_rows)

    names = list(table.column_names) if hasattr(table, "with_format") else as_arrow(table, name).column_names
    sample = next(batches(SAMPLE_ROWS), None)
    chosen = Chooser(name, names, [] if sample is None else _values(name, sample, names)).choose(columns, remembered)
    wanted = _read_names(chosen)
    part = chosen._replace(names=wanted)
    classes = _class_names(table, chosen.labels)

    def rows() -> Iterator[Row]:
        found = _arrow_rows(name, batches(BATCH_ROWS), wanted)
        if classes is None:
            return found
        column = wanted.index(str(chosen.labels))
        return ((where, _with_names(values, column, classes)) for where, values in found)

    return Opened(chosen, None, lambda n: as_documents(rows(), part, n))


def _class_names(table: Any, column: str | None) -> list[str] | None:
    """Return the names of a column of class numbers, which data sets of `datasets` may have."""
    features = getattr(table, "features", None)
    feature = features.get(column) if isinstance(features, dict) else None
    return getattr(getattr(feature, "feature", feature), "names", None)


def _with_names(values: Sequence[Any], column: int, classes: list[str]) -> Sequence[Any]:
    numbers = values[column] if isinstance(values[column], list) else [values[column]]
    names = [classes[number] for number in numbers if number is not None and 0 <= number < len(classes)]
    return [*values[:column], names, *values[column + 1 :]]


def is_table(data: object) -> bool:
    """Tell whether something is a table in memory, without importing the libraries that make them."""
    return hasattr(data, "__arrow_c_stream__") or (hasattr(data, "with_format") and hasattr(data, "column_names"))


def as_arrow(table: Any, name: str) -> pa.Table:
    """Return a table in memory as Arrow's; the index of pandas is a column if it has a name."""
    if isinstance(table, pa.Table):
        return table
    try:
        if hasattr(table, "iloc"):  # pandas
            return pa.Table.from_pandas(table, preserve_index=table.index.name is not None)
        return pa.table(table)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise FormatError(f"{name}: cannot be read as a table: {first_line(error)}") from None


def _read_names(chosen: Chosen) -> list[str]:
    read = [*(name for name, _ in chosen.text), chosen.labels, chosen.id]
    return list(dict.fromkeys(name for name in read if name is not None))


def _values(path: object, batch: Any, names: list[str]) -> list[tuple[Any, ...]]:
    """Return the rows of a batch as tuples."""
    try:
        # By number where names repeat: Arrow finds no column by such a name.
        columns = [batch.column(batch.schema.names.index(name)).to_pylist() for name in names]
    except (ValueError, pa.ArrowException) as error:  # e.g. bytes that are not UTF-8 in a column of texts
        raise FormatError(f"{path}: cannot be read as a table: {first_line(error)}") from None
    return list(zip(*columns, strict=True))


def _arrow_rows(path: object, batches: Iterable[Any], names: list[str]) -> Iterator[Row]:
    row = 0
    for batch in batches:
        for values in _values(path, batch, names):
            yield f"{path}: row {row}", values
            row += 1


def as_documents(rows: Iterable[Row], chosen: Chosen, rows_per_chunk: int) -> Iterator[Documents]:
    """Turn rows into documents, `rows_per_chunk` at a time; at least one chunk."""
    index = {name: column for column, name in enumerate(chosen.names)}
    texts = [(index[name], name, weight) for name, weight in chosen.text]
    labels = None if chosen.labels is None else index[chosen.labels]
    row_id = None if chosen.id is None else index[chosen.id]

    def document(where: str, values: Sequence[Any]) -> tuple[str, list[str], Any]:
        try:
            text = text_of([(name, values[i], weight) for i, name, weight in texts])
            names = [] if labels is None else labels_of(values[labels], chosen.separator)
            return text, names, None if row_id is None else id_of(values[row_id])
        except ValueError as error:
            raise FormatError(f"{where}: {error}") from None

    rows, n_chunks = iter(rows), 0
    while (chunk := [document(*row) for row in islice(rows, rows_per_chunk)]) or not n_chunks:
        ids = [found[2] for found in chunk] if chunk and row_id is not None else None
        yield Documents([found[0] for found in chunk], [found[1] for found in chunk], ids)
        n_chunks += 1


def text_of(parts: Iterable[tuple[str, Any, int]]) -> str:
    """Join the texts of a row, each as often as its weight says; null is nothing, but not all may be null."""
    words: list[str] = []
    is_null = True
    for name, value, weight in parts:
        if value is None:
            continue
        if not isinstance(value, str):
            raise ValueError(f"column {name!r:.40} is {value!r:.40}, not a text: name another by --text-columns")
        is_null = False
        words += [value] * weight
    if is_null:
        raise ValueError("the text is null: give an empty one where there is none")
    return words[0] if len(words) == 1 else " ".join(filter(None, words))


def labels_of(value: Any, separator: str | None) -> list[str]:
    """Return the label names of a field: a list of names or of Annif's `{"uri": ...}`, or one or more in a text."""
    if value is None or value == "":
        return []
    if separator == LISTS and isinstance(value, str):
        found = read_list(value)
        if found is None:
            raise ValueError(f"{value!r:.60} is not a list of labels, as in the first rows")
        value = found
    names = map(label_name, value if isinstance(value, list | tuple) else [value])
    return split_labels(names, None if separator == LISTS else separator)


def label_name(label: Any) -> str:
    """Return the name of a label: a text, a whole number, or an object of Annif's with its `uri`."""
    if isinstance(label, dict) and "uri" in label:
        label = label["uri"]
    if type(label) is int:
        return str(label)
    if isinstance(label, float) and label.is_integer():  # pandas makes these of a column with gaps
        return str(int(label))
    if not isinstance(label, str) or not label:
        shown = "null" if label is None else repr(label)[:40]
        raise ValueError(f"label {shown} is not a name: labels are texts or whole numbers")
    if not label.isascii() and any("\ud800" <= letter <= "\udfff" for letter in label):
        raise ValueError(f"label {label!r:.40} holds half of a surrogate pair: no file can hold it")
    return label


def id_of(value: Any) -> Any:
    """Return the id of a row: a text or a whole number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) not in (str, int):
        shown = "null" if value is None else repr(value)[:40]
        raise ValueError(f"the id is {shown}, not a text or whole number: name another column, or say --id-column none")
    return value
