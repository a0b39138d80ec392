"""Choose settings of the paper's rules: tau, k, spread, eta, passes and pruning by trials on samples of rows, scored on
held-out rows; the decay of eta and the wider support by the number of rows per label. Those of the hinge: facts.py.

Rows are held out of the choice only: the run that follows trains on all of them. Labels without a row are left out.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from xmlpreck.config import MAX_K, PAPER_RULES, RunConfig, TrainConfig
from xmlpreck.data.formats import Dataset
from xmlpreck.data.rows import RowSource, Subset, checked
from xmlpreck.data.survey import Survey, survey_of
from xmlpreck.files.progress import progress_bar
from xmlpreck.metrics import REPORTED_KS
from xmlpreck.model import Model
from xmlpreck.train.facts import CHOSEN, EFFORTS, Facts, suit_the_hinge
from xmlpreck.train.keeper import identity_of
from xmlpreck.train.plan import default_limit
from xmlpreck.train.record import Record
from xmlpreck.train.safety import Safety
from xmlpreck.train.trainer import WIDENED_PASS, Trainer, TrainingError, pass_share
from xmlpreck.train.trials import LabelsWithRows, Sample, Trial, mean, read_trial

MIN_ROWS = 1_000  # of fewer, held-out ones would say too little
HELDOUT_SHARE, MAX_HELDOUT = 0.2, 2_000

# What tuning may cost, in passes over all rows: this share of the run's passes, BUDGET at most, or what FREE_WORK
# (values of the rows times labels: some ten seconds) allows, where that is more. Three rungs share it.
BUDGET_SHARE, BUDGET, MAX_BUDGET = 0.375, 2.0, 200.0
FREE_WORK = 2e10

TAUS = (0.0, 0.1, 0.3)
# The sum of eta over the passes: how far a weight can go. A trial has few passes; the run that follows may have more
# and smaller steps, which makes the mean of the weights less noisy (docs/tuning.md): as many as let a label of average
# frequency be seen ROWS_SEEN times. Where that is more than FEW_PASSES, labels are rare, and a wider support helps
# them. With so few passes, steps that become shorter do as well as one pass more.
REACHES = (2.0, 1.0)
TRIAL_PASSES, MAX_TRIAL_PASSES = 5, 20
FEW_PASSES, SOME_PASSES = 4, 8
ROWS_SEEN = 80
WORTH = 0.3  # points of the mean P@k that a departure from the defaults must bring, and further passes must not cost
K_FACTORS = (1, 2)
PRUNES, PRUNING_LOSS = (0.02, 0.05, 0.07), 0.15  # the last one of these that loses no more points of the mean P@k
BY_RULE = ("decay", "widen")
TUNED = ("tau", "eta", "k", "epochs", "spread", "prune", *BY_RULE)
RANKING = {"tau", "spread"}  # the hinge has none of them: who gives one wants a rule of the paper
SGD_ONLY = ("eta", "spread", "decay")  # a perceptron's ranking does not depend on them


def whole_steps(decay: str, n_passes: int) -> float:
    """The sum of eta over so many passes, in etas."""
    return sum(pass_share(decay, number, n_passes) for number in range(1, n_passes + 1))


def left_to_choose(config: RunConfig) -> set[str]:
    """Names of the settings that nobody gave, and that mean something to the rule of the update."""
    if config.train.algo not in PAPER_RULES:
        return {*CHOSEN} - config.fixed - {"algo"}
    idle = () if config.train.algo.startswith("sgd") else SGD_ONLY
    return {*TUNED} - config.fixed - {*idle}


def reason_not_to_tune(source: RowSource, config: RunConfig) -> str | None:
    """Say why there is nothing to tune, if there is not."""
    if not left_to_choose(config):
        return "every setting is given"
    if not source.n_features or not source.n_labels:
        return "there are no features or no labels"
    return None


class Extent(NamedTuple):
    """How much is tried, and for how long a run."""

    budget: float  # what tuning may cost, in passes over all rows
    trial_passes: int
    passes: int  # of the run
    is_rare: bool  # are labels?


class Candidates(NamedTuple):
    """Values to try, the default first."""

    taus: tuple[float, ...]
    ks: tuple[int, ...]
    spreads: tuple[bool, ...]
    etas: tuple[float, ...]


class Tuning:
    """One choice of settings: the rows that it may use, what it may cost, and what it has found."""

    def __init__(self, source: RowSource, config: RunConfig) -> None:
        """Hold rows out. A survey of all rows is still needed (`meet`) before anything is tried."""
        self.source, self.config = source, config
        self.left = left_to_choose(config)
        self.order = np.random.default_rng([config.train.seed, 2]).permutation(source.n_rows)
        n_heldout = min(round(HELDOUT_SHARE * source.n_rows), MAX_HELDOUT)
        self.heldout_ids = np.sort(self.order[:n_heldout])
        self.heldout: Dataset = Subset(source, self.heldout_ids).read(0, n_heldout)  # kept for all trials
        self.order = self.order[n_heldout:]
        self.most_rows = len(self.order)  # of a sample
        self.data: dict[str, object] = {}
        self.spent = 0.0
        self.rungs: list[dict[str, Any]] = []

    @property
    def can_judge(self) -> bool:
        return self.heldout.labels.nnz > 0

    def needed(self, survey: Survey) -> TrainConfig:
        """Tell, of all settings that may be chosen, those that need the most memory."""
        train = self.config.train
        extent = self._extent(int(np.count_nonzero(survey.label_counts)))
        changes: dict[str, Any] = {"k": max(self._ks())}
        if "epochs" in self.left:
            changes["epochs"] = max(extent.passes, WIDENED_PASS if train.widen else 1)
        if "prune" in self.left:
            changes["prune"] = max(PRUNES)
        if "widen" in self.left:
            changes["widen"] = extent.is_rare
        return replace(train, **changes)

    def meet(self, survey: Survey) -> None:
        """Learn what all rows are like: which labels they have, and what names them."""
        self.data = survey.to_dict()
        if not survey.label_counts.all():
            self.source = LabelsWithRows(self.source, survey.label_counts)
            self.heldout = Subset(self.source, self.heldout_ids).read(0, len(self.heldout_ids))

    def fit_samples(self, safety: Safety, record: Record, limit: int) -> int:
        """Halve the samples until a trial on the largest fits into memory; returns what that needs at its peak.

        A run that is resumed has the samples that it began with.
        """
        if not self._n_trials():
            return 0
        train = replace(self.config.train, widen=False, k=max(self._ks()), prune=max(self._prunes(), default=0.0))
        facts = identity_of(self.config, self.data) | {"fixed": sorted(self.config.fixed), "about": "samples"}
        wanted = max(self._sizes())
        known = record.get(facts) if safety.resume else None
        self.most_rows = known if type(known) is int and 1 <= known <= wanted else wanted
        while (need := self._sample(self.most_rows).peak_bytes(train)) > limit and self.most_rows > 1 and known is None:
            self.most_rows //= 2
        if known is None and self.most_rows < wanted:
            safety.tell(f"tuning tries on {self.most_rows:,} rows and not {wanted:,}, to stay within the memory")
            record.put(facts, self.most_rows)
        return need

    def outline(self) -> dict[str, Any]:
        """Tell what will be tried, for a plan."""
        rows = min(max(self._sizes()), self.most_rows) if self._n_trials() else 0
        return {"trials": self._n_trials(), "rows": rows, "passes": self.extent.budget}

    def run(self, safety: Safety, record: Record, progress: bool = False) -> tuple[RunConfig, dict[str, Any]]:
        """Try, and choose; trials that the record has are not run again."""
        self.safety, self.record = safety, record
        fixed, train, extent = self.config.fixed, self.config.train, self.extent
        passes, trial_passes = extent.passes, extent.trial_passes
        by_rule = self._by_rule()
        # A sample is too small to widen.
        self.config = replace(self.config, train=replace(train, decay=by_rule["decay"], widen=False))
        tried = self.candidates
        best: dict[str, Any] = {"tau": train.tau, "k": train.k, "spread": train.spread, "eta": tried.etas[0]}
        winner = Trial(best)
        with progress_bar(round(extent.budget * self.source.n_rows), "tuning", progress) as self.bar:
            if len(tried.taus) > 1:
                winner = self._rung([best | {"tau": tau} for tau in tried.taus])
            if len(tried.ks) * len(tried.spreads) > 1:
                others = [winner.settings | {"k": k, "spread": spread} for spread in tried.spreads for k in tried.ks]
                winner = self._rung(others)
            if self._has_last():
                winner = self._rung([winner.settings | {"eta": eta} for eta in tried.etas], is_last=True)
        chosen = winner.settings | by_rule
        if len(tried.etas) > 1:
            chosen["eta"] *= whole_steps(chosen["decay"], trial_passes) / whole_steps(chosen["decay"], passes)
        if "epochs" not in fixed:
            good = [number for number, value in enumerate(winner.values, 1) if value >= max(winner.values) - WORTH]
            chosen["epochs"] = max(round(passes * good[-1] / trial_passes), 1)
            if chosen["widen"] and "widen" in fixed:
                chosen["epochs"] = max(chosen["epochs"], WIDENED_PASS)
        if "widen" not in fixed:  # fewer passes never come to it
            chosen["widen"] = chosen["widen"] and chosen.get("epochs", train.epochs) >= WIDENED_PASS
        if "prune" not in fixed:
            losses = [(least, winner.value - value) for least, value in winner.pruned]
            chosen["prune"] = max((least for least, loss in losses if loss <= PRUNING_LOSS), default=0.0)
        evidence = {
            "heldout_rows": self.heldout.n_rows,
            "budget": extent.budget,
            "spent": self.spent,
            "fixed": {name: getattr(train, name) for name in TUNED if name in fixed},
            "rungs": self.rungs,
            "history": [
                {"passes": number, "scores": scores, "value": value}
                for number, (scores, value) in enumerate(zip(winner.history, winner.values, strict=True), 1)
                if self._has_last()
            ],
            "pruned": [{"prune": least, "value": value} for least, value in winner.pruned],
            "chosen": chosen,
        }
        return replace(self.config, train=replace(train, **chosen)), evidence

    @cached_property
    def extent(self) -> Extent:
        return self._extent(self.source.n_labels)

    def _extent(self, n_labels: int) -> Extent:
        """How much to try, estimated from the held-out rows for so many labels that have rows."""
        growth = self.source.n_rows / self.heldout.n_rows
        work = self.heldout.rows.nnz * growth * n_labels
        rows_of_label = max(self.heldout.labels.nnz * growth / n_labels, 1)
        passes = int(np.clip(ROWS_SEEN / rows_of_label, FEW_PASSES, SOME_PASSES))
        is_rare = passes > FEW_PASSES
        budget = float(np.clip(FREE_WORK / max(work, 1), min(BUDGET_SHARE * passes, BUDGET), MAX_BUDGET))
        trial_passes = int(np.clip(budget / 2, TRIAL_PASSES, MAX_TRIAL_PASSES))
        if trial_passes > TRIAL_PASSES:
            passes = max(trial_passes, passes)
        if self.config.train.effort == "best":
            passes *= 2
        if "epochs" in self.config.fixed:
            passes = self.config.train.epochs
        return Extent(budget, trial_passes, passes, is_rare)

    def _by_rule(self) -> dict[str, Any]:
        train, fixed = self.config.train, self.config.fixed
        decay = "linear" if self.extent.passes <= FEW_PASSES else "constant"
        found = {"decay": decay, "widen": self.extent.is_rare}
        return {name: getattr(train, name) if name in fixed else value for name, value in found.items()}

    def _ks(self) -> tuple[int, ...]:
        k = self.config.train.k
        return tuple(dict.fromkeys(min(k * factor, MAX_K) for factor in K_FACTORS)) if "k" in self.left else (k,)

    @cached_property
    def candidates(self) -> Candidates:
        train, steps = self.config.train, whole_steps(self._by_rule()["decay"], self.extent.trial_passes)
        return Candidates(
            taus=TAUS if "tau" in self.left else (train.tau,),
            ks=self._ks(),
            spreads=(False, True) if "spread" in self.left else (train.spread,),
            etas=tuple(reach / steps for reach in REACHES) if "eta" in self.left else (train.eta,),
        )

    def _prunes(self) -> tuple[float, ...]:
        return PRUNES if "prune" in self.left else ()

    def _has_last(self) -> bool:
        """Is there a last rung? It tells the number of passes and the pruning too."""
        return bool(self.left & {"eta", "epochs", "prune"})

    def _rung_lengths(self) -> list[int]:
        """How many trials each rung has that is run."""
        tried = self.candidates
        lengths = [length for length in (len(tried.taus), len(tried.ks) * len(tried.spreads)) if length > 1]
        return lengths + ([len(tried.etas)] if self._has_last() else [])

    def _n_trials(self) -> int:
        return sum(self._rung_lengths())

    def _size(self, n_trials: int) -> int:
        """As many rows as so many trials may have, if all together cost a third of the budget."""
        n_rows = int(self.extent.budget / 3 * self.source.n_rows / (n_trials * self.extent.trial_passes))
        return min(max(n_rows, 1), len(self.order))

    def _sizes(self) -> list[int]:
        return [self._size(length) for length in self._rung_lengths()]

    def _sample(self, n_rows: int) -> Sample:
        return Sample(Subset(self.source, np.sort(self.order[:n_rows])), self.config)

    def _with(self, settings: dict[str, Any]) -> RunConfig:
        return replace(self.config, train=replace(self.config.train, **settings))

    def _rung(self, candidates: Sequence[dict[str, Any]], is_last: bool = False) -> Trial:
        """Try all candidates on the same sample of rows; returns the first that is as good as the best, or nearly so.

        Candidates come by rising distance from the defaults, so that chance does not lead away from these.
        In the last rung every pass is scored, and what pruning would cost.
        """
        n_rows, passes = min(self._size(len(candidates)), self.most_rows), self.extent.trial_passes
        trials, sample = [], None
        for settings in candidates:
            config = self._with(settings | {"epochs": passes})
            # All that a trial depends on: the rows are drawn from all by the seed.
            facts = identity_of(config, self.data) | {"rows": n_rows, "heldout": self.heldout.n_rows, "last": is_last}
            facts |= {"settings": {name: facts["settings"][name] for name in ("rows", "train")}}
            facts |= {"prunes": self._prunes() if is_last else ()}
            trial = read_trial(settings, self.record.get(facts))
            if trial is None:
                sample = sample or self._sample(n_rows)
                trial = self._try(settings, config, sample, is_last)
                self.record.put(facts, {name: value for name, value in asdict(trial).items() if name != "settings"})
            else:
                self.bar.update(trial.n_passes * n_rows)
            self.spent += trial.n_passes * n_rows / self.source.n_rows
            trials.append(trial)
        least = max(trial.value for trial in trials) - WORTH
        kept = next(trial for trial in trials if trial.value >= least)
        entries = [
            {"settings": trial.settings, "scores": trial.history[-1], "value": trial.value, "kept": trial is kept}
            for trial in trials
        ]
        self.rungs.append({"rows": n_rows, "passes": passes, "trials": entries})
        return kept

    def _try(self, settings: dict[str, Any], config: RunConfig, sample: Sample, is_last: bool) -> Trial:
        trial = Trial(settings)

        def after_pass(trainer: Trainer) -> None:
            self.bar.update(sample.rows.n_rows)
            trial.n_passes = trainer.n_passes
            is_done = trainer.n_passes == config.train.epochs
            if is_last or is_done:
                scorer = Model(trainer.weights(), config.rows)
                trial.history.append(scorer.score(self.heldout, config.train.n_threads))
            if is_last and is_done:
                for least in self._prunes():
                    value = mean(scorer.prune(least).score(self.heldout, config.train.n_threads))
                    trial.pruned.append((least, value))

        try:
            sample.train(config, after_pass, self.safety.pause)
        except TrainingError:  # it diverged: as bad as can be
            trial.history.append({f"P@{k}": 0.0 for k in REPORTED_KS if k <= self.source.n_labels})
        return trial


def tune(
    source: RowSource, config: RunConfig, safety: Safety | None = None, progress: bool = False
) -> tuple[RunConfig, dict[str, Any]] | None:
    """Choose the settings that nobody gave (`config.fixed`); returns them with the evidence.

    None where nothing is left to choose, or there are too few rows (`safety.tell` is told which). The same rows and
    seed give the same choice. With `safety.checkpoints`, finished trials are kept there and not run again by a later
    call.
    """
    safety = safety or Safety()
    source = checked(source)
    tuning = open_tuning(source, config)
    if isinstance(tuning, str):
        safety.tell(tuning)
        return None
    tuning.meet(survey_of(source, config.train.block_rows))
    record = open_record(safety)
    tuning.fit_samples(safety, record, safety.memory or default_limit())
    safety.phase("tuning")
    return tuning.run(safety, record, progress)


def open_tuning(source: RowSource, config: RunConfig) -> Tuning | Facts | str:
    """A choice that is to be made, or why there is none."""
    train = config.train
    if (reason := reason_not_to_tune(source, config)) is not None:
        return f"not tuned: {reason}"
    if train.algo not in PAPER_RULES:
        return Facts(config, train.algo, _some_rows(source, train.seed).rows)
    if not config.fixed & {"algo", *RANKING}:
        some = _some_rows(source, train.seed)
        if suit_the_hinge(some):
            return Facts(config, "hinge", some.rows)
        if source.n_rows >= MIN_ROWS or train.effort == "quick":
            return Facts(config, EFFORTS[train.effort].short_rows, some.rows)
    if train.effort == "quick":
        return "not tuned: there are no trials with train.effort quick"
    if source.n_rows < MIN_ROWS:
        return f"not tuned: {source.n_rows:,} rows are fewer than {MIN_ROWS:,}, too few to tell what suits them"
    tuning = Tuning(source, config)
    return tuning if tuning.can_judge else "not tuned: no row of those held out has a label"


def _some_rows(source: RowSource, seed: int) -> Dataset:
    """Draw the rows, MAX_HELDOUT at most, whose facts say what suits all."""
    n_rows = min(source.n_rows, MAX_HELDOUT)
    drawn = np.sort(np.random.default_rng([seed, 2]).permutation(source.n_rows)[:n_rows])
    return Subset(source, drawn).read(0, n_rows)


def open_record(safety: Safety) -> Record:
    """What an earlier start of a run has found out, if it may be kept anywhere."""
    return Record(safety.checkpoints.record if safety.checkpoints is not None else None, safety.tell)
