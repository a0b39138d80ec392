"""Explain the top label of each sample row, as a section of the report."""

from xmlpreck.data.dataset import TopK
from xmlpreck.evaluation.report.facts import Facts, Sample
from xmlpreck.evaluation.report.sections import label_name, named, paragraphs
from xmlpreck.metrics import hits
from xmlpreck.model import Model
from xmlpreck.model.explanation import Names, blocks_of, parts_of

FEATURES_SHOWN = 3  # for the label, and as many against it


def reasons(facts: Facts) -> tuple[str, str] | None:
    """Return (words for the margin, HTML beside them), like the parts in sections.py."""
    if facts.explained is None:
        return None
    index, model = facts.explained
    words = [
        "What the strongest features of the sample rows add to the score of the top label: + for it, "
        "\N{MINUS SIGN} against it.",
        "<code>xmlpreck explain</code> shows all features, for any row.",
    ]
    if len(facts.runs) > 1:
        words.insert(1, f"By the weights of {named(facts.runs[index].name)}.")
    cards = "".join(_card(facts, sample, sample.tops[index], model) for sample in facts.samples)
    return paragraphs(*words), f'<div class="pair">{cards}</div>'


def _card(facts: Facts, sample: Sample, top: TopK, model: Model) -> str:
    label = int(top.labels[0, 0])
    if label < 0:
        return ""  # a row without features has no label
    parts = parts_of(model, sample.row.rows, label)
    names = Names(facts.label_names, facts.feature_names, model.n_features)
    adds = parts.contributions
    order = parts.falling().tolist()
    shown = [index for index in order if adds[index] > 0][:FEATURES_SHOWN]
    shown += [index for index in order if adds[index] < 0][-FEATURES_SHOWN:]
    items = "".join(_item(names.feature(int(parts.features[index])), float(adds[index])) for index in shown)
    n_others = len(order) - len(shown)
    rest = float(top.scores[0, 0]) - sum(float(adds[index]) for index in shown)
    noun = "other feature" if n_others == 1 else "other features"
    others = f'<p class="missed">{n_others:,} {noun}: {_signed(rest)}</p>' if n_others else ""
    if model.rows.n_dense:
        sums = ", ".join(f"{name} {_signed(adds)}" for name, adds in blocks_of(model, parts).items())
        others += f'<p class="missed">Together: {sums}</p>'
    kind = "right" if hits(top, sample.row.labels)[0, 0] else "wrong"
    return (
        f'<article class="sample"><h3>Row {sample.row_id:,}</h3>'
        f"<h4>{label_name(facts, label)} <span>{kind}, score {top.scores[0, 0]:.2f}</span></h4>"
        f"<ol>{items}</ol>{others}</article>"
    )


def _item(name: str, adds: float) -> str:
    kind, sign, text = ("right", "+", "for") if adds > 0 else ("wrong", "\N{MINUS SIGN}", "against")
    mark = f'<span class="mark" role="img" aria-label="{text}">{sign}</span>'
    return f'<li class="{kind}">{mark}<span>{named(name)}</span><data value="{adds:.6g}">{_signed(adds)}</data></li>'


def _signed(number: float) -> str:
    return f"{number:+.3f}".replace("-", "\N{MINUS SIGN}")
