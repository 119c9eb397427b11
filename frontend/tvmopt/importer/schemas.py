"""Does a node fit its operator: arity, attributes and their values, bodies - all that a schema can say of it.

Shape inference and converters rely on this: strides, dilations, groups and the like are positive (they divide
by them), string attributes have one of their values, an attribute holds what it says it holds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import onnx

from tvmopt.importer.contrib_schemas import DOMAIN, contrib_schema
from tvmopt.importer.protos import KINDS, normal_domain, words

POSITIVE = frozenset(
    {"strides", "dilations", "kernel_shape", "group", "blocksize", "num_groups", "num_outputs"}
    | {"num_heads", "q_num_heads", "kv_num_heads", "hidden_size", "size", "p"}
)
"""Attributes that are sizes, and the power of a norm: zero makes no sense, and some of ONNX's shape functions divide by
them."""

SWITCHES = words(
    """allowzero align_corners ceil_mode center_point_box count_include_pad detect_negative detect_positive
    exclusive is_causal keepdims largest noop_with_empty_axes reverse select_last_index sorted training_mode
    transA transB"""
)
"""Attributes that are 0 or 1; other numbers mean different things to different runtimes."""

CHOICES = {
    "auto_pad": "NOTSET SAME_UPPER SAME_LOWER VALID",
    "coordinate_transformation_mode": "half_pixel half_pixel_symmetric pytorch_half_pixel "
    "align_corners asymmetric tf_half_pixel_for_nn tf_crop_and_resize output_half_pixel",
    "nearest_mode": "round_prefer_floor round_prefer_ceil floor ceil",
    "keep_aspect_ratio_policy": "stretch not_larger not_smaller",
    "padding_mode": "zeros border reflection",
    "reduction": "none add mul max min sum mean",
    "approximate": "none tanh",
    "direction": "LEFT RIGHT forward reverse bidirectional",
    "Resize.mode": "nearest linear cubic",
    "Upsample.mode": "nearest linear bilinear",
    "Pad.mode": "constant reflect edge wrap",
    "DepthToSpace.mode": "DCR CRD",
    "GridSample.mode": "bilinear nearest bicubic linear cubic",
    "RoiAlign.mode": "avg max",
}
"""Values of the string attributes (``operator.attribute`` where operators differ) that have a fixed set."""


_TERM = rb"[A-Za-z]*(\.\.\.)?[A-Za-z]*"
EQUATION = re.compile(rb"%(t)b(,%(t)b)*(->%(t)b)?" % {b"t": _TERM})
"""Of an Einsum, without spaces."""


def node_problems(node: onnx.NodeProto, opsets: dict[str, int], functions: set[tuple[str, str]]) -> Iterator[str]:
    """What is wrong with one node, in sentences.

    Args:
        opsets: version of each domain.
        functions: (domain, name) of the model's own functions, which have no schema.
    """
    if not node.op_type:
        yield "A node names no operator."
        return
    derived = {"num_heads"} if node.op_type == "RotaryEmbedding" else set()  # 0: as many as fit
    broken = [text for attr in node.attribute for text in _attribute_problems(attr, POSITIVE - derived)]
    names = [a.name for a in node.attribute]
    broken += [f"Attribute '{n}' is given twice." for n in sorted({n for n in names if names.count(n) > 1})]
    yield from broken
    key = (normal_domain(node.domain), node.op_type)
    if broken or key in functions or key[0] not in opsets:
        return
    schema = described(key[1], key[0], opsets[key[0]])
    if schema is None:
        return  # no such operator: the importer's check lists it with the others
    problems = [*_schema_problems(node, schema), *_equation_problems(node, key)]
    yield from problems
    if not problems and key[0] == "":
        yield from _body_problems(node, opsets[""])


def _equation_problems(node: onnx.NodeProto, key: tuple[str, str]) -> Iterator[str]:
    """ONNX's shape function of Einsum never ends where a term of the equation is none."""
    if key != ("", "Einsum"):
        return
    for attribute in node.attribute:
        if attribute.name == "equation" and not EQUATION.fullmatch(attribute.s.replace(b" ", b"")):
            text = attribute.s.decode(errors="backslashreplace")
            yield f"The equation '{text}' is none: terms are letters and at most one '...', as in 'bij,bjk->bik'."


def schema_of(op_type: str, domain: str, opset: int) -> Any | None:
    """The schema of an operator in a version of its domain; None where ONNX has none.

    Of an operator of ONNX that is younger it is the first one: converters take a node of it as that says.
    """
    try:
        return onnx.defs.get_schema(op_type, max(opset, 1), domain)
    except (onnx.defs.SchemaError, TypeError, OverflowError):
        pass
    versions = range(max(opset, 0) + 1, onnx.defs.onnx_opset_version() + 1) if not domain else ()
    first = next((version for version in versions if onnx.defs.has(op_type, version, "")), None)
    return None if first is None else onnx.defs.get_schema(op_type, first, "")


def described(op_type: str, domain: str, opset: int) -> Any | None:
    """The schema of ONNX, or what onnxruntime says of an operator of com.microsoft: enough to check a node, but not to
    infer shapes; None where nobody has any."""
    return contrib_schema(op_type) if domain == DOMAIN else schema_of(op_type, domain, opset)


def _body_problems(node: onnx.NodeProto, opset: int) -> Iterator[str]:
    """Branches and bodies take and give as many values as the operator around them needs."""
    taken, given = len(node.input), len(node.output)
    if node.op_type == "If":
        rules = {"then_branch": (0, given, given), "else_branch": (0, given, given)}
    elif node.op_type == "Loop":
        taken = max(taken, 2)
        rules = {"body": (taken, max(given + 1, taken - 1), sys.maxsize)}
    elif node.op_type == "Scan" and opset >= 9:
        rules = {"body": (taken, given, given)}
    else:
        return
    for attr in node.attribute:
        if attr.name in rules and not attr.ref_attr_name:
            inputs, low, high = rules[attr.name]
            if len(attr.g.input) != inputs or not low <= len(attr.g.output) <= high:
                found = f"{len(attr.g.input)} inputs and {len(attr.g.output)} outputs"
                yield f"'{attr.name}' has {found}, which does not fit a {node.op_type} with {given} outputs."


def _attribute_problems(attr: onnx.AttributeProto, positive: frozenset[str]) -> Iterator[str]:
    """An attribute holds one value, of the type it says; those named in `positive`, numbers above zero."""
    if not attr.name:
        yield "An attribute has no name."
    if attr.ref_attr_name:
        return
    filled = [f.name for f, _ in attr.ListFields() if f.name in KINDS.values()]
    if attr.type not in KINDS:
        yield (
            f"Attribute '{attr.name}' has no type."
            if not attr.type
            else f"Attribute '{attr.name}' has type {attr.type}."
        )
        return
    wanted = KINDS[attr.type]
    wrong = [f for f in filled if f != wanted]
    single = wanted in ("t", "g", "tp", "sparse_tensor")
    if wrong or (single and not filled):
        yield f"Attribute '{attr.name}' says it holds '{wanted}' but holds {', '.join(filled) or 'nothing'}."
    values = {"ints": attr.ints, "i": [attr.i]}.get(wanted, [])
    if attr.name in positive and any(v < 1 for v in values):
        yield f"Attribute '{attr.name}' is {list(values)}; it must be positive."
    if attr.name in SWITCHES and wanted == "i" and attr.i not in (0, 1):
        yield f"Attribute '{attr.name}' is {attr.i}; it is a switch, 0 or 1."


def _schema_problems(node: onnx.NodeProto, schema: Any) -> Iterator[str]:
    """Arity and attribute types against the operator's schema."""
    for word, names, low, high in (
        ("inputs", node.input, schema.min_input, schema.max_input),
        ("outputs", node.output, schema.min_output, schema.max_output),
    ):
        found = len(names)
        while found > low and not names[found - 1]:
            found -= 1
        if not low <= found <= high:
            upper = "" if high == low else " or more" if high > 1000 else f" to {high}"
            yield f"{schema.name} takes {low}{upper} {word}, not {found}."
    for i, name in enumerate(node.input):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)] if schema.inputs else None
        if not name and formal and formal.option != onnx.defs.OpSchema.FormalParameterOption.Optional:
            yield f"{schema.name} cannot do without its input {i}, '{formal.name}'."
    given = {a.name: a for a in node.attribute}
    for name, attr in given.items():
        if name not in schema.attributes:
            yield f"{schema.name} (opset {schema.since_version}) has no attribute '{name}'."
            continue
        wanted = schema.attributes[name].type
        if int(wanted.value if hasattr(wanted, "value") else wanted) != attr.type:
            found_type = onnx.AttributeProto.AttributeType.Name(attr.type)
            yield f"Attribute '{name}' of {schema.name} is {found_type}, not {wanted.name}."
        allowed = CHOICES.get(f"{schema.name}.{name}") or CHOICES.get(name, "")
        text = attr.s.decode("utf-8", "replace")
        fixed = allowed and schema.domain in ("", DOMAIN) and attr.type == attr.STRING and not attr.ref_attr_name
        if fixed and text not in allowed.split():
            yield f"Attribute '{name}' of {schema.name} is '{text}', not one of: {allowed}."
    for name, declared in schema.attributes.items():
        if declared.required and name not in given:
            yield f"{schema.name} lacks its attribute '{name}'."
