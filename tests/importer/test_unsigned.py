"""Integers that leave their type wrap around, whatever the next operator is and whatever compilers take for granted."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.importer.onnx_check import model, value

OPERATORS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}


@pytest.mark.parametrize("kind", ["uint32", "uint64"])
def test_sums_and_products_without_a_sign_wrap_around(kind):
    element = {"uint32": TensorProto.UINT32, "uint64": TensorProto.UINT64}[kind]
    top = np.iinfo(kind).max
    x = np.array([0, 1, 2, 7, 100, top, top - 1, top // 2, top // 2 + 1, top // 3], kind)
    constants = {"zero": 0, "three": 3, "half": top // 2 + 1, "top": top}
    nodes, expected = [], {}
    for name, number in constants.items():
        for op, function in OPERATORS.items():
            for turned in (False, True):
                out = f"{op}_{name}_{turned}"
                nodes.append(helper.make_node(op, [name, "x"] if turned else ["x", name], [out]))
                nodes.append(helper.make_node("Div", [out, "three"], [f"{out}_third"]))
                pair = (x, np.array(number, kind))
                expected[f"{out}_third"] = function(*(reversed(pair) if turned else pair)) // np.array(3, kind)
    value = helper.make_tensor_value_info
    weights = [numpy_helper.from_array(np.array(v, kind), n) for n, v in constants.items()]
    outputs = [value(n, element, x.shape) for n in expected]
    graph = helper.make_graph(nodes, "g", [value("x", element, x.shape)], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    found = tvmopt.compile(model, verify=False).model.run({"x": x})
    for name, want in expected.items():
        np.testing.assert_array_equal(found[name], want, name)


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("axes", [(31,), ("n",), ("n", 3)])
def test_sums_and_products_with_a_sign_wrap_around(kind, axes):
    """What reads them must not conclude from an operand that they are positive."""
    element, ends = helper.np_dtype_to_tensor_dtype(np.dtype(kind)), np.iinfo(kind)
    constants = {"zero": 0, "one": 1, "three": 3, "low": ends.min, "top": ends.max}
    readers = {
        "Greater": (["zero"], lambda v: v > 0),
        "Abs": ([], np.abs),
        "Neg": ([], np.negative),
        "Div": (["three"], lambda v: np.sign(v) * (np.abs(v.astype(object)) // 3)),
        "ReduceL1": ([], lambda v: np.abs(v).sum(keepdims=True, dtype=kind)),
    }
    nodes, sums = [], {}
    for op, function in OPERATORS.items():
        for name in ("one", "three", "low", "top", "x"):
            sums[f"{op}_{name}"] = function, name
            nodes.append(helper.make_node(op, ["x", name], [f"{op}_{name}"]))
    nodes += [helper.make_node(r, [s, *more], [f"{s}_{r}"]) for s in sums for r, (more, _) in readers.items()]
    value = helper.make_tensor_value_info
    weights = [numpy_helper.from_array(np.array(v, kind), n) for n, v in constants.items()]
    types = {"Greater": TensorProto.BOOL}
    results = [value(f"{s}_{r}", types.get(r, element), [None] * len(axes)) for s in sums for r in readers]
    graph = helper.make_graph(nodes, "g", [value("x", element, axes)], results, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    compiled = tvmopt.compile(model, verify=False, records=False).model
    numbers = [0, 1, -1, 2, -3, 100, ends.max, ends.max - 1, ends.min, ends.min + 1]
    numbers += [half + d for half in (ends.max // 2, ends.max // 3, ends.min // 2) for d in (-1, 0, 1)]
    for rows in (31,) if axes[0] == 31 else (1, 7, 33):
        x = np.resize(np.array(numbers, kind), (rows, *axes[1:]))
        found = compiled.run({"x": x})
        for name, (function, other) in sums.items():
            whole = function(x, x if other == "x" else np.array(constants[other], kind))
            for reader, (_, reference) in readers.items():
                want = reference(whole).astype(found[f"{name}_{reader}"].dtype)
                np.testing.assert_array_equal(found[f"{name}_{reader}"], want, f"{name}_{reader}")


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("lanes", [1, 9, 33])
def test_a_negative_float_as_uint64_wraps_around(kind, lanes):
    """AVX-512's instruction makes the largest integer of each of them."""
    numbers = [0.5, -0.5, 1.0, -1.0, -2.75, 60000.0, -60000.0]
    numbers += [] if kind == "float16" else [2.0**62, -(2.0**62), 2.0**63, 1.5 * 2.0**63, -(2.0**63)]
    x = np.resize(np.array(numbers, kind), (7, lanes))
    value = helper.make_tensor_value_info
    given = value("x", helper.np_dtype_to_tensor_dtype(np.dtype(kind)), x.shape)
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.UINT64)
    graph = helper.make_graph([node], "g", [given], [value("y", TensorProto.UINT64, x.shape)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    found = tvmopt.compile(model, verify=False, records=False).model.run({"x": x})["y"]
    whole = [int(v) % 2**64 for v in x.reshape(-1)]
    np.testing.assert_array_equal(found, np.array(whole, "uint64").reshape(x.shape))


@pytest.mark.parametrize("kind", ["float32", "float16", "float64"])
@pytest.mark.parametrize("to", ["int8", "uint8", "int16", "uint16"])
def test_floats_beyond_a_narrow_integer_wrap_around(kind, to):
    """Of 2 numbers and of 33, behind a copy and as they come: LLVM's vectors saturated where its scalars wrapped."""
    element = {n: helper.np_dtype_to_tensor_dtype(np.dtype(n)) for n in (kind, to)}
    for size in (2, 8, 33):
        nodes = [
            helper.make_node("Concat", ["x", "x"], ["twice"], axis=0),
            helper.make_node("Cast", ["twice"], ["behind"], to=element[to]),
            helper.make_node("Cast", ["x"], ["alone"], to=element[to]),
        ]
        value = helper.make_tensor_value_info
        outputs = [value("behind", element[to], [2 * size, 2]), value("alone", element[to], [size, 2])]
        graph = helper.make_graph(nodes, "g", [value("x", element[kind], [size, 2])], outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        x = np.resize(np.array([1000.25, -1000.75, 300, -3, 40000.5], kind), (size, 2))
        found = tvmopt.compile(model, verify=False).model.run({"x": x})
        wrapped = x.astype(np.int32).astype(to)
        np.testing.assert_array_equal(found["alone"], wrapped)
        np.testing.assert_array_equal(found["behind"], np.concatenate([wrapped, wrapped]))


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("exponent", [1, 5, 9, 31, 64])
def test_whole_powers_of_integers_are_exact_and_wrap_around(kind, exponent):
    info = np.iinfo(kind)
    x = np.array([0, 1, 3, 7, 12, info.max, info.max - 1, info.min, info.min + 1], kind)
    x = np.concatenate([x, np.random.default_rng(exponent).integers(info.min, info.max, 24, kind, endpoint=True)])
    nodes, dtype = [helper.make_node("Pow", ["x", "e"], ["y"])], helper.np_dtype_to_tensor_dtype(x.dtype)
    made = model(nodes, [value("x", x.shape, dtype)], [value("y", None, dtype)], {"e": np.int64(exponent)})
    found = tvmopt.compile(made, records=False, verify=False).model(x)
    exact = [pow(int(v), exponent, 1 << info.bits) for v in x]
    assert found.astype(object).tolist() == [v - (1 << info.bits) if v > info.max else v for v in exact]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "kind, other", [("int32", "int32"), ("int64", "int32"), ("int32", "uint8"), ("int64", "int64")]
)
def test_powers_of_integers_by_integers_of_many_values(kind, other, known):
    """Exponents that differ from element to element went by way of float64, and stayed at the end of the type."""
    info, rng = np.iinfo(kind), np.random.default_rng(7)
    x = np.array([info.max, info.min, info.max - 1, 0, 0, 1, -1, -1, 3, 7, *rng.integers(-9, 9, 23)], kind)
    e = np.array([2, 3, 5, 0, 4, 9, 8, 7, 40, 0, *rng.integers(0, 12, 23)], other)
    if e.dtype.kind == "i":
        x, e = np.append(x, [1, -1, -1, 5, 0]).astype(kind), np.append(e, [-3, -2, -1, -1, -2]).astype(other)
    nodes, types = (
        [helper.make_node("Pow", ["x", "e"], ["y"])],
        [helper.np_dtype_to_tensor_dtype(v.dtype) for v in (x, e)],
    )
    inputs = [value("x", x.shape, types[0]), value("e", e.shape, types[1])]
    made = model(nodes, inputs[: 1 if known else 2], [value("y", None, types[0])], {"e": e} if known else {}, 15)
    found = tvmopt.compile(made, records=False, verify=False).model.run({"x": x} if known else {"x": x, "e": e})["y"]
    of_negative = {0: info.min, 1: 1}
    exact = [
        int(a) ** int(b) if b >= 0 else (-1) ** int(-b) if a == -1 else of_negative.get(int(a), 0)
        for a, b in zip(x, e, strict=True)
    ]
    assert found.astype(object).tolist() == [(v - info.min) % (1 << info.bits) + info.min for v in exact]


@pytest.mark.parametrize("kind", ["int32", "uint32"])
@pytest.mark.parametrize("shape, axis", [((17, 3), 1), ((4, 33), 1), ((9, 2), 0), ((7,), 0)])
def test_sums_that_wrap_around_do_so_before_a_cast(kind, shape, axis):
    """LLVM widened sums of 32 bits to the 64 of the cast behind them (fuzz, mutant 152001:18784)."""
    info = np.iinfo(kind)
    x = np.random.default_rng(0).choice(np.array([info.max, 5, 1, info.min, info.max - 3], kind), shape)
    narrow, wide = (helper.np_dtype_to_tensor_dtype(np.dtype(d)) for d in (kind, "int64"))
    nodes = [helper.make_node("CumSum", ["x", "a"], ["s"]), helper.make_node("Cast", ["s"], ["y"], to=wide)]
    made = model(nodes, [value("x", shape, narrow)], [value("y", None, wide)], {"a": np.array(axis)}, 14)
    found = tvmopt.compile(made, records=False, verify=False).model(x)
    np.testing.assert_array_equal(found, np.cumsum(x, axis, dtype=kind).astype(np.int64))
