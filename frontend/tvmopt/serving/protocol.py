"""Requests and answers of the Open Inference Protocol v2 in JSON, with binary tensors behind it - for REST.

A binary tensor is a slice of the body: nothing is copied until the model reads it. What a model would refuse is refused
here, before any work: names, datatypes, shapes, lengths.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from tvmopt.dims import is_open
from tvmopt.errors import InputError
from tvmopt.runtime.model import Model
from tvmopt.runtime.tensors import Array, TensorInfo, address, memory_at
from tvmopt.serving.refusals import Refused, bad

DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64",
    "bfloat16": "BF16",
}  # fmt: skip
"""The protocol's name of each dtype."""

HEADER = "inference-header-content-length"

T = TypeVar("T")


@dataclass
class Request:
    """What a client asks for.

    Attributes:
        feeds: arrays by name. outputs: the names wanted, each with whether it is sent in binary. heads: of a
            :class:`Plan`.
    """

    feeds: dict[str, Array]
    outputs: dict[str, bool]
    id: str = ""
    heads: dict[Any, Any] = field(default_factory=dict)


def metadata(name: str, versions: Sequence[str], model: Model) -> dict[str, Any]:
    """What the protocol tells of a model; an open size is -1."""

    def told(infos: Sequence[TensorInfo]) -> list[dict[str, Any]]:
        return [{"name": i.name, "datatype": DATATYPES[i.dtype], "shape": sizes(i)} for i in infos]

    return {
        "name": name, "versions": list(versions), "platform": "tvmopt", "inputs": told(model.inputs),
        "outputs": told(model.outputs),
    }  # fmt: skip


def sizes(info: TensorInfo) -> list[int]:
    """A shape as the protocol has it."""
    return [d if isinstance(d, int) else -1 for d in info.shape]


def checked_shape(info: TensorInfo, datatype: Any, shape: Any) -> tuple[int, ...]:
    """The shape of a tensor that claims to be an input.

    Raises:
        Refused: it is not what the model takes.
    """
    if datatype != DATATYPES[info.dtype]:
        raise bad(f"the input {info.name!r} is {DATATYPES[info.dtype]}, not {datatype}.")
    if not isinstance(shape, list | tuple) or any(type(d) is not int or d < 0 for d in shape):
        raise bad(f"the shape of {info.name!r} is no list of sizes.")
    found = tuple(shape)
    if not info.fits(found):
        wanted = ",".join(map(str, info.shape))
        raise bad(f"the shape of {info.name!r} is {list(found)}, the model takes [{wanted}].")
    return found


def check_names(model: Model, given: Sequence[Any]) -> None:
    """Every input once, and no other.

    Raises:
        Refused: otherwise.
    """
    names = [i.name for i in model.inputs]
    if sorted(map(str, given)) != sorted(names):
        raise bad(
            f"the request has the inputs {', '.join(map(str, given)) or 'none'}; the model takes {', '.join(names)}."
        )


def check_sizes(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Open sizes within their ranges, that agree.

    Raises:
        Refused: otherwise.
    """
    if any(is_open(i.shape) for i in model.inputs):
        try:
            model.bind([shapes[i.name] for i in model.inputs])
        except InputError as error:
            raise bad(error.what) from None


def from_bytes(info: TensorInfo, shape: tuple[int, ...], data: Any) -> Array:
    """An array over bytes.

    Raises:
        Refused: they are too many or too few.
    """
    dtype = info.numpy_dtype
    wanted = prod(shape) * dtype.itemsize
    if len(data) != wanted:
        raise bad(f"the input {info.name!r} has {len(data)} bytes; its shape and datatype are {wanted}.")
    array = np.frombuffer(data, np.uint8).view(dtype) if wanted else np.empty(0, dtype)
    if not array.flags.writeable:  # no call writes into it, and one of a writable array is sooner
        array = memory_at(address(array), dtype, array.shape, owner=array)
    return array.reshape(shape)


def from_list(info: TensorInfo, shape: tuple[int, ...], data: Any) -> Array:
    """An array of numbers in JSON, flat or nested; nothing is rounded to another kind of number.

    Raises:
        Refused: they are not as many, or not such numbers.
    """
    dtype = info.numpy_dtype
    if info.dtype == "bfloat16":
        raise bad(f"the input {info.name!r} is BF16, which has no JSON: send it as binary data.")
    try:
        array = np.asarray(data)
    except ValueError:
        raise bad(f"the data of {info.name!r} is no regular list of numbers.") from None
    kinds = {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}[dtype.kind]
    if array.size and array.dtype.kind not in kinds:
        raise bad(f"the data of {info.name!r} is not {DATATYPES[info.dtype]}.")
    if array.size != prod(shape):
        raise bad(f"the data of {info.name!r} has {array.size} elements; its shape has {prod(shape)}.")
    if array.size and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise bad(f"the data of {info.name!r} is beyond {DATATYPES[info.dtype]}.")
    with np.errstate(over="ignore"):
        return array.astype(dtype).reshape(shape)


def from_numpy(model: Model, given: Mapping[str, Any]) -> Request:
    """A request of arrays.

    Raises:
        Refused: they are not what the model takes.
    """
    check_names(model, [*given])
    infos = {i.name: i for i in model.inputs}
    arrays = {name: np.asarray(array) for name, array in given.items()}
    for name, array in arrays.items():
        if array.dtype != infos[name].numpy_dtype:
            raise bad(f"the input {name!r} is {infos[name].dtype}, not {array.dtype}.")
        checked_shape(infos[name], DATATYPES[infos[name].dtype], array.shape)
    check_sizes(model, {name: array.shape for name, array in arrays.items()})
    return Request(arrays, {o.name: True for o in model.outputs})


class Given(NamedTuple):
    """An input as a request tells it.

    Attributes:
        size: its bytes behind the JSON; None: none, it is the list `data`.
    """

    info: TensorInfo
    shape: tuple[int, ...]
    size: int | None = 0
    data: Any = None


@dataclass(frozen=True)
class Plan:
    """What the part of a request says that is before its tensors: a client says the same again and again.

    Attributes:
        inputs: in the order of their data. outputs: see :class:`Request`. heads: what answers say before their tensors,
            see :func:`head_of`.
    """

    inputs: list[Given]
    outputs: dict[str, bool]
    id: str = ""
    heads: dict[Any, Any] = field(default_factory=dict)

    def request(self, feeds: dict[str, Array]) -> Request:
        return Request(feeds, self.outputs, self.id, self.heads)


class Plans:
    """Plans of each model by the bytes that they were read from: half of what it takes to read a small request."""

    MOST, ANSWERS, LONGEST = 64, 16, 4 << 10

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Model, dict[bytes, Plan]] = WeakKeyDictionary()

    def of(self, model: Model, head: bytes, read: Callable[[Model, bytes], Plan]) -> Plan:
        """The plan that `head` says to a model.

        Raises:
            Refused: it is not what the model takes; by `read`.
        """
        known = self._known.setdefault(model, {})
        if (plan := known.get(head)) is not None:
            return plan
        plan = read(model, head)
        if len(head) <= self.LONGEST and all(one.size is not None for one in plan.inputs):
            if len(known) >= self.MOST:
                known.clear()
            known[head] = plan
        return plan


_plans = Plans()


def decode(model: Model, body: bytes | memoryview, header: str | None) -> Request:
    """A request from the body of an HTTP request.

    Args:
        header: the length of the JSON in front of binary data, as the client says it; None: all is JSON.

    Raises:
        Refused: it is not what the protocol or the model takes.
    """
    view = memoryview(body)
    length = _length(header, len(view))
    plan = _plans.of(model, bytes(view[:length]), _read)
    return plan.request(_sliced(plan.inputs, view, length))


def _read(model: Model, head: bytes) -> Plan:
    try:
        told = json.loads(head)
    except (ValueError, RecursionError):
        raise bad(
            "the request is no JSON (a client of binary tensors says its length in Inference-Header-Content-Length)."
        ) from None
    if not isinstance(told, dict) or not isinstance(told.get("inputs"), list):
        raise bad("the request has no list of inputs.")
    inputs = _inputs(model, told["inputs"])
    return Plan(inputs, *_wanted(model, told))


def tensors(model: Model, inputs: Any, view: bytes | memoryview = b"", at: int = 0) -> dict[str, Array]:
    """The inputs of a model as a request's JSON tells them.

    Args:
        view: the whole body. at: where the binary data begins in it.

    Raises:
        Refused: they are not what the model takes.
    """
    return _sliced(_inputs(model, inputs), view, at)


def _inputs(model: Model, inputs: Any) -> list[Given]:
    """The inputs of JSON, checked but for their data."""
    if not isinstance(inputs, list) or not all(isinstance(i, dict) for i in inputs):
        raise bad("an input is an object with name, datatype, shape and data.")
    check_names(model, [i.get("name") for i in inputs])
    infos, found = {i.name: i for i in model.inputs}, []
    shapes = {i["name"]: checked_shape(infos[i["name"]], i.get("datatype"), i.get("shape")) for i in inputs}
    check_sizes(model, shapes)
    for one in inputs:
        info = infos[one["name"]]
        size = _parameters(one).get("binary_data_size")
        if size is None and "data" not in one:
            raise bad(f"the input {info.name!r} has no data.")
        if size is not None and (type(size) is not int or size < 0):
            raise bad(f"the binary data of {info.name!r} does not lie in the body.")
        found.append(Given(info, shapes[info.name], size, one.get("data") if size is None else None))
    return found


def _sliced(inputs: list[Given], view: bytes | memoryview, at: int) -> dict[str, Array]:
    feeds = {}
    for info, shape, size, data in inputs:
        if size is None:
            feeds[info.name] = from_list(info, shape, data)
            continue
        if at + size > len(view):
            raise bad(f"the binary data of {info.name!r} does not lie in the body.")
        feeds[info.name] = from_bytes(info, shape, view[at : at + size])
        at += size
    if at != len(view):
        raise bad(f"the body has {len(view) - at} bytes that belong to no input.")
    return feeds


def _length(header: str | None, size: int) -> int:
    if header is None:
        return size
    if not header.isascii() or not header.isdigit() or int(header) > size:
        raise bad("Inference-Header-Content-Length is no length within the body.")
    return int(header)


def _parameters(one: Mapping[str, Any]) -> Mapping[str, Any]:
    found = one.get("parameters") or {}
    if not isinstance(found, dict):
        raise bad("parameters are an object.")
    check_parameters(set(found))
    return found


def check_parameters(names: set[str]) -> None:
    """Raises:
    Refused: a parameter of a tensor that cannot be passed over.
    """
    if "classification" in names:
        raise bad(
            "classification is not supported: read the tensor itself, or compile the model with labels and top-k."
        )
    if "shared_memory_region" in names:
        raise bad("shared memory is not supported: send the tensor itself.")


def _wanted(model: Model, told: Mapping[str, Any]) -> tuple[dict[str, bool], str]:
    """The outputs that JSON asks for, and its id."""
    every = bool(_parameters(told).get("binary_data_output", False))
    asked = told.get("outputs") or [{"name": o.name} for o in model.outputs]
    if not isinstance(asked, list) or not all(isinstance(o, dict) for o in asked):
        raise bad("outputs are a list of objects with a name.")
    outputs = {str(o.get("name")): bool(_parameters(o).get("binary_data", every)) for o in asked}
    check_outputs(model, outputs)
    request_id = told.get("id", "")
    if not isinstance(request_id, str):
        raise bad("the id is no text.")
    return outputs, request_id


def check_outputs(model: Model, names: Any) -> None:
    """Raises:
    Refused: an output that the model lacks.
    """
    known = [o.name for o in model.outputs]
    for name in names:
        if name not in known:
            raise bad(f"the model has no output {name!r}; it has {', '.join(known)}.")


def encode(
    request: Request, name: str, version: str, found: Mapping[str, Array], model: Model
) -> tuple[bytes, int | None]:
    """The body of the answer, and the length of its JSON where binary data follows.

    Raises:
        Refused: an output that has no JSON.
    """
    if not all(request.outputs.values()):
        return _encode_json(request, name, version, found, model)
    tensors = [found[key] for key in request.outputs]

    def told() -> bytes:
        outputs = [
            _told(i, a) | {"parameters": {"binary_data_size": a.nbytes}} for i, a in _infos(request, model, found)
        ]
        return json.dumps(_answer(request, name, version, outputs)).encode()

    head = head_of(request, name, version, tensors, told)
    return b"".join([head, *(array.tobytes() for array in tensors)]), len(head)


def head_of(request: Request, name: str, version: str, tensors: list[Array], told: Callable[[], T]) -> T:
    """What an answer says before its tensors: for tensors of the same shapes it is the same."""
    key = (name, version, *(array.shape for array in tensors))
    head: T | None = request.heads.get(key)
    if head is None:
        if len(request.heads) >= Plans.ANSWERS:
            request.heads.clear()
        head = request.heads[key] = told()
    return head


def _infos(request: Request, model: Model, found: Mapping[str, Array]) -> list[tuple[TensorInfo, Array]]:
    infos = {o.name: o for o in model.outputs}
    return [(infos[key], found[key]) for key in request.outputs]


def _told(info: TensorInfo, array: Array) -> dict[str, Any]:
    return {"name": info.name, "datatype": DATATYPES[info.dtype], "shape": list(array.shape)}


def _answer(request: Request, name: str, version: str, outputs: list[dict[str, Any]]) -> dict[str, Any]:
    answer = {"model_name": name, "model_version": version, "outputs": outputs}
    return answer | {"id": request.id} if request.id else answer


def _encode_json(
    request: Request, name: str, version: str, found: Mapping[str, Array], model: Model
) -> tuple[bytes, int | None]:
    """Where not every output is binary.

    JSON has no NaN and no infinities. Triton writes them all the same, which most readers of JSON do not take, and a
    null is not told from one another: whoever wants them asks for binary data.
    """
    outputs, tail = [], []
    for info, array in _infos(request, model, found):
        one = _told(info, array)
        if request.outputs[info.name]:
            data = np.ascontiguousarray(array).tobytes()
            one["parameters"] = {"binary_data_size": len(data)}
            tail.append(data)
        elif info.dtype == "bfloat16":
            raise bad(f"the output {info.name!r} is BF16, which has no JSON: ask for binary data.")
        else:
            one["data"] = array.ravel().tolist()
        outputs.append(one)
    try:
        head = json.dumps(_answer(request, name, version, outputs), allow_nan=False).encode()
    except ValueError:
        wrong = [o["name"] for o in outputs if "data" in o and not np.isfinite(found[o["name"]]).all()]
        names = ", ".join(map(repr, wrong))
        raise bad(f"JSON has no NaN and no infinities, which there are in {names}: ask for binary data.") from None
    return (b"".join([head, *tail]), len(head)) if tail else (head, None)


def unsupported(model: Model) -> str:
    """Why the protocol cannot carry a model's tensors; empty where it can."""
    wrong = [f"{i.name} ({i.dtype})" for i in (*model.inputs, *model.outputs) if i.dtype not in DATATYPES]
    return f"the protocol has no datatype for {', '.join(wrong)}" if wrong else ""


__all__ = ["DATATYPES", "HEADER", "Refused", "Request", "decode", "encode", "metadata", "unsupported"]
