"""Recurrences against float64: edge sizes, every option and activation, each way of sharing; through the pipeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import tvmopt
from tests.schedules.harness import Open
from tvmopt import pipeline
from tvmopt.importer.converters.unrolled import unrolled
from tvmopt.importer.sizes import variable
from tvmopt.lowering import why_unrolled
from tvmopt.operators.recurrence import GATES, OPTIONAL, Spec, recurrent, spec_of
from tvmopt.report import DecisionLog
from tvmopt.schedules.cpu.recurrent import compute as legalizer
from tvmopt.schedules.cpu.recurrent.tile import RecurrentPlan, plan
from tvmopt.schedules.cpu.recurrent.tile import tile as tile_of
from tvmopt.targets import Machine

MACHINE = Machine.load("cpu").with_cores(2)
SIGMOID, TANH = ("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0)
USUAL = {"LSTM": (SIGMOID, TANH, TANH), "GRU": (SIGMOID, TANH), "RNN": (TANH,)}
ACTIVATIONS = {
    "sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "tanh": lambda x, a, b: np.tanh(x),
    "relu": lambda x, a, b: np.maximum(x, 0),
    "affine": lambda x, a, b: a * x + b,
    "leakyrelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "thresholdedrelu": lambda x, a, b: np.where(x > a, x, 0),
    "scaledtanh": lambda x, a, b: a * np.tanh(b * x),
    "hardsigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "elu": lambda x, a, b: np.where(x < 0, a * np.expm1(x), x),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "softplus": lambda x, a, b: np.logaddexp(x, 0),
}


def reference(spec: Spec, v: dict[str, np.ndarray]) -> list[np.ndarray]:
    """ONNX's definition, in the types of the arrays."""
    steps, batch, _ = v["projected"].shape
    directions, width, n = v["recurrence"].shape
    y = np.zeros((steps, directions, batch, n))
    last = {s: np.zeros((directions, batch, n)) for s in spec.states}
    for d in range(directions):

        def act(k, x, clip=True, d=d):
            name, a, b = spec.functions[d][k]
            return ACTIVATIONS[name](np.clip(x, -spec.clip, spec.clip) if clip and spec.clip else x, a, b)

        r = v["recurrence"][d].T
        state = {s: v[f"{s}0"][d] if f"{s}0" in v else np.zeros((batch, n)) for s in spec.states}
        for t in reversed(range(steps)) if spec.backwards(d) else range(steps):
            x, h = v["projected"][t, :, d * width : (d + 1) * width], state["h"]
            if spec.kind == "RNN":
                new = {"h": act(0, x + h @ r)}
            elif spec.kind == "GRU":
                z, reset = (act(0, x[:, k * n : (k + 1) * n] + h @ r[:, k * n : (k + 1) * n]) for k in (0, 1))
                if spec.linear_before_reset:
                    third = reset * (h @ r[:, 2 * n :] + (v["bias"][d] if "bias" in v else 0))
                else:
                    third = (reset * h) @ r[:, 2 * n :]
                new = {"h": (1 - z) * act(1, x[:, 2 * n :] + third) + z * h}
            else:
                recurred = rounded(h) @ r * v["scale"][d] if "scale" in v else h @ r
                i, o, f, g = np.split(x + recurred, 4, axis=1)
                pi, po, pf = np.split(v["peephole"][d], 3) if "peephole" in v else (0, 0, 0)
                i = act(0, i + pi * state["c"])
                f = 1 - i if spec.input_forget else act(0, f + pf * state["c"])
                c = f * state["c"] + i * act(1, g)
                new = {"h": act(0, o + po * c) * act(2, c, clip=False), "c": c}
            alive = (v["lengths"] > t)[:, None] if "lengths" in v else np.ones((batch, 1), bool)
            y[t, d] = np.where(alive, new["h"], 0)
            state = {s: np.where(alive, new[s], state[s]) for s in state}
        for s in state:
            last[s][d] = state[s]
    return [y, *last.values()]


def rounded(h: np.ndarray) -> np.ndarray:
    """States as 8 bits of the range of each and 0, as DynamicQuantizeLinear makes them."""
    low, high = np.minimum(h.min(1), 0).astype("float32"), np.maximum(h.max(1), 0).astype("float32")
    step = (high - low) / np.float32(255)
    step = np.where(step == 0, np.float32(1), step)[:, None]
    zero = np.rint(-low[:, None] / step)
    codes = np.clip(np.rint(h.astype("float32") / step) + zero, 0, 255)
    return (codes - zero).astype("float64") * step


def operands(spec: Spec, steps: int, batch: int, directions: int, hidden: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(hidden + 7 * batch + steps)
    width = GATES[spec.kind] * hidden
    shapes = {"projected": (steps, batch, directions * width), "recurrence": (directions, width, hidden)}
    shapes |= {name: legalizer.SHAPES[name](directions, batch, hidden) for name in spec.operands}
    found = {k: rng.standard_normal(s).astype("float32") for k, s in shapes.items() if k != "lengths"}
    found["recurrence"] *= hidden**-0.5
    if "scale" in spec.operands:  # integers, and what they count
        found["scale"] = rng.uniform(0.2, 1.0, shapes["scale"]).astype("float32") * np.float32(hidden**-0.5 / 127)
        found["recurrence"] = rng.integers(-128, 128, shapes["recurrence"]).astype("int8")
    if "lengths" in spec.operands:
        found["lengths"] = rng.integers(1, steps + 1, batch).astype("int32")
    return found


def module(spec: Spec, values: dict[str, np.ndarray], constant: bool = True, opened: str = "") -> tvm.IRModule:
    """R is a constant or a parameter; everything else is a parameter. `opened`: "steps", "batch", or both."""
    steps, batch, _ = values["projected"].shape
    directions, _, hidden = values["recurrence"].shape
    steps, batch = (variable(name) if name in opened else size for name, size in (("steps", steps), ("batch", batch)))
    shapes = {k: legalizer.SHAPES[k](directions, batch, hidden) for k in spec.operands}
    shapes |= {"projected": (steps, batch, values["projected"].shape[2]), "recurrence": values["recurrence"].shape}
    params = {
        k: relax.Var(k, relax.TensorType(shapes[k], str(a.dtype)))
        for k, a in values.items()
        if k != "recurrence" or not constant
    }
    bb = relax.BlockBuilder()
    with bb.function("main", list(params.values())):
        with bb.dataflow():
            r = {"recurrence": relax.const(values["recurrence"], str(values["recurrence"].dtype))} if constant else {}
            out = bb.emit(recurrent(spec, params | r))
            fields = [bb.emit(relax.TupleGetItem(out, i)) for i in range(1 + len(spec.states))]
            out = bb.emit_output(relax.Tuple(fields))
        bb.emit_func_output(out)
    return bb.get()


def run(lowered: pipeline.Lowered, values: dict[str, np.ndarray], machine: Machine = MACHINE) -> list[np.ndarray]:
    vm = relax.VirtualMachine(pipeline.build(lowered, machine), tvm.cpu())
    return [t.numpy() for t in vm["main"](*[tvm.runtime.tensor(a) for a in values.values()])]


def check(kind: str, steps: int, batch: int, directions: int, hidden: int, given: str = "", *, constant: bool = True,
          machine: Machine = MACHINE, **fields: object) -> pipeline.Lowered:  # fmt: skip
    """`given`: names of the optional operands."""
    spec = Spec(kind, (USUAL[kind],) * directions, operands=tuple(n for n in OPTIONAL if n in given.split()))
    spec = replace(spec, **fields)
    values = operands(spec, steps, batch, directions, hidden)
    lowered = pipeline.lower(module(spec, values, constant), machine)
    assert "recurrent" in [k.family for k in lowered.kernels]
    assert not [k.note for k in lowered.kernels if k.note]
    fed = {k: a for k, a in values.items() if k != "recurrence" or not constant}
    wide = {k: a if a.dtype.kind == "i" else a.astype("float64") for k, a in values.items()}
    for got, want in zip(run(lowered, fed, machine), reference(spec, wide), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    return lowered


def check_rounded(
    *sizes: int, given: str = "", kind: str = "int8", machine: Machine = MACHINE, **fields: object
) -> None:  # fmt: skip
    """An LSTM of integers: where an error takes a state over the edge between two codes, some results are others."""
    spec = Spec(
        "LSTM", (USUAL["LSTM"],) * sizes[2], operands=tuple(n for n in OPTIONAL if n in f"{given} scale".split())
    )
    spec = replace(spec, **fields)
    values = operands(spec, *sizes)
    values["recurrence"] = values["recurrence"].astype(kind)
    lowered = pipeline.lower(module(spec, values), machine)
    assert "recurrent" in [k.family for k in lowered.kernels]
    fed = {k: a for k, a in values.items() if k != "recurrence"}
    wide = {k: a if k == "lengths" else a.astype("float64") for k, a in values.items()}
    for got, want in zip(run(lowered, fed, machine), reference(spec, wide), strict=True):
        apart = np.abs(got - want)
        assert apart.max() < 0.02
        assert (apart > 2e-5).mean() < 0.05


@pytest.mark.parametrize("kind", ["int8", "float32"])
@pytest.mark.parametrize("hidden", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 130])
def test_rounded_states(hidden, kind):
    check_rounded(5, 1, 1, hidden, kind=kind)
    check_rounded(4, 3, 2, hidden, given="h0 c0 peephole lengths", kind=kind, clip=3.0)


@pytest.mark.parametrize("hidden", [7, 17, 40, 130])
def test_rounded_states_where_cores_share_steps(hidden, shared):
    check_rounded(6, 2, 2, hidden, given="h0 lengths")


@pytest.mark.parametrize("kind", ["int8", "float32"])
@pytest.mark.parametrize("hidden", [130, 600, 1100])
def test_cores_that_share_steps_round_in_memory_of_their_own(hidden, kind, shared):
    """They shared it: one overwrote what another was multiplying, and each run gave other results."""
    spec = Spec("LSTM", (USUAL["LSTM"],), operands=("scale",))
    values = operands(spec, 5, 1, 1, hidden)
    values["recurrence"] = values["recurrence"].astype(kind)
    vm = relax.VirtualMachine(pipeline.build(pipeline.lower(module(spec, values), MACHINE), MACHINE), tvm.cpu())
    given = [tvm.runtime.tensor(a) for n, a in values.items() if n != "recurrence"]
    found = {b"".join(t.numpy().tobytes() for t in vm["main"](*given)) for _ in range(2000 if hidden < 200 else 300)}
    assert len(found) == 1


def test_rounded_states_of_zeros_and_of_the_largest_integers():
    """A range of nothing has the step 1; sums of 255 * -128 stay exact."""
    spec = Spec("LSTM", (USUAL["LSTM"],), operands=("h0", "scale"))
    for hidden in (16, 600):
        values = operands(spec, 2, 1, 1, hidden)
        values["recurrence"][:] = -128
        values["scale"][:] = 1e-6
        for h0 in (0.0, 1.0, -1.0):
            values["h0"][:] = h0
            lowered = pipeline.lower(module(spec, values), MACHINE)
            fed = {k: a for k, a in values.items() if k != "recurrence"}
            wide = {k: a.astype("float64") for k, a in values.items()}
            for got, want in zip(run(lowered, fed), reference(spec, wide), strict=True):
                np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.fixture
def shared(monkeypatch):
    """Cores share each step wherever there are two blocks."""

    def all_steps(*args, **kwargs):
        found = plan(*args, **kwargs)
        tiles = tuple(tile_of(args[3], gates, args[1], args[5], kwargs.get("terms")) for gates in args[4])
        return RecurrentPlan("steps", args[1], tiles, found.nanoseconds)

    monkeypatch.setattr(legalizer, "plan", all_steps)


@pytest.mark.parametrize("hidden", [1, 7, 8, 9, 15, 16, 17, 31, 32, 33])
def test_sizes(hidden):
    check("LSTM", 3, 1, 1, hidden)
    check("GRU", 2, 7, 2, hidden, "bias h0", linear_before_reset=True)
    check("RNN", 4, 2, 1, hidden, reverse=True)


@pytest.mark.parametrize("hidden", [7, 17, 40])
def test_cores_share_steps(hidden, shared):
    check("LSTM", 5, 2, 2, hidden, "h0 c0 lengths peephole")
    check("GRU", 4, 1, 1, hidden, reverse=True)  # two passes: they meet twice a step
    lowered = check("RNN", 64, 5, 1, hidden)
    kernel = next(k for k in lowered.kernels if k.family == "recurrent")
    assert kernel.knobs == {"parallel": 0}


def test_batches_go_to_tasks():
    lowered = check("LSTM", 40, 6, 2, 24)
    kernel = next(k for k in lowered.kernels if k.family == "recurrent")
    assert kernel.knobs == {"parallel": 1}


@pytest.mark.parametrize("directions", [1, 2])
def test_options(directions):
    check("LSTM", 6, 3, directions, 8, "h0 c0 peephole lengths", clip=0.5, input_forget=True)
    check("GRU", 6, 3, directions, 8, "h0 lengths", clip=0.5)
    check("RNN", 6, 3, directions, 8, "h0 lengths", clip=0.5)
    check("GRU", 3, 2, directions, 33, linear_before_reset=True)
    check("LSTM", 1, 1, directions, 8, constant=False)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_activations(kind):
    """All eleven, different ones a direction."""
    names, count = sorted(ACTIVATIONS), len(USUAL[kind])
    for start in range(0, len(names), 2 * count):
        chosen = [(names[(start + k) % len(names)], 0.3, 0.4) for k in range(2 * count)]
        check(kind, 2, 2, 2, 9, functions=(tuple(chosen[:count]), tuple(chosen[count:])))


def test_other_vector_widths():
    for machine in (Machine.load("x86-64-v2"), Machine.load("x86-64-v3").with_cores(2)):
        check("LSTM", 3, 5, 1, 19, machine=machine)
        check_rounded(3, 5, 1, 19, machine=machine)


def test_same_bytes():
    spec = Spec("LSTM", (USUAL["LSTM"],))
    values = operands(spec, 3, 1, 1, 8)
    first, second = (pipeline.lower(module(spec, values), MACHINE).module for _ in range(2))
    assert tvm_ffi.structural_equal(first, second)


@pytest.mark.parametrize("opened", ["steps", "batch", "steps and batch"])
@pytest.mark.parametrize(
    ("kind", "hidden", "directions", "given"),
    [("LSTM", 17, 2, "h0 c0 lengths peephole"), ("GRU", 9, 1, "h0 lengths"), ("RNN", 8, 2, ""), ("LSTM", 40, 1, ""),
     ("LSTM", 17, 2, "h0 lengths scale")],
)  # fmt: skip
def test_open_sizes(opened, kind, hidden, directions, given):
    spec = Spec(kind, (USUAL[kind],) * directions, operands=tuple(n for n in OPTIONAL if n in given.split()))
    values = operands(spec, 3, 2, directions, hidden)
    model = Open(module(spec, values, opened=opened))
    assert [how for how in model.how.values() if how[0] != "elementwise"] == [("recurrent", "")]
    for steps in (1, 2, 7, 8, 9, 33) if "steps" in opened else (3,):
        for batch in (1, 3, 8) if "batch" in opened else (2,):
            fresh = operands(spec, steps, batch, directions, hidden) | {"recurrence": values["recurrence"]}
            wide = {k: a if a.dtype.kind == "i" else a.astype("float64") for k, a in fresh.items()}
            wanted = reference(spec, wide)
            fed = [a for k, a in fresh.items() if k != "recurrence"]
            for got, want in zip(model.all_guarded(fed, [w.shape for w in wanted]), wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("mode", ["serial", "steps", "tasks"])
def test_open_sizes_in_each_way_of_sharing(mode, monkeypatch):
    def only(*args, **kwargs):
        return replace(plan(*args, **kwargs), mode=mode, rows=1)

    monkeypatch.setattr(legalizer, "plan", only)
    test_open_sizes("steps and batch", "LSTM", 40, 2, "h0 lengths")


def test_an_open_number_of_sequences_is_planned_one_by_one():
    found = [plan(64, b, 1, 64, (4,), MACHINE, one_by_one=True) for b in (1, 8)]
    assert [(p.mode, p.rows) for p in found] == [("serial", 1), ("tasks", 1)]


def test_declines():
    spec = Spec("RNN", (USUAL["RNN"],))
    values = operands(spec, 3, 1, 1, 8)
    call = next(b.value for b in module(spec, values)["main"].body.blocks[0].bindings)
    assert spec_of(call) == spec
    assert legalizer.declines(call, MACHINE) is None
    assert "GPU" in (why_unrolled(call, Machine.load("nvidia-h100")) or "")
    assert why_unrolled(call, MACHINE) is None
    half = {k: a.astype("float16") for k, a in values.items()}
    call = next(b.value for b in module(spec, half)["main"].body.blocks[0].bindings)
    assert "float16" in legalizer.declines(call, MACHINE)


def test_float64_is_unrolled_and_said():
    spec = Spec("GRU", (USUAL["GRU"],), operands=("h0",))
    values = {k: a.astype("float64") for k, a in operands(spec, 3, 2, 1, 8).items()}
    log = DecisionLog()
    lowered = pipeline.lower(module(spec, values), MACHINE, log)
    said = [d for d in log.decisions if d.stage == "tvmopt.UnrollRecurrence"]
    assert [d.reason for d in said] == ["unrolled over 3 steps: no kernel for float64"]
    fed = {k: a for k, a in values.items() if k != "recurrence"}
    for got, want in zip(run(lowered, fed), reference(spec, values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_the_definition_has_the_same_types():
    spec = Spec("LSTM", (USUAL["LSTM"],) * 2, operands=("lengths", "h0"))
    made = module(spec, operands(spec, 3, 2, 2, 5))
    block = made["main"].body.blocks[0].bindings
    bb = relax.BlockBuilder()
    with bb.function("f", list(made["main"].params)):
        out = bb.emit(unrolled(bb, block[0].value))
        bb.emit_func_output(out)
    assert tvm_ffi.structural_equal(out.ty, block[0].var.ty)


def test_a_model_of_open_steps_and_lengths():
    """A length beyond the steps that a call has is that number of steps."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal((2, 20, k)).astype("float32") * 0.4 for n, k in (("w", 4), ("r", 5))}
    typed = helper.make_tensor_value_info
    lstm = helper.make_node("LSTM", ["x", "w", "r", "", "l"], ["y"], hidden_size=5, direction="bidirectional")
    graph = helper.make_graph(
        [lstm], "g",
        [typed("x", TensorProto.FLOAT, ("t", "n", 4)), typed("l", TensorProto.INT32, ("n",))],
        [typed("y", TensorProto.FLOAT, None)], [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = tvmopt.compile(made, shape={"t": "1..20@9", "n": "1..4"})
    assert compiled.report.accuracy["verified"]
    spec = Spec("LSTM", (USUAL["LSTM"],) * 2, operands=("lengths",))
    for steps, batch in ((1, 1), (9, 3), (20, 4)):
        x = rng.standard_normal((steps, batch, 4)).astype("float32")
        lengths = rng.integers(0, 25, batch).astype("int32")
        projected = np.concatenate([x @ w.T for w in weights["w"]], -1)
        values = {"projected": projected, "recurrence": weights["r"], "lengths": np.minimum(lengths, steps)}
        wide = {k: a if a.dtype.kind == "i" else a.astype("float64") for k, a in values.items()}
        np.testing.assert_allclose(compiled(x, lengths), reference(spec, wide)[0], rtol=2e-5, atol=2e-5)
