"""Write docs/settings.md: every setting with its default and its help, from the dataclasses of xmlpreck.config.

python tools/make_settings.py docs/settings.md
"""

import sys
from pathlib import Path

from xmlpreck.config import NAMED_SETTINGS, RowsConfig, TextConfig, TrainConfig, describe

SECTIONS = {
    "train": (TrainConfig, "Training. Those with a flag are also named parameters of `xmlpreck.fit`."),
    "rows": (RowsConfig, "What happens to every row before it is scored, in training and in prediction."),
    "text": (TextConfig, "How raw text becomes features."),
}
HEAD = """# Settings

Written by `python tools/make_settings.py docs/settings.md`; do not edit.

A setting comes from, in this order: its default, a TOML file (`--config`, `config=`), then `--set section.key=value`
and flags (in Python `settings={"section.key": value}` and named parameters). Tuning chooses algo, tau, k, eta,
epochs, members, spread, prune, decay and widen where nobody gave them ([tuning](tuning.md)).
"""


def make_page() -> str:
    """Return the page."""
    parts = [HEAD]
    for section, (kind, about) in SECTIONS.items():
        rows = [
            f"| `{section}.{name}` | {f'`--{name}`' if section == 'train' and name in NAMED_SETTINGS else ''} "
            f"| `{default}` | {text.replace('|', chr(92) + '|')} |"
            for name, (default, text) in describe(kind).items()
        ]
        parts.append(
            "\n".join([f"## {section}\n\n{about}\n", "| setting | flag | default | |", "|---|---|---|---|", *rows])
        )
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(make_page(), encoding="utf-8")
