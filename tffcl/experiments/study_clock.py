"""What the runs of a study will take: estimated before it starts, kept right by what they took, and said."""

import dataclasses
import json
import pathlib
import sys

from tffcl.errors import UserError
from tffcl.experiments import compare, study_pace, tasks
from tffcl.experiments.study_pace import human_time
from tffcl.experiments.study_plan import RESULTS, RUNS, StudyPlan, StudyRun, ended

TRIALS = "trials.json"


class Clock:
    """Estimates, kept right by what the runs took."""

    def __init__(self, planned: StudyPlan, out: pathlib.Path, data_dir: str | None, show: bool):
        self._out, self._show = out, show
        self._runs, self._seeds, self._missing = planned.runs, planned.seeds, planned.missing
        self._known = study_pace.earlier_runs([tasks.task_directory() / "results", out / RESULTS])
        self._paces = self._tried(data_dir)
        self._ratios: list[float] = []
        self._left: dict[StudyRun, float] = {}

    def _tried(self, data_dir: str | None) -> dict[str, study_pace.Pace | None]:
        """The pace of every task of which a run is not known, kept so that a study that is resumed need not try again."""
        file = self._out / TRIALS
        kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        paces = {key: value and study_pace.Pace(**value) for key, value in kept.items()}
        for each in self._runs:
            key = self._task(each)
            if key in paces or ended(each, self._out) or study_pace.fingerprint(each.config.as_dict()) in self._known:
                continue
            self._say(f"a short trial of {each.config.task} ...")
            try:
                paces[key] = study_pace.try_out(each.config, data_dir)
            except UserError as error:  # the run will say so, too
                self._say(f"no trial of {each.config.task}: {error}")
                paces[key] = None
            values = {name: pace and dataclasses.asdict(pace) for name, pace in paces.items() if pace}
            file.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
        return paces

    @staticmethod
    def _task(each: StudyRun) -> str:
        config = each.config
        return json.dumps([config.task, dict(config.dataset), dict(config.partition), dict(config.model)], default=str)

    def _estimate(self, each: StudyRun) -> float:
        rate = self._known.get(study_pace.fingerprint(each.config.as_dict()))
        if rate is not None:
            return rate * each.config.train.rounds
        pace = self._paces.get(self._task(each))
        return pace.seconds(each.config) if pace else 0.0

    def order(self) -> list[StudyRun]:
        """The runs, seed by seed, the cheapest of each seed first; says what they will take."""
        estimates = {each: 0.0 if ended(each, self._out) else self._estimate(each) for each in self._runs}
        order = sorted(self._runs, key=lambda each: (self._seeds.index(each.config.seed), self._estimate(each)))
        self._left = {each: estimates[each] for each in order}
        for reason, names in self._missing.items():
            self._say(f"not available: {', '.join(names)}: {reason}")
        begun = sum(not ended(each, self._out) for each in order)
        self._say(
            f"{len(order)} runs, {begun} to do: about {human_time(sum(self._left.values()))} on this machine as it is now"
        )
        return order

    def announce(self, number: int, each: StudyRun, state: str):
        """Says which run is next and what is left."""
        said = f"{state} before" if state else f"about {human_time(self._left[each] * self._ratio)}"
        left = human_time(sum(self._left.values()) * self._ratio)
        self._say(f"[{number + 1}/{len(self._runs)}] {each.title}: {said}; all that is left: {left}")

    def finished(self, each: StudyRun, state: str):
        """Notes that a run has ended, and by how much its estimate was wrong if it had not (`state`) before this call."""
        expected = self._left.pop(each)
        summary = None if state else compare.read_summary(self._out / RUNS / each.directory)
        if summary and expected:
            self._ratios.append(summary["seconds"]["total"] / expected)

    @property
    def _ratio(self) -> float:
        return sum(self._ratios) / len(self._ratios) if self._ratios else 1.0

    def _say(self, line: str):
        if self._show:
            print(line, file=sys.stderr, flush=True)
