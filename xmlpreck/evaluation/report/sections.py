"""Format the parts of a report, each as (words for the margin, HTML beside them), or None to leave it out.

Every name is escaped and in <bdi>: names come from data, and one in a right-to-left script must not reverse a line.
"""

import datetime
import json
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

import xmlpreck
from xmlpreck.data.dataset import TopK
from xmlpreck.evaluation.report import pictures
from xmlpreck.evaluation.report.drawing import Picture, swatch
from xmlpreck.evaluation.report.facts import MIN_TRUE_ROWS, Facts, Sample, label_f1
from xmlpreck.metrics import REPORTED_KS, Estimate, hits

FAMILIES = {"P": "precision P@k", "nDCG": "nDCG@k", "PSP": "propensity-scored PSP@k"}
LABELS_SHOWN = 10
WORDS_SHOWN = 8
TEXT_SHOWN = 400  # characters of a sample's text
ANSWERED_SHARE = 50


def named(text: str) -> str:
    """Escape and isolate a name."""
    return f"<bdi>{escape(text)}</bdi>"


def label_name(facts: Facts, label: int) -> str:
    return named(facts.label_names[label]) if facts.label_names else f"label {label}"


def run_name(facts: Facts, index: int) -> str:
    """Return a run's name, with its marker if there are several runs."""
    mark = swatch(index) if len(facts.runs) > 1 else ""
    return mark + named(facts.runs[index].name)


def of_run(facts: Facts, index: int) -> str:
    """Return ": NAME" for a heading, "" if there is only one run."""
    return f": {run_name(facts, index)}" if len(facts.runs) > 1 else ""


def clear_best(estimates: Sequence[Estimate]) -> int | None:
    """Return the place of the estimate whose interval lies above all others, None if there is none."""
    bounds = [(one.low, one.high) for one in estimates if one.low is not None and one.high is not None]
    if len(estimates) < 2 or len(bounds) < len(estimates):
        return None
    best = max(range(len(bounds)), key=bounds.__getitem__)
    return best if all(bounds[best][0] > high for place, (_, high) in enumerate(bounds) if place != best) else None


def paragraphs(*texts: str) -> str:
    return "".join(f"<p>{text}</p>" for text in texts)


def legend(facts: Facts) -> str:
    if len(facts.runs) == 1:
        return ""
    items = (f"<li>{run_name(facts, index)}</li>" for index in range(len(facts.runs)))
    return f'<ul class="legend">{"".join(items)}</ul>'


def figure(picture: Picture) -> str:
    caption = f"<figcaption>{escape(picture.text)}</figcaption>"
    return f"<figure><h3>{named(picture.title)}</h3>{picture.svg}{caption}</figure>"


def figures(shown: Iterable[Picture]) -> str:
    return f'<div class="pair">{"".join(map(figure, shown))}</div>'


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table of HTML cells, of which a row's first is its head; a wide table scrolls in its own box."""
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row" class="name">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'
        for first, *others in rows
    )
    return scrolling(title, f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")


def scrolling(title: str, content: str) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">{content}</div>'


def details(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>"


def interval(estimate: Estimate) -> str:
    return "" if estimate.low is None else f"{estimate.low:.1f}\N{EN DASH}{estimate.high:.1f}"


def header(facts: Facts, made_on: datetime.date) -> str:
    source = facts.data.source
    kind = ' class="warning"' if facts.rows_name == "training rows" else ""
    named_facts = {
        "Date": f'<time datetime="{made_on.isoformat()}">{made_on.day} {made_on:%B %Y}</time>',
        f"<span{kind}>{escape(facts.rows_name).capitalize()}</span>": f"{source.n_rows:,}",
        "Features": f"{source.n_features:,}",
        "Labels": f"{source.n_labels:,}",
        "xmlpreck": xmlpreck.__version__,
        f"SHA-256 of the {escape(facts.rows_name)}": f"<code>{facts.survey['sha256']}</code>",
    }
    items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in named_facts.items())
    return f"""<header>
<p class="over">xmlpreck report</p>
<h1>{named(facts.data.name)}</h1>
<dl class="facts">{items}</dl>
{warnings(facts)}</header>"""


def warnings(facts: Facts) -> str:
    """Warn of each run whose scores are biased because it was trained or tuned on the rows."""
    texts = (f"{named(run.name)} {text}." for run in facts.runs if run.seen for text in run.seen.notes())
    return "".join(f'<p class="warning" role="note">{text}</p>\n' for text in texts)


def summary(facts: Facts) -> str:
    """Format P@k, nDCG@k and PSP@k of each run; one that is clearly better than all others is in bold."""
    scores = facts.runs[0].scores
    # nDCG@1 is P@1.
    measures = {family: [f"{family}@{k}" for k in REPORTED_KS if (family, k) != ("nDCG", 1)] for family in FAMILIES}
    shown = {family: [name for name in names if name in scores.values] for family, names in measures.items()}
    names = [name for of_family in shown.values() for name in of_family]
    best = {name: clear_best([run.scores.values[name] for run in facts.runs]) for name in names}
    groups = "".join(
        f'<th scope="colgroup" colspan="{len(of_family)}">{FAMILIES[family]}</th>'
        for family, of_family in shown.items()
        if of_family
    )
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    rows = []
    for index, run in enumerate(facts.runs):
        cells = []
        for name in names:
            estimate = run.scores.values[name]
            value = f"{estimate.value:.2f}"
            shown_value = f"<strong>{value}</strong>" if index == best[name] else value
            cells.append(f"<td>{shown_value}<small>{interval(estimate)}</small></td>")
        rows.append(f'<tr><th scope="row" class="name">{run_name(facts, index)}</th>{"".join(cells)}</tr>')
    content = (
        f'<table class="summary"><thead><tr><td></td>{groups}</tr><tr><th scope="col">run</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    n_empty = scores.n_rows_without_labels
    empty = f" Rows without labels score 0; there are {n_empty:,} of them." if n_empty else ""
    words = f"In per cent, convention <i>{scores.convention}</i>; below each figure its 95% bootstrap interval.{empty}"
    if len(facts.runs) > 1:
        words += " Bold: the interval lies above those of all other runs."
    return f'{scrolling("Summary", content)}<p class="note">{words}</p>'


def learning(facts: Facts) -> tuple[str, str] | None:
    if all(run.info is None for run in facts.runs):
        return None
    words = ["Each pass reads every training row once."]
    for run in facts.runs:
        if history := run.history:
            seconds = sum(one["seconds"] for one in history)
            words.append(f"{named(run.name)}: {len(history)} passes in {seconds:,.1f} seconds.")
    if not any(run.history for run in facts.runs):
        return paragraphs("The models have no history of their training."), ""
    shown = pictures.learning(facts.runs)
    if not any("Held-out" in picture.title for picture in shown):
        words.append("No rows were held out; <code>--heldout 0.1</code> adds their precision after each pass.")
    return paragraphs(*words) + legend(facts), details("Learning curves", figures(shown))


def precision(facts: Facts) -> tuple[str, str]:
    words = []
    shown = [pictures.precision(facts.runs)]
    if any(run.pruned for run in facts.runs):
        words.append("A smaller model keeps the largest weights only, and is faster and lighter to serve.")
        shown.append(pictures.model_size(facts.runs))
    names = list(facts.runs[0].scores.values)
    heads, rows = ["measure"], [[name] for name in names]
    for index, run in enumerate(facts.runs):
        heads += [run_name(facts, index), "95% interval"]
        for row, name in zip(rows, names, strict=True):
            row += [f"{run.scores.values[name].value:.2f}", interval(run.scores.values[name])]
    everything = details("All measures, in per cent", table("All measures", heads, rows))
    return paragraphs(*words) + legend(facts), figures(shown) + everything


def confidence(facts: Facts) -> tuple[str, str]:
    words = ["Does a high score mean a right label? Scores of different runs are on different scales."]
    for run in facts.runs:
        shares, values = pictures.answered(run)
        point = min(int(np.searchsorted(shares, ANSWERED_SHARE)), len(shares) - 1)
        words.append(
            f"{named(run.name)}: P@1 is {values[-1]:.1f}% of all rows, and {values[point]:.1f}% of the "
            f"{shares[point]:.0f}% with the highest scores."
        )
    shown = [pictures.coverage(facts.runs)]
    shown += [pictures.histogram(facts.runs, index) for index in range(len(facts.runs))]
    return paragraphs(*words) + legend(facts), figures(shown)


def probabilities(facts: Facts) -> tuple[str, str] | None:
    found = {index: run.reliability for index, run in enumerate(facts.runs) if run.reliability is not None}
    if not found:
        return None
    k = facts.runs[0].scores.ks[-1]
    words = [f"Of the labels with a probability of 70%, are 70 in 100 right? Over the top {k} labels of every row."]
    for index, measured in found.items():
        error, name = 100 * measured.ece, named(facts.runs[index].name)
        words.append(f"{name}: expected calibration error {error:.1f}%, Brier score {measured.brier:.3f}.")
    if bare := [named(run.name) for index, run in enumerate(facts.runs) if index not in found]:
        words.append(f"Without probabilities: {', '.join(bare)}.")
    rows = (
        [run_name(facts, index), f"{100 * predicted:.1f}", f"{100 * observed:.1f}", f"{count:,}"]
        for index, measured in found.items()
        for predicted, observed, count in zip(*measured[:3], strict=True)
    )
    heads = ("run", "predicted (%)", "right (%)", "labels")
    numbers = details("The numbers", table("Predicted and observed", heads, rows))
    shown = figures([pictures.reliability(found), pictures.spread(found)])
    return paragraphs(*words) + legend(facts), shown + numbers


def frequency(facts: Facts) -> tuple[str, str]:
    label_counts = facts.data.label_counts
    if label_counts is None:
        return paragraphs("Needs the training rows, which were not given."), ""
    k = facts.runs[0].scores.ks[-1]
    parts = "What labels of each kind add to P@k: the parts sum to the whole."
    recall = "Of the true labels of each kind, the share in the top k."
    shown = [
        pictures.by_frequency(facts.runs, f"P@{k}", f"Parts of P@{k}", parts),
        pictures.by_frequency(facts.runs, f"R@{k}", f"Recall in the top {k}", recall),
        pictures.label_frequency(label_counts),
        pictures.ever_right(facts.runs, label_counts),
    ]
    bins = facts.runs[0].scores.bins
    sizes = ", ".join(f"{part.n_labels:,} {part.name}" for part in bins)
    words = f"Labels by the number of training rows that have them: {sizes}."
    rows = (
        [f"{run_name(facts, index)}, {part.name}", f"{part.n_labels:,}", f"{part.n_true:,}"]
        + [f"{estimate.value:.2f}" for estimate in part.values.values()]
        for index, run in enumerate(facts.runs)
        for part in run.scores.bins
    )
    heads = ["labels of", "labels", "true", *bins[0].values]
    numbers = details("The numbers, in per cent", table("By label frequency", heads, rows))
    return paragraphs(words) + legend(facts), figures(shown) + numbers


def labels(facts: Facts) -> tuple[str, str]:
    k = facts.runs[0].scores.ks[-1]
    words = f"By F1 in the top {k}, of the labels that at least {MIN_TRUE_ROWS} rows have; ties by frequency."
    tables = []
    for index, run in enumerate(facts.runs):
        f1 = label_f1(run.scores)
        for title, sign in (("Best", -1), ("Worst", 1)):
            order = np.lexsort((-run.scores.label_truth, sign * f1))
            chosen = order[run.scores.label_truth[order] >= MIN_TRUE_ROWS][:LABELS_SHOWN]
            counts = (run.scores.label_truth, run.scores.label_hits[-1], run.scores.label_predicted[-1])
            rows = (
                [label_name(facts, label), *(f"{count[label]:,}" for count in counts), f"{f1[label]:.1f}"]
                for label in chosen.tolist()
            )
            heads = ("label", "true", "right", "predicted", "F1 (%)")
            content = table(f"{title} labels of {run.name}", heads, rows)
            tables.append(f"<div><h3>{title}{of_run(facts, index)}</h3>{content}</div>")
    return paragraphs(words), f'<div class="pair">{"".join(tables)}</div>'


def samples(facts: Facts) -> tuple[str, str]:
    words = ["Drawn at random: rows with all labels found (as far as k allows), then some, then none."]
    if len(facts.runs) > 1:
        words.append(f"They are drawn by what {named(facts.runs[0].name)} found.")
    words.append("\N{CHECK MARK} right, \N{BALLOT X} wrong; the number is the score.")
    cards = "".join(_sample(facts, sample) for sample in facts.samples)
    return paragraphs(*words), f'<div class="pair">{cards}</div>'


def _sample(facts: Facts, sample: Sample) -> str:
    lists = []
    for index, top in enumerate(sample.tops):
        title = run_name(facts, index) if len(facts.runs) > 1 else "Predicted"
        found = f"{hits(top, sample.row.labels).sum()} of {sample.row.labels.nnz} found"
        lists.append(f"<h4>{title} <span>{found}</span></h4>{_predicted(facts, sample, top)}")
    return f'<article class="sample"><h3>Row {sample.row_id:,}</h3>{_words(facts, sample)}{"".join(lists)}</article>'


def _words(facts: Facts, sample: Sample) -> str:
    """Show the beginning of the row's text, or name its features with the largest values."""
    if sample.text is not None:
        text = " ".join(sample.text[: 4 * TEXT_SHOWN].split())
        more = "\N{HORIZONTAL ELLIPSIS}" if len(text) > TEXT_SHOWN else ""
        return f'<p class="text" dir="auto">{escape(text[:TEXT_SHOWN])}{more}</p>'
    if not facts.feature_names:
        return ""
    rows = sample.row.rows
    strongest = rows.indices[np.argsort(-rows.data, kind="stable")[:WORDS_SHOWN]]
    words = ", ".join(named(facts.feature_names[feature]) for feature in strongest.tolist())
    return f'<p class="words">{words}</p>'


def _predicted(facts: Facts, sample: Sample, top: TopK) -> str:
    items = []
    for label, score, hit in zip(top.labels[0], top.scores[0], hits(top, sample.row.labels)[0], strict=True):
        if label < 0:
            continue
        kind, sign = ("right", "\N{CHECK MARK}") if hit else ("wrong", "\N{BALLOT X}")
        mark = f'<span class="mark" role="img" aria-label="{kind}">{sign}</span>'
        items.append(
            f'<li class="{kind}">{mark}<span>{label_name(facts, label)}</span>'
            f'<data value="{score:.6g}">{score:.2f}</data></li>'
        )
    missed = np.setdiff1d(sample.row.labels.indices, top.labels[0]).tolist()
    names = "; ".join(label_name(facts, label) for label in missed)
    return f"<ol>{''.join(items)}</ol>" + (f'<p class="missed"><b>Missed:</b> {names}</p>' if missed else "")


def settings(facts: Facts) -> tuple[str, str] | None:
    shown = "".join(_setting(facts, index, run.info) for index, run in enumerate(facts.runs) if run.info is not None)
    if not shown:
        return None
    words = (
        "All settings of each run, to be saved as a TOML file.",
        "The same settings, seed and rows give the same bits for any number of threads.",
    )
    return paragraphs(*words), f"<div>{shown}</div>"


def _setting(facts: Facts, index: int, info: dict[str, Any]) -> str:
    run = facts.runs[index]
    about = info.get("data", {})
    trained = f"Trained on {about['n_rows']:,} rows, SHA-256 <code>{escape(about['sha256'])}</code>." if about else ""
    trained += "".join(f" {_choice(record)}" for record in run.choices)
    toml = escape(to_toml(info.get("config", {})))
    data = shlex.quote(about.get("name") or facts.data.name)
    commands = escape(
        f"xmlpreck train --data {data} --config settings.toml --no-tune --out run\n"
        f"xmlpreck report run --data {data} --split {facts.data.split}"
    )
    content = (
        f'<p class="note">{trained}</p>'
        f"{scrolling('Settings', f'<pre>{toml}</pre>')}"
        f"<h3>To repeat</h3>{scrolling('Commands', f'<pre>{commands}</pre>')}"
    )
    return details(f"{run_name(facts, index)}: settings, data and how to repeat", f'<div class="stack">{content}</div>')


def _choice(record: dict[str, Any]) -> str:
    """Describe a choice made on rows that were not held out."""
    where = f"the {escape(str(record.get('split')))} rows of {named(str(record.get('name')))}"
    digest = f"SHA-256 <code>{escape(str(record.get('sha256')))}</code>"
    return f"{escape(record['what']).capitalize()} chosen on {where}, {digest}."


def to_toml(config: dict[str, dict[str, object]]) -> str:
    """Format sections of plain values, which JSON and TOML write alike."""
    parts = (
        f"[{section}]\n"
        + "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
        for section, values in config.items()
    )
    return "\n".join(parts)
