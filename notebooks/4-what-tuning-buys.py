# %% [markdown]
# # What tuning buys
#
# The analytic schedules come from a model of the machine. Tuning asks the machine itself: it builds other schedules, checks
# their results, times them against the analytic one, and keeps those that are faster beyond noise. This notebook tunes a small
# transformer for some seconds, watches it, and reads what it left. A real run takes minutes to hours.

# %%
import os
import tempfile
import time

import matplotlib.pyplot as plt
import onnx
from IPython.display import display
from making import encoder

import tvmopt
from tvmopt.tuning.driver import tune

os.chdir(tempfile.mkdtemp())
onnx.save(encoder(layers=1, width=192, heads=3, length=80), "model.onnx")

# %% [markdown]
# ## What there is to tune
#
# A *task* is one distinct kernel. Its family offers knobs; the product of their choices is the space. The first point of the
# space is the analytic one.

# %% language="bash"
# tvmopt tune model.onnx --store records.db --list-tasks

# %% [markdown]
# ## Tune, and watch
#
# An *observer* is told of every measurement; the display of `tvmopt tune` is one. This one draws: the estimated time of one
# inference, as winners are found. (In a running notebook the plot renews itself.)


# %%
class Curve:
    """Draws the estimated latency while the tuner works."""

    def __init__(self):
        self.begin, self.points, self.tried = time.time(), [], []
        self.figure, self.axis = plt.subplots(figsize=(7, 3), dpi=110)
        self.handle = display(self.figure, display_id=True)
        self.drawn = 0.0

    def started(self, tuner):
        pass

    def measured(self, tuner, state, record):
        self.tried.append((state.task.name, record))
        self._note(tuner)

    def judged(self, tuner, state, candidate, verdict):
        self._note(tuner)

    def finished(self, tuner):
        self._note(tuner, last=True)
        plt.close(self.figure)

    def _note(self, tuner, last=False):
        base, now = tuner.latency
        self.points.append((len(self.tried), now / base))
        if last or time.time() - self.drawn > 1:
            self.drawn = time.time()
            self.axis.clear()
            self.axis.step(*zip(*self.points, strict=True), where="post", color="#4477aa")
            self.axis.axhline(1, color="grey", linestyle=":", label="analytic schedules")
            self.axis.set_xlabel("candidates measured"), self.axis.set_ylabel("estimated time, analytic = 1")
            self.axis.set_ylim(0.6, 1.05)
            self.axis.legend(loc="lower left")
            self.figure.tight_layout()
            self.handle.update(self.figure)


curve = Curve()
result = tune("model.onnx", store="records.db", trials=48, budget="25s", generic=False, observer=curve)

# %%
before, after = result.estimate
print(f"{result.trials} candidates in {result.elapsed:.0f} s; the kernels together: {1e6 * before:.0f} us untuned, "
      f"{1e6 * after:.0f} us with the winners")
for task in sorted(result.tasks, key=lambda t: -t.share):
    won = f"{1 / task.ratio:.2f} times as fast: {task.knobs}" if task.ratio < 1 else "the analytic point stays"
    print(f"  {task.name[:32]:32} {task.share:4.0%} of the time, {task.trials:2} tried: {won}")
if result.model:
    v = result.model
    print(f"the whole model, tuned against untuned, in turn: {v.ratio:.3f} of the time [{v.low:.3f}, {v.high:.3f}]")

# %% [markdown]
# `tune` uses the family's knobs here (`generic=False`). By default it also searches MetaSchedule's own space, which knows
# nothing of families; that needs more time than a notebook should take.
#
# ## Every candidate
#
# Each point is one measured candidate, as its time over the analytic schedule's, both taken in turn. Below 1 it looked faster.
# Looking faster is not enough: a finalist is measured again in forty pairs, and then inside the model.

# %%
names = sorted({name for name, _ in curve.tried})
figure, axis = plt.subplots(figsize=(7.5, 3.2), dpi=110)
for row, name in enumerate(names):
    scores = [r.score for n, r in curve.tried if n == name and r.status == "ok"]
    axis.scatter(scores, [row] * len(scores), alpha=0.5, s=28, color="#4477aa")
axis.axvline(1, color="grey", linestyle=":")
axis.set_yticks(range(len(names)), [n[:30] for n in names])
axis.set_xscale("log")
axis.set_xlabel("time over the analytic schedule's")
figure.tight_layout()

# %%
from collections import Counter

print("outcomes:", dict(Counter(record.status for _, record in curve.tried)))
judged = [(name, r) for name, r in curve.tried if r.status == "ok"]
name, best = min(judged, key=lambda item: item[1].score)
print(f"best at first sight: {name}, {best.candidate}: {best.score:.3f} of the analytic time")

# %% [markdown]
# ## Reading a trace
#
# A schedule is a list of primitives with their decisions, a *trace*. This is the analytic one of the heaviest GEMM: every line
# is one step of [What a schedule is](2-what-a-schedule-is.ipynb). Numbers in `split` are the decisions: a tuner changes these
# and replays the rest.

# %%
import tvm
from tvm.s_tir import Schedule

from tvmopt.scheduling.discover import families
from tvmopt.targets import Machine
from tvmopt.tuning.driver import imported_module, tasks_of

machine = Machine.load("cpu")
module = imported_module("model.onnx", {})
task = max((t for t in tasks_of(module, machine) if t.key.family == "gemm"), key=lambda t: t.floor * t.weight)
gemm = next(f for f in families("llvm") if f.NAME == "gemm")
with machine.tvm_target():
    func = tvm.ir.load_json(task.kernel.module)["main"]
    shape = gemm.recognise(func, machine)
    sch = Schedule(func)
    gemm.apply(sch, shape, gemm.knobs(shape, machine).analytic)
print(shape)
print("\n".join(line for line in str(sch.trace).splitlines() if "sch." in line)[:2600])

# %% [markdown]
# ## The log
#
# Every measurement is in the store, a file that survives a kill at any moment. `tvmopt logs` reads it; `export` writes sorted
# JSON-lines that can be reviewed and shipped.

# %% language="bash"
# tvmopt logs list --store records.db --all | head -12
# tvmopt logs export exported --store records.db --all
# wc -l exported/*.jsonl

# %%
import json
from pathlib import Path

line = json.loads(next(Path("exported").glob("*.jsonl")).read_text().splitlines()[0])
for key, value in line.items():
    text = json.dumps(value)
    print(f"{key:10} {text[:90]}{' ...' if len(text) > 90 else ''}")

# %% [markdown]
# ## Nothing is measured twice
#
# The same command again goes on where it stood. The budget counts all runs together, so here nothing is left to do.

# %%
again = tune("model.onnx", store="records.db", trials=result.trials, generic=False, compare=False)
print(f"{again.resumed} candidates were known, {again.trials - again.resumed} measured now")

# %% [markdown]
# ## Use it
#
# `compile` looks into the store (the user's own by default) and says what it used.

# %%
compiled = tvmopt.compile("model.onnx", store="records.db")
print(f"share of the arithmetic by tuned kernels: {compiled.report.share('tuned'):.0%}, "
      f"by analytic ones: {compiled.report.share('analytic'):.0%}")
for decision in compiled.report.decisions:
    if decision.stage == "tvmopt.TuningRecords":
        print(f"  {decision.node[:40]}: {decision.reason.split('; ')[0]}")

# %% [markdown]
# If the analytic point stays everywhere, that is a result too: the model of the machine was right about this model. What a
# night finds, and how a record has to win: [Tune a model overnight](../docs/how-to/tune.md).
