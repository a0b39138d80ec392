"""Write a model card: what a model is, how well it does and how sure that is, as Markdown for the Hugging Face Hub."""

import html
import json
from collections.abc import Sequence
from typing import Any

import xmlpreck
from xmlpreck.evaluation.tables import chosen_text, printable, table
from xmlpreck.metrics import Scores
from xmlpreck.model import Model

# In every card that we write; a card without it is somebody's own, and is not replaced.
MARK = "<!-- written by xmlpreck -->"
SHOWN = ("P", "nDCG", "PSP", "R")


def model_card(
    model: Model, name: str, scores: Scores | None = None, data: str | None = None, doubts: Sequence[str] = ()
) -> str:
    """Describe a model; `scores` are on the rows called `data`, and `doubts` say why not to trust them."""
    return "\n".join(
        [
            *_front_matter(model, scores, data),
            MARK,
            "",
            f"# {_plain(name)}",
            "",
            "A sparse linear model for extreme multi-label classification, trained with xmlpreck for the labels at the "
            "top of each row.",
            "",
            *_facts(model),
            "",
            "## Results",
            "",
            *(_held_out(model) if scores is None or data is None else _measured(scores, data, doubts)),
            "",
            "## Use",
            "",
            "```sh",
            "pip install 'xmlpreck[hub]'",
            f"xmlpreck pull {_plain(name)} --out M",
            "xmlpreck predict --model M --data NEW --out P.jsonl",
            "```",
            "",
            "```python",
            "import xmlpreck",
            "",
            f"model = xmlpreck.load_model(xmlpreck.pull({json.dumps(name)}, 'M').path)",
            "```",
            "",
            "All files are plain arrays, text and JSON, without pickle; loading checks their SHA-256 and that they fit "
            "together.",
            "",
        ]
    )


def _plain(text: object) -> str:
    """Show a text of the data as it is: nothing in it is markup or ends a line."""
    return "".join(f"\\{c}" if c in r"\`*_[]#~" else c for c in html.escape(printable(str(text)), quote=False))


def _front_matter(model: Model, scores: Scores | None, data: str | None) -> list[str]:
    """Format the YAML head; JSON is YAML, and needs no rules for quotes."""
    head: dict[str, Any] = {
        "library_name": "xmlpreck",
        "tags": ["extreme-multi-label-classification", "multi-label-classification"],
    }
    if model.vectorizer is not None:
        head["pipeline_tag"] = "text-classification"
    if scores is not None and data is not None:
        metrics = [
            {"type": metric, "value": round(estimate.value, 2), "name": metric}
            for metric, estimate in scores.values.items()
            if metric.split("@")[0] in SHOWN
        ]
        result = {
            "task": {"type": "text-classification", "name": "multi-label classification"},
            "dataset": {"type": printable(data), "name": printable(data)},
            "metrics": metrics,
        }
        head["model-index"] = [{"name": "xmlpreck", "results": [result]}]
    return ["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items()), "---"]


def _facts(model: Model) -> list[str]:
    about = model.info.get("data") or {}
    facts = [
        ("labels", f"{model.n_labels:,}"),
        ("features", f"{model.n_features:,}"),
        ("weights", f"{model.n_weights:,}"),
        ("input", "texts" if model.vectorizer is not None else "sparse rows of numbers"),
        ("probabilities", "calibrated" if model.calibration is not None else "no: scores only"),
        ("xmlpreck", xmlpreck.__version__),
    ]
    if about:
        facts.append(("training rows", f"{about['n_rows']:,} of {about.get('name') or 'unnamed data'}"))
        facts.append(("SHA-256 of the training rows", about["sha256"]))
    if tuning := model.info.get("tuning"):
        facts.append(("settings chosen by tuning", chosen_text(tuning)))
    return table(["fact", "value"], [[key, _plain(value)] for key, value in facts], "markdown").split("\n")


def _measured(scores: Scores, data: str, doubts: Sequence[str]) -> list[str]:
    rows = [
        [metric, f"{one.value:.2f}", "" if one.low is None else f"{one.low:.2f} to {one.high:.2f}"]
        for metric, one in scores.values.items()
        if metric.split("@")[0] in SHOWN
    ]
    return [
        f"On {scores.n_rows:,} rows of {_plain(data)}, in per cent, convention `{scores.convention}`. Intervals: 95%, "
        "bootstrap over rows; they say what other test rows would have given, not other training runs.",
        *(f"\n**{_plain(doubt)}.**" for doubt in doubts),
        "",
        *table(["metric", "value", "95% interval"], rows, "markdown").split("\n"),
    ]


def _held_out(model: Model) -> list[str]:
    history = model.info.get("history") or []
    measured = [one["heldout"] for one in history if one["heldout"]]
    if not measured:
        return ["Not measured: `xmlpreck push MODEL NAME --data TEST` adds scores on test rows, with intervals."]
    rows = [[_plain(metric), f"{value:.2f}"] for metric, value in measured[-1].items()]
    return [
        "On training rows that were held out, after the last pass, in per cent, without intervals. Settings may have "
        "been chosen by such rows, so expect a little less on new ones.",
        "",
        *table(["metric", "value"], rows, "markdown").split("\n"),
    ]
