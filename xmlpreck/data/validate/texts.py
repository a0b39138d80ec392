"""Look through raw text for what is wrong or odd with documents and their labels.

Memory holds a number for each document, and the label names.
"""

import hashlib
import re
from collections import Counter, defaultdict
from functools import lru_cache

from xmlpreck.data.corpus import Corpus
from xmlpreck.data.validate.report import Findings, Report
from xmlpreck.data.validate.scan import five_numbers
from xmlpreck.files import FormatError
from xmlpreck.files.progress import Reading

# The mark of bytes that could not be read; UTF-8 that was read as Latin-1 or cp1252: Ã¼ for ü, â€™ for an apostrophe
_MISREAD = re.compile("\ufffd|Ã[\u0080-\u00bf\u2018-\u201e\u0152-\u0178]|â€|Â[\u00a0-\u00bf]")
_GAPS = re.compile(r"[\W_]+")
_MIN_LETTERS = 4  # of a name: shorter ones are in many texts by chance
_MIN_DOCUMENTS = 20  # to speak of a leak
_LEAK_SHARE = 0.9


@lru_cache(1 << 16)
def fold_name(name: str) -> str:
    """Return a label name without case and without what separates its words."""
    return _GAPS.sub(" ", name.casefold()).strip()


class TextScan:
    """Count the problems of documents, and how often labels are named in their own texts."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus, self.found = corpus, Findings()
        self.n_rows = self.n_named = self.n_nameable = 0
        self.first_of: dict[bytes, tuple[int, int]] = {}  # by a hash of the text: document, hash of its labels
        self.frequency: Counter[str] = Counter()
        self.named: Counter[str] = Counter()  # documents of a label that hold its name
        self.labels_of_row: Counter[int] = Counter()
        self.letters_of_text: Counter[int] = Counter()

    def run(self, progress: bool = False) -> Report:
        """Read all documents."""
        _ = self.corpus.opened  # columns that are not there are an error of the caller
        try:
            for chunk in Reading("validate", progress).over(self.corpus.chunks()):
                for row, (text, labels) in enumerate(zip(chunk.texts, chunk.labels, strict=True)):
                    name = self.n_rows if chunk.ids is None else chunk.ids[row]
                    self._look_at(text, labels, f"{self.corpus.path}: row {name}")
        except FormatError as error:
            self.found.note("documents that cannot be read, nor those behind", str(error))
        self._look_at_names()
        return self._report()

    def _look_at(self, text: str, labels: list[str], where: str) -> None:
        folded = _GAPS.sub(" ", text.casefold()).strip()
        if not folded:
            self.found.note("documents without words", where)
        else:
            self._look_for_copy(folded, hash(frozenset(labels)), where)
        if misread := _MISREAD.search(text):
            shown = text[max(0, misread.start() - 15) :][:40]
            self.found.note("documents of another encoding", f"{where}: {shown!r}")
        if not labels:
            self.found.note("rows without labels", where)
        self._look_for_names(f" {folded} ", set(labels))
        self.labels_of_row[len(set(labels))] += 1
        self.letters_of_text[len(text)] += 1
        self.n_rows += 1

    def _look_for_copy(self, folded: str, labels: int, where: str) -> None:
        key = hashlib.blake2b(folded.encode(errors="replace"), digest_size=16).digest()
        first, first_labels = self.first_of.setdefault(key, (self.n_rows, labels))
        if first != self.n_rows:
            others = "" if labels == first_labels else ", with other labels"
            self.found.note(f"duplicate documents{others}", f"{where}: document {first} from 0 has this text")

    def _look_for_names(self, folded: str, labels: set[str]) -> None:
        self.frequency.update(labels)
        long = [label for label in labels if len(fold_name(label)) >= _MIN_LETTERS]
        named = [label for label in long if f" {fold_name(label)} " in folded]
        self.named.update(named)
        if long:
            self.n_nameable += 1
            self.n_named += len(named) == len(long)

    def _look_at_names(self) -> None:
        groups = defaultdict(list)
        for label in sorted(self.frequency):
            groups[" ".join(label.casefold().split())].append(label)
        for group in groups.values():
            if len(group) > 1:
                shown = ", ".join(f"{label!r:.40} ({self.frequency[label]:,})" for label in group[:4])
                self.found.note("labels that differ only in case or blanks", shown, len(group) - 1)
        if self.n_nameable >= _MIN_DOCUMENTS and self.n_named >= _LEAK_SHARE * self.n_nameable:
            share = f"{100 * self.n_named / self.n_nameable:.0f}% of the documents"
            self.found.note(
                "documents that name all their labels", f"{share}: are labels part of the text?", self.n_named
            )
            return
        often = (label for label, count in self.frequency.most_common() if count >= _MIN_DOCUMENTS)
        for label in often:
            if self.named[label] >= _LEAK_SHARE * self.frequency[label]:
                self.found.note(
                    "labels that their texts name", f"{label!r:.60}: {self.named[label]:,} of {self.frequency[label]:,}"
                )

    def _report(self) -> Report:
        counted = {
            "rows of a label": Counter(self.frequency.values()),
            "labels of a row": self.labels_of_row,
            "letters of a text": self.letters_of_text,
        }
        return Report(
            path=str(self.corpus.path),
            format="texts",
            n_rows=self.n_rows,
            n_features=None,
            n_labels=len(self.frequency),
            problems=self.found.problems(),
            quantiles={name: five_numbers(counts) for name, counts in counted.items() if counts},
        )
