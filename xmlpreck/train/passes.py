"""A pass over rows: the rows as the kernels take them, their order, how far it has come, and what it found."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from xmlpreck.config import InputError, RowsConfig
from xmlpreck.data.formats import Dataset
from xmlpreck.data.rows import RowSource, read_blocks
from xmlpreck.kernels.arrays import Batch, Rows
from xmlpreck.model import kernel_rows, prepare_rows


@dataclass(frozen=True)
class PassFacts:
    """One pass. Surrogate and mistakes are means over the rows that have labels, on the scores that the rule saw
    (perturbed ones if tau > 0); mistakes <= surrogate, always."""

    number: int
    surrogate: float
    mistakes: float
    updated: int  # rows that changed the weights
    n_rows: int
    seconds: float
    heldout: dict[str, float] | None = None  # P@k of the held-out rows
    communication: float | None = None  # of a cluster: share of the time in which no shard of the labels computed

    @property
    def gap(self) -> float:
        return self.surrogate - self.mistakes

    @property
    def rows_per_second(self) -> float:
        return self.n_rows / max(self.seconds, 1e-9)

    def to_dict(self) -> dict[str, object]:
        return asdict(self) | {"gap": self.gap, "rows_per_second": self.rows_per_second}


@dataclass
class Cursor:
    """How far a pass has come, and sums over its rows: with the learner's arrays, the whole state of training."""

    number: int = 0  # of the pass
    n_blocks: int = 0  # done
    n_rows: int = 0  # done of the block after these
    surrogate: float = 0.0
    mistakes: int = 0
    updated: int = 0
    labelled: int = 0
    seconds: float = 0.0
    rows_seen: int = 0

    @classmethod
    def of(cls, facts: dict[str, Any], rows: "PreparedRows", seed: int) -> "Cursor":
        """Read the cursor of a checkpoint; refuse one that no run over these rows can have."""
        kinds = {item.name: type(item.default) for item in fields(cls)} | {"n_passes": int}
        wrong = [name for name in kinds.keys() | facts.keys() if not _is_amount(facts.get(name), kinds.get(name))]
        if not wrong:
            cursor = cls(**{name: value for name, value in facts.items() if name != "n_passes"})
            if cursor._fits(facts["n_passes"], rows, seed):
                return cursor
        what = f"{sorted(wrong)[0]!r} is wrong" if wrong else "no run over these rows comes to this position"
        raise InputError(f"the checkpoint cannot be gone on from: {what}: delete it to start from the first row")

    def _fits(self, n_passes: int, rows: "PreparedRows", seed: int) -> bool:
        """Whether a run over these rows can be here: at the end of pass `n_passes`, or within the next."""
        if not 0 <= self.number - n_passes <= 1 or self.n_blocks > rows.n_blocks:
            return False
        order = np.random.default_rng([seed, self.number]).permutation(rows.n_blocks)
        lengths = [rows.block_length(block) for block in order]
        in_block = lengths[self.n_blocks] if self.n_blocks < rows.n_blocks else 0
        n_seen = sum(lengths[: self.n_blocks]) + self.n_rows
        is_within = self.n_rows <= in_block and self.rows_seen == n_seen
        return is_within and (self.number > n_passes or self.n_blocks == rows.n_blocks)

    def add(self, batch: Batch, n_labels_of: np.ndarray) -> None:
        """Count rows that were trained on, the next of their block."""
        self.surrogate += float(batch.surrogates.sum())
        self.mistakes += int(batch.mistakes.sum())
        self.updated += int(batch.updated.sum())
        self.labelled += int(np.count_nonzero(n_labels_of))
        self.n_rows += len(n_labels_of)
        self.rows_seen += len(n_labels_of)

    def facts(self, n_rows: int) -> PassFacts:
        n_labelled = max(self.labelled, 1)
        surrogate, mistakes = self.surrogate / n_labelled, self.mistakes / n_labelled
        return PassFacts(self.number, surrogate, mistakes, self.updated, n_rows, self.seconds)


def _is_amount(value: object, kind: type | None) -> bool:
    """Whether a value is a number of this kind, finite and not below 0."""
    if kind is int:
        return type(value) is int and 0 <= value < 2**62
    return kind is float and type(value) in (int, float) and 0 <= value < 2.0**62  # type: ignore[operator]


class PreparedRows:
    """Rows of a source as the kernels take them, block by block."""

    def __init__(
        self, source: RowSource, config: RowsConfig, block_rows: int, label_range: range | None = None
    ) -> None:
        """With a range of labels, rows have only these."""
        self.source, self.config, self.block_rows = source, config, block_rows
        self.labels = label_range or range(source.n_labels)
        self.n_rows, self.n_labels = source.n_rows, len(self.labels)
        self.n_features = source.n_features + (config.bias > 0)
        self.n_blocks = -(-source.n_rows // block_rows)
        self.only_block: Rows | None = None  # kept where all rows fit into one block
        self.max_labels = 0  # of a row that was read
        self.streamed_bytes = 0  # max: a block in use, and the next one as it is read and prepared

    def block_length(self, block: int) -> int:
        return min(self.block_rows, self.n_rows - int(block) * self.block_rows)

    def blocks(
        self, order: Iterable[int], look: Callable[[Dataset], None] = lambda _: None
    ) -> Iterator[tuple[int, Rows]]:
        """Yield (first row, rows) of each block in the given order; `look` gets the rows as they are in the source."""

        def prepare(block: Dataset) -> Rows:
            look(block)
            labels = block.labels
            if self.n_labels < self.source.n_labels:
                labels = labels[:, self.labels.start : self.labels.stop]
            rows = kernel_rows(prepare_rows(block.rows, self.config), labels)
            self.max_labels = max(self.max_labels, int(np.diff(rows.label_offsets).max(initial=0)))
            if self.n_blocks > 1:
                read = sum(a.nbytes for m in (block.rows, block.labels) for a in (m.data, m.indices, m.indptr))
                self.streamed_bytes = max(self.streamed_bytes, read + 2 * sum(array.nbytes for array in rows))
            return rows

        if self.n_blocks > 1:
            yield from read_blocks(self.source, self.block_rows, order, prepare)
            return
        for _ in order:
            self.only_block = self.only_block or prepare(self.source.read(0, self.n_rows))
            yield 0, self.only_block


def shuffled_blocks(rows: PreparedRows, seed: int, cursor: Cursor) -> Iterator[tuple[int, Rows, np.ndarray]]:
    """Yield (first row, rows, their order) of each block that is left of a pass.

    The order of blocks and of rows within each is drawn by default_rng([seed, pass]).
    """
    rng = np.random.default_rng([seed, cursor.number])
    blocks = rng.permutation(rows.n_blocks)
    for block in blocks[: cursor.n_blocks]:  # the orders that were drawn before
        rng.permutation(rows.block_length(block))
    for start, block in rows.blocks(blocks[cursor.n_blocks :]):
        yield start, block, rng.permutation(len(block.offsets) - 1)
