"""CUDA tuning where there is no GPU: tasks and candidates are built, measuring is refused in words."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from tvmopt import pipeline
from tvmopt.errors import TuningError
from tvmopt.report import DecisionLog
from tvmopt.scheduling.discover import families
from tvmopt.targets import Machine
from tvmopt.tuning.driver import refuse_foreign
from tvmopt.tuning.tasks import extract, task_of

H100 = Machine.load("nvidia-h100")


@pytest.fixture(scope="module")
def tasks():
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 264), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(relax.op.nn.softmax(x))
            out = bb.emit_output(relax.op.permute_dims(relax.op.tanh(y)))
        bb.emit_func_output(out)
    return extract(pipeline.lower(bb.get(), H100, DecisionLog()), H100)


def test_tasks_without_a_gpu(tasks) -> None:
    assert "rows" in {t.key.family for t in tasks}
    for task in tasks:
        assert task.space.size > 1 and task.key.target.startswith("cuda sm_90")


def test_candidates_are_built(tasks) -> None:
    task = next(t for t in tasks if t.key.family == "rows")
    family = next(f for f in families("cuda") if f.NAME == "rows")
    again = task_of(task.kernel.module, task.key, H100)
    assert again is not None and again.space == task.space
    func = tvm.ir.load_json(task.kernel.module)["main"]
    for threads in task.space.choices["threads"][:3]:
        sch = tvm.s_tir.Schedule(func)
        family.apply(sch, family.recognise(func, H100), {**task.space.analytic, "threads": threads})
        text = sch.mod.script()
        assert f"thread_binding(T.int64({threads})" in text or f"thread_binding({threads}," in text


def test_measuring_needs_a_gpu() -> None:
    with pytest.raises(TuningError, match=r"cannot measure for nvidia-h100: it lacks sm_90(.|\n)*--rpc-tracker"):
        refuse_foreign(H100)
