"""Self-tuning: tau, k, spread, eta, passes and pruning, chosen on held-out rows by trials on samples of rows; the
decay of eta and the wider support follow from the number of rows that a label has.

Rows are held out of the choice only: the run that follows trains on all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xmlpreck.config import RunConfig
from xmlpreck.formats import Dataset
from xmlpreck.kernels.arrays import Weights
from xmlpreck.metrics import REPORTED_KS
from xmlpreck.model import LinearScorer, progress_bar
from xmlpreck.shards import RowSource, Subset, checked
from xmlpreck.support import find_support
from xmlpreck.train.passes import PreparedRows
from xmlpreck.train.run import Survey, score
from xmlpreck.train.trainer import Trainer, TrainingError, pass_share

LEAST_ROWS = 1_000  # of fewer, the held-out ones would say too little
HELDOUT_SHARE, MOST_HELDOUT = 0.2, 2_000

# What tuning may cost, in passes over all rows: this share of the run's passes, BUDGET at most, or what FREE_WORK
# (values of the rows times labels: some ten seconds) allows, where that is more. Three rungs share it.
BUDGET_SHARE, BUDGET, MOST_BUDGET = 0.375, 2.0, 200.0
FREE_WORK = 2e10

TAUS = (0.0, 0.1, 0.3)
# The sum of eta over the passes: how far a weight can go. A trial has few passes; the run that follows may have more
# and smaller steps, which makes the mean of the weights less noisy (docs/tuning.md): as many as let a label of average
# frequency be seen ROWS_SEEN times. Where that is more than FEW_PASSES, labels are rare, and a wider support helps
# them. With so few passes, steps that become shorter do as well as one pass more.
REACHES = (2.0, 1.0)
TRIAL_PASSES, MOST_TRIAL_PASSES = 5, 20
FEW_PASSES, SOME_PASSES = 4, 8
ROWS_SEEN = 80
WORTH = 0.3  # points of the mean P@k that a departure from the defaults must bring, and further passes must not cost
K_FACTORS = (1, 2)
PRUNES, PRUNING_LOSS = (0.02, 0.05, 0.07), 0.15  # the last one of these that loses no more points of the mean P@k
GIVEN = ("tau", "eta", "k", "epochs")  # where all of these are given, there is nothing to tune
TUNED = (*GIVEN, "spread", "prune", "decay", "widen")


def mean(scores: dict[str, float]) -> float:
    return float(np.mean(list(scores.values())))


def whole_steps(decay: str, n_passes: int) -> float:
    """The sum of eta over so many passes, in etas."""
    return sum(pass_share(decay, number, n_passes) for number in range(1, n_passes + 1))


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, and P@k of the averaged model on the held-out rows."""

    settings: dict[str, Any]
    history: list[dict[str, float]]  # after each pass, if all were scored
    pruned: dict[float, float]  # mean P@k by what weights are pruned at, if that was tried

    @property
    def values(self) -> list[float]:
        return [mean(scores) for scores in self.history]

    @property
    def value(self) -> float:
        return self.values[-1]


class Sample:
    """Some rows, with the support and label counts that their trials share."""

    def __init__(self, source: RowSource, config: RunConfig) -> None:
        survey = Survey()
        self.rows = PreparedRows(source, config.rows, config.train.block_rows)
        blocks = (block for _, block in self.rows.blocks(range(self.rows.n_blocks), survey.add))
        self.support: Weights = find_support(blocks, self.rows.n_features, self.rows.n_labels, config.train.n_threads)
        self.label_counts = survey.label_counts

    def train(self, config: RunConfig, after_pass: Callable[[Trainer], None], pause: Callable[[], None]) -> None:
        trainer = Trainer(self.support._replace(values=np.zeros_like(self.support.values)), config.train)
        trainer.favour_tail(self.label_counts, self.rows.n_rows)
        trainer.start_at_centroids(self.rows, self.label_counts)
        for _ in range(config.train.epochs):
            trainer.run_pass(self.rows, pause=pause)
            after_pass(trainer)


class Tuning:
    """One choice of settings: the rows that it may use, what it may cost, and what it has found."""

    def __init__(self, source: RowSource, config: RunConfig, pause: Callable[[], None], progress: bool) -> None:
        self.source, self.config, self.pause, self.progress = source, config, pause, progress
        self.order = np.random.default_rng([config.train.seed, 2]).permutation(source.n_rows)
        n_heldout = min(round(HELDOUT_SHARE * source.n_rows), MOST_HELDOUT)
        heldout = Subset(source, np.sort(self.order[:n_heldout]))
        self.heldout: Dataset = heldout.read(0, n_heldout)  # a few thousand rows: kept for all trials
        self.order = self.order[n_heldout:]
        self.spent = 0.0
        self.rungs: list[dict[str, Any]] = []

    def run(self) -> tuple[RunConfig, dict[str, Any]]:
        fixed, train = self.config.fixed, self.config.train
        budget, trial_passes, passes, is_rare = self._extent()
        if "epochs" in fixed:
            passes = train.epochs
        by_rule: dict[str, Any] = {"decay": "linear" if passes <= FEW_PASSES else "constant", "widen": is_rare}
        by_rule = {name: getattr(train, name) if name in fixed else value for name, value in by_rule.items()}
        decay = by_rule["decay"]
        # A sample is too small to widen.
        self.config = replace(self.config, train=replace(train, decay=decay, widen=False))
        with progress_bar(round(budget * self.source.n_rows), "tuning", self.progress) as self.bar:
            has_eta = train.algo.startswith("sgd") and "eta" not in fixed
            etas = tuple(reach / whole_steps(decay, trial_passes) for reach in REACHES) if has_eta else (train.eta,)
            taus = (train.tau,) if "tau" in fixed else TAUS
            ks = (train.k,) if "k" in fixed else tuple(train.k * factor for factor in K_FACTORS)
            spreads = (train.spread,) if "spread" in fixed or not train.algo.startswith("sgd") else (False, True)

            best = {"tau": train.tau, "k": train.k, "spread": train.spread, "eta": etas[0]}
            best = self._rung([best | {"tau": tau} for tau in taus], trial_passes, budget / 3).settings
            others = [best | {"k": k, "spread": spread} for spread in spreads for k in ks]
            best = self._rung(others, trial_passes, budget / 3).settings
            winner = self._rung([best | {"eta": eta} for eta in etas], trial_passes, budget / 3, is_last=True)
        chosen = winner.settings | by_rule
        if has_eta:
            chosen["eta"] *= whole_steps(decay, trial_passes) / whole_steps(decay, passes)
        if "epochs" not in fixed:
            good = [number for number, value in enumerate(winner.values, 1) if value >= max(winner.values) - WORTH]
            chosen["epochs"] = max(round(passes * good[-1] / trial_passes), 1)
        if "prune" not in fixed:
            losses = [(least, winner.value - value) for least, value in winner.pruned.items()]
            chosen["prune"] = max((least for least, loss in losses if loss <= PRUNING_LOSS), default=0.0)
        evidence = {
            "heldout_rows": self.heldout.n_rows,
            "budget": budget,
            "spent": self.spent,
            "fixed": {name: getattr(train, name) for name in TUNED if name in fixed},
            "rungs": self.rungs,
            "history": [
                {"passes": number, "scores": scores, "value": value}
                for number, (scores, value) in enumerate(zip(winner.history, winner.values, strict=True), 1)
            ],
            "pruned": [{"prune": least, "value": value} for least, value in winner.pruned.items()],
            "chosen": chosen,
        }
        return replace(self.config, train=replace(train, **chosen)), evidence

    def _extent(self) -> tuple[float, int, int, bool]:
        """What tuning may cost, in passes over all rows, the passes of a trial and those of the run, and whether labels
        are rare; estimated from the held-out rows."""
        n_labels, growth = self.source.n_labels, self.source.n_rows / self.heldout.n_rows
        work = self.heldout.rows.nnz * growth * n_labels
        rows_of_label = max(self.heldout.labels.nnz * growth / n_labels, 1)
        passes = int(np.clip(ROWS_SEEN / rows_of_label, FEW_PASSES, SOME_PASSES))
        is_rare = passes > FEW_PASSES
        budget = float(np.clip(FREE_WORK / max(work, 1), min(BUDGET_SHARE * passes, BUDGET), MOST_BUDGET))
        trial_passes = int(np.clip(budget / 2, TRIAL_PASSES, MOST_TRIAL_PASSES))
        return budget, trial_passes, passes if trial_passes == TRIAL_PASSES else max(trial_passes, passes), is_rare

    def _sample(self, cost: float, n_passes: int) -> Sample:
        """As many rows as so many passes over them may have, if all together cost as many passes over all rows."""
        n_rows = min(max(int(cost * self.source.n_rows / n_passes), 1), len(self.order))
        return Sample(Subset(self.source, np.sort(self.order[:n_rows])), self.config)

    def _with(self, settings: dict[str, Any]) -> RunConfig:
        return replace(self.config, train=replace(self.config.train, **settings))

    def _rung(self, candidates: Sequence[dict[str, Any]], passes: int, cost: float, is_last: bool = False) -> Trial:
        """Try all candidates on the same sample of rows; returns the first that is as good as the best, or nearly so.

        Candidates come by rising distance from the defaults, so that chance does not lead away from these.
        In the last rung every pass is scored, and what pruning would cost.
        """
        sample = self._sample(cost, len(candidates) * passes)
        trials = []
        for settings in candidates:
            trial = Trial(settings, [], {})

            def after_pass(trainer: Trainer, trial: Trial = trial) -> None:
                self.spent += sample.rows.n_rows / self.source.n_rows
                self.bar.update(sample.rows.n_rows)
                if is_last or trainer.n_passes == passes:
                    scorer = LinearScorer(trainer.weights(), self.config.rows)
                    trial.history.append(score(scorer, self.heldout, self.config.train))
                if is_last and trainer.n_passes == passes:
                    for least in PRUNES:
                        trial.pruned[least] = mean(score(scorer.prune(least), self.heldout, self.config.train))

            try:
                sample.train(self._with(settings | {"epochs": passes}), after_pass, self.pause)
            except TrainingError:  # it diverged: as bad as can be
                trial.history.append({f"P@{k}": 0.0 for k in REPORTED_KS if k <= self.source.n_labels})
            trials.append(trial)
        least = max(trial.value for trial in trials) - WORTH
        kept = next(trial for trial in trials if trial.value >= least)
        entries = [
            {"settings": trial.settings, "scores": trial.history[-1], "value": trial.value, "kept": trial is kept}
            for trial in trials
        ]
        self.rungs.append({"rows": sample.rows.n_rows, "passes": passes, "trials": entries})
        return kept


def tune(
    source: RowSource, config: RunConfig, pause: Callable[[], None] = lambda: None, progress: bool = False
) -> tuple[RunConfig, dict[str, Any]] | None:
    """The settings with tau, eta, k and epochs chosen, but for those in `config.fixed`, and the evidence.

    None where nothing is left to choose, or there are too few rows, or something is wrong with them (`fit` says what).
    The same rows and seed give the same choice.
    """
    source = checked(source)
    if source.n_rows < LEAST_ROWS or not source.n_features or not source.n_labels or set(GIVEN) <= config.fixed:
        return None
    try:
        tuning = Tuning(source, config, pause, progress)
        return tuning.run() if tuning.heldout.labels.nnz else None
    except TrainingError:
        return None
