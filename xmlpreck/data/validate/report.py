"""Count the problems of a data set and report them."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

# Each kind of problem, and what `fix` does about it; "" = left as it is, as it is common or the right value unknown.
FIXES = {
    "header mismatch": "header rewritten",
    "rows that one of the files lacks": "left empty",
    "unparsable tokens": "dropped",
    "values not finite": "dropped",
    "features out of range": "dropped",
    "labels out of range": "dropped",
    "duplicate features": "first value kept",
    "duplicate labels": "kept once",
    "rows with unsorted features": "sorted",
    "rows with unsorted labels": "sorted",
    "ids that seem to start at 1": "",
    "rows without labels": "",
    "rows without features": "",
    "zero vectors": "",
    "zero values": "",
    "features never seen": "",
    "labels never seen": "",
}
# Those of raw text, and what whoever made the file should do about it; "" = it may be right as it is.
ADVICE = {
    "documents that cannot be read, nor those behind": "mend the file",
    "documents of another encoding": "decode the file by its own encoding",
    "labels that differ only in case or blanks": "give them one name",
    "documents without words": "",
    "duplicate documents": "",
    "duplicate documents, with other labels": "",
    "documents that name all their labels": "",
    "labels that their texts name": "",
    "rows without labels": "",
}
_N_EXAMPLES = 3


@dataclass(frozen=True)
class Problem:
    """One kind of problem: how often it occurs, first examples, and what `fix` does ("" = nothing)."""

    kind: str
    count: int
    examples: list[str]
    fixed_by: str


@dataclass(frozen=True)
class Report:
    """Contents of a split; sizes and quantiles leave out the entries that `fix` drops."""

    path: str
    format: str
    n_rows: int
    n_features: int | None  # None: raw text
    n_labels: int
    problems: list[Problem]
    quantiles: dict[str, list[int]]  # min, 25 %, median, 75 %, max
    written: str | None = None  # the clean copy

    @property
    def is_clean(self) -> bool:
        """Tell whether there is nothing to fix."""
        return not any(problem.fixed_by for problem in self.problems)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"is_clean": self.is_clean}

    def to_text(self) -> str:
        features = f", {self.n_features:,} features" if self.n_features is not None else ""
        sizes = f"{self.n_rows:,} rows{features}, {self.n_labels:,} labels"
        lines = [f"{self.path} ({self.format}): {sizes}"]
        for problem in self.problems:
            what = problem.fixed_by if self.written else f"to fix: {problem.fixed_by}"
            lines.append(f"  {problem.count:>13,}  {problem.kind}{f' ({what})' if problem.fixed_by else ''}")
            lines += [f"{'':17}{example}" for example in problem.examples]
        lines.append(f"  {'':21}{'min':>9}{'25 %':>9}{'median':>9}{'75 %':>9}{'max':>9}")
        lines += [f"  {name:<21}" + "".join(f"{n:>9,}" for n in five) for name, five in self.quantiles.items()]
        if self.written:
            lines.append(f"clean copy: {self.written}")
        elif self.is_clean:
            lines.append("nothing to fix")
        return "\n".join(lines)


class Findings:
    """Counts and first examples of each kind of problem, in bounded memory."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {kind: [] for kind in FIXES | ADVICE}

    def note(self, kind: str, example: str, count: int = 1) -> None:
        self.counts[kind] += count
        if len(self.examples[kind]) < _N_EXAMPLES:
            self.examples[kind].append(example)

    def problems(self) -> list[Problem]:
        known = FIXES | ADVICE
        found = [kind for kind in known if self.counts[kind]]
        return [Problem(kind, self.counts[kind], self.examples[kind], known[kind]) for kind in found]
