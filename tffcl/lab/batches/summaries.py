"""The summaries, tables and results of several runs in one directory."""

import html
from collections.abc import Iterable, Sequence

import pandas as pd

from tffcl.errors import UserError
from tffcl.lab.batches.batch import Batch, Job
from tffcl.lab.reporting import batch_index, comparison_table, report, sweeps
from tffcl.lab.reporting.verdict import verdict
from tffcl.runs.metrics import on_validation
from tffcl.runs.result import Result


class Summaries(list):
    """The summaries of several runs, in the form of summary.json and in the requested order; None for a run that
    diverged.

    The tables have all runs in the directory, those of earlier calls too, with accuracies in percent. A notebook shows
    the table that the command line prints.

    Attributes:
      out: The directory; `report.html` in it is the page.
    """

    def __init__(
        self, summaries: Iterable[dict | None], batch: Batch, jobs: Sequence[Job], names: Sequence[Sequence[object]]
    ):
        """Notes the runs of a batch.

        Args:
          summaries: The summaries of the jobs.
          batch: The batch that has run the jobs.
          jobs: The jobs.
          names: The name of each in tables, without its seed: the method's label, or the values of a sweep's settings.
        """
        super().__init__(summaries)
        self.out, self._batch = batch.out, batch
        self._jobs = list(zip(map(tuple, names), jobs, strict=True))

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each run: the method's label or the values of a sweep's settings, `seed`, the columns of the table,
        and `failed`, the reason why it diverged, or ""."""
        first, columns, found = self._read()
        lines = []
        for names, runs, failures in found:
            lines += [[*names, run.seed, *(each.metric.of_run(run) for each in columns), ""] for run in runs]
            lines += [[*names, each.seed, *(float("nan") for _ in columns), each.reason] for each in failures]
        return pd.DataFrame(lines, columns=[*first, "seed", *(each.name for each in columns), "failed"])

    @property
    def summary_frame(self) -> pd.DataFrame:
        """A row for each method or point of a sweep: means over seeds, `<column>_std`, `_stderr` and `_count`, as in
        table.csv or sweep.csv."""
        frame = report.plain_table(self.out).to_frame()
        return frame.set_index(list(frame.columns[: frame.columns.get_loc("seeds")]))

    @property
    def verdict(self) -> str:
        """The sentences at the top of a comparison's page, one in each line: whether there are groups, which method is
        best and whether by more than chance, and what it cost. "" if all runs diverged.

        Raises:
          UserError: For a sweep or a search, because a setting must not be chosen on test examples.
        """
        if batch_index.read_index(self.out, "comparison") is None:
            raise UserError(
                "only a comparison has a verdict; tffcl.search picks the best value of a setting by validation examples"
            )
        return "\n".join(verdict(batch_index.finished_runs(self.out)))

    def result(self, *name: object, seed: int | None = None) -> Result:
        """Returns the result of a finished run, with its models, read from its files.

        Args:
          *name: The method's label, or the values of a sweep's settings.
          seed: The seed of the run; default the first requested seed.

        Raises:
          UserError: If there is no such run, it diverged, or its files are missing or have changed.
        """
        found = [job for own, job in self._jobs if own == name and seed in (None, job.config.seed)]
        if not found:
            known = "; ".join(dict.fromkeys(job.title for _, job in self._jobs))
            raise UserError(f"there is no run of {', '.join(map(str, name))}, seed {seed}; there are {known}")
        if self._batch.done(found[0]) != "finished":
            raise UserError(f"{found[0].title} diverged; it has no result")
        return self._batch.result(found[0])

    def __repr__(self) -> str:
        table, notes, _ = report.read_tables(self.out)
        return "\n\n".join([table.without_empty().to_text(), *notes])

    def _repr_html_(self) -> str:
        table, notes, _ = report.read_tables(self.out)
        return table.without_empty().to_html() + "".join(f"<p>{html.escape(each)}</p>" for each in notes)

    def _read(self):
        """`(titles of names, columns, [(names, finished runs, failures)])` of all runs in the directory."""
        if sweeps.is_sweep(self.out):
            sweep = sweeps.read_sweep(self.out)
            found = [(point.values, point.runs, point.row.failures) for point in sweep.points]
            return sweep.keys, (*sweeps.SWEEP_COLUMNS, *comparison_table.further_columns(sweep.runs)), found
        runs, failures = batch_index.finished_runs(self.out), batch_index.find_failures(self.out)
        methods = batch_index.in_order(self.out, [each.method for each in [*runs, *failures]])
        found = [
            ((name,), [run for run in runs if run.method == name], [each for each in failures if each.method == name])
            for name in methods
        ]
        return ("algorithm",), (*comparison_table.COLUMNS, *comparison_table.further_columns(runs)), found


class Found(Summaries):
    """The result of a search: the summaries of the runs of the picked values, each with a fresh seed."""

    @property
    def picked(self) -> dict[str, object]:
        """The picked value of each setting."""
        return dict(zip(self._settings, self._batch.index["picked"]["values"], strict=True))

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each point, the best first: its values; `compared_after`, the rounds after which it was last
        compared; and its metric on validation examples then, in percent for accuracies; NaN if it diverged."""
        rows = [[*values, rounds, score] for values, rounds, score in sweeps.compared_points(self._batch.index)]
        columns = [*self._settings, "compared_after", on_validation(self._batch.index["select"]).name]
        return pd.DataFrame(rows, columns=columns)

    @property
    def tests(self) -> pd.DataFrame:
        """A row for each fresh seed of the picked values: accuracies on test examples in percent, and the metric by
        which the values were picked; NaN for missing values."""
        columns = {metric.name: values for metric, values in sweeps.picked_tests(self._batch.index).values()}
        return pd.DataFrame({"seed": self._batch.index["picked"]["seeds"], **columns})

    def result(self, *name: object, seed: int | None = None) -> Result:
        """Returns the result of the picked values with a fresh seed, by default the first; see `Summaries.result`."""
        return super().result(*(name or self.picked.values()), seed=seed)

    @property
    def _settings(self) -> list[str]:
        return [key.rpartition(".")[2] for key in self._batch.index["keys"]]

    def __repr__(self) -> str:
        return sweeps.search_text(self._batch.index)

    def _repr_html_(self) -> str:
        points, tests = (each.to_html(index=False) for each in (self.frame, self.tests))
        return f"{points}<p>picked, on test data: {html.escape(str(self.picked))}</p>{tests}"
