"""Tensors by onnxruntime's names: `OrtValue`, and an `IOBinding` of them to a model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

import ml_dtypes
import numpy as np

from tvmopt.onnxruntime.exceptions import InvalidArgument, Refusing, missing
from tvmopt.runtime.tensors import Array, memory_at

TYPES = {
    1: ("float", np.float32), 2: ("uint8", np.uint8), 3: ("int8", np.int8), 4: ("uint16", np.uint16),
    5: ("int16", np.int16), 6: ("int32", np.int32), 7: ("int64", np.int64), 9: ("bool", np.bool_),
    10: ("float16", np.float16), 11: ("double", np.float64), 12: ("uint32", np.uint32), 13: ("uint64", np.uint64),
    16: ("bfloat16", ml_dtypes.bfloat16),
}  # fmt: skip
"""TensorProto.DataType -> onnxruntime's word and NumPy's type."""

WORDS = {np.dtype(kind): word for word, kind in TYPES.values()}
DTYPES = {f"tensor({word})": dtype for dtype, word in WORDS.items()}
"""onnxruntime's name of a tensor's type -> NumPy's type."""


def type_name(dtype: Any) -> str:
    """As onnxruntime writes a tensor's type.

    >>> type_name(np.float32)
    'tensor(float)'
    """
    return f"tensor({WORDS.get(np.dtype(dtype), np.dtype(dtype).name)})"


class OrtDevice(Refusing):
    """Where memory is: on the CPU."""

    def __init__(self, device_type: str = "cpu", device_id: int = 0) -> None:
        _on_cpu(device_type)
        self._id = device_id

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        _on_cpu(ort_device_name, vendor_id)
        return OrtDevice(ort_device_name, device_id)

    def device_type(self) -> int:
        """onnxruntime's number of the CPU."""
        return 0

    def device_id(self) -> int:
        return self._id

    def device_mem_type(self) -> int:
        return 0

    def device_vendor_id(self) -> int:
        return 0


def _on_cpu(device_type: str, vendor_id: int = -1, memory_info: Any = None) -> None:
    if str(device_type).lower() != "cpu" or int(vendor_id) > 0 or memory_info is not None:
        told = "a memory_info" if memory_info is not None else f"vendor_id {vendor_id}" if int(vendor_id) > 0 else ""
        fix = "give arrays in the host's memory; tvmopt.load runs CUDA artifacts"
        raise missing(told or f"device {device_type!r}", fix)


class OrtValue(Refusing):
    """A tensor in the host's memory; made by the functions whose names begin with ``ortvalue_from``."""

    def __init__(self, array: Array) -> None:
        self._array = array

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> Self:
        """Over the memory of an array; only one whose elements do not lie in order is copied."""
        _on_cpu(device_type, vendor_id)
        array = np.asarray(numpy_obj, order="C")
        if array.dtype not in WORDS:
            fix = f"give an array of {', '.join(sorted(d.name for d in WORDS))}"
            raise InvalidArgument(f"there is no OrtValue of {array.dtype}.", where="ortvalue_from_numpy", fix=fix)
        return cls(array)

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Any, onnx_element_type: int) -> Self:
        """Over the memory of an array, read as another type of the same width, by ONNX's number: bfloat16 of uint16."""
        array, dtype = np.asarray(data), _dtype(onnx_element_type)
        if array.dtype.itemsize != dtype.itemsize:
            what = f"{array.dtype} has elements of {array.dtype.itemsize} bytes, {dtype} of {dtype.itemsize}."
            raise InvalidArgument(what, fix="give an array whose elements are as wide")
        return cls(array.view(dtype))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0,
        vendor_id: int = -1, memory_info: Any = None,
    ) -> Self:  # fmt: skip
        """Of zeros; `element_type` is NumPy's type or ONNX's number."""
        _on_cpu(device_type, vendor_id, memory_info)
        return cls(np.zeros(shape, _dtype(element_type)))

    @classmethod
    def from_dlpack(cls, data: Any, is_bool_tensor: bool = False) -> Self:
        """Over the memory of a tensor of another library."""
        array = np.from_dlpack(data)
        return cls(array.view(np.bool_) if is_bool_tensor else array)

    def __dlpack__(self, *args: Any, **named: Any) -> Any:
        return self._array.__dlpack__(*args, **named)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def numpy(self) -> Array:
        """The tensor as an array over the same memory."""
        return self._array

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def data_type(self) -> str:
        return type_name(self._array.dtype)

    def element_type(self) -> int:
        """ONNX's number of the element type."""
        return next(number for number, (_, kind) in TYPES.items() if np.dtype(kind) == self._array.dtype)

    def data_ptr(self) -> int:
        return int(self._array.__array_interface__["data"][0])

    def tensor_size_in_bytes(self) -> int:
        return self._array.nbytes

    def device_name(self) -> str:
        return "cpu"

    def is_tensor(self) -> bool:
        return True

    def has_value(self) -> bool:
        return True

    def is_sparse_tensor(self) -> bool:
        return False

    def is_tensor_sequence(self) -> bool:
        return False

    def update_inplace(self, data: Any) -> None:
        """Overwrite the tensor's memory with an array of its type and as many elements."""
        array = data.numpy() if isinstance(data, OrtValue) else np.asarray(data)
        if array.size != self._array.size or array.dtype != self._array.dtype:
            what = f"the tensor is {self._array.dtype}{list(self._array.shape)}, "
            fix = "give an array of the tensor's type and shape"
            raise InvalidArgument(
                f"{what}the update {array.dtype}{list(array.shape)}.", where="update_inplace", fix=fix
            )
        self._array[...] = array.reshape(self._array.shape)


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy tensors into the memory of others.

    Raises:
        InvalidArgument: they are not as many, or not of the same types and sizes.
    """
    if len(src) != len(dst):
        raise InvalidArgument(f"{len(src)} tensors are to be copied into {len(dst)}.", fix="give as many of each")
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source)


class Session(Protocol):
    """What a binding needs of a session."""

    def get_inputs(self) -> Sequence[Any]: ...

    def get_outputs(self) -> Sequence[Any]: ...

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Array]: ...


class IOBinding(Refusing):
    """Inputs and outputs of a session, bound to memory."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._inputs: dict[str, Array] = {}
        self._outputs: dict[str, Array | None] = {}  # None: memory of the run's own
        self._found: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an input to an array."""
        self._inputs[self._known(name, self._session.get_inputs())] = np.asarray(arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to a tensor."""
        self.bind_cpu_input(name, ortvalue.numpy())

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind an input to memory at an address."""
        _on_cpu(device_type)
        self.bind_cpu_input(name, _at(buffer_ptr, element_type, shape))

    def bind_output(
        self, name: str, device_type: str = "cpu", device_id: int = 0, element_type: Any = None,
        shape: Sequence[int] | None = None, buffer_ptr: int | None = None,
    ) -> None:  # fmt: skip
        """Bind an output to memory at an address, or to memory that the run makes."""
        _on_cpu(device_type)
        name = self._known(name, self._session.get_outputs())
        self._outputs[name] = _at(buffer_ptr, element_type, shape or ()) if buffer_ptr else None

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to a tensor's memory."""
        self._outputs[self._known(name, self._session.get_outputs())] = ortvalue.numpy()

    def synchronize_inputs(self) -> None:
        """Nothing to wait for on a CPU."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for on a CPU."""

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order in which they were bound."""
        return list(self._found)

    def get_outputs_as_ortvaluevector(self) -> list[OrtValue]:
        """The same as :meth:`get_outputs`."""
        return self.get_outputs()

    def copy_outputs_to_cpu(self) -> list[Array]:
        """The outputs of the last run as arrays."""
        return [value.numpy() for value in self._found]

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()

    def run(self, run_options: Any = None) -> None:
        """What the session's `run_with_iobinding` calls."""
        names = list(self._outputs)
        if not names:
            raise InvalidArgument("no output is bound.", fix="call bind_output for each output that is wanted")
        self._found = []
        for name, array in zip(names, self._session.run(names, self._inputs, run_options), strict=True):
            place = self._outputs[name]
            if place is not None:
                if place.shape != array.shape or place.dtype != array.dtype:
                    what = f"the output {name!r} is {array.dtype}{list(array.shape)}, it is bound to "
                    fix = "bind it to memory of that type and shape, or to none"
                    raise InvalidArgument(f"{what}{place.dtype}{list(place.shape)}.", where=name, fix=fix)
                place[...] = array
            self._found.append(OrtValue(array if place is None else place))

    def _known(self, name: str, nodes: Sequence[Any]) -> str:
        if name not in {node.name for node in nodes}:
            fix = f"the names are {', '.join(node.name for node in nodes)}"
            raise InvalidArgument(f"Failed to find the name {name!r} in the model.", where=name, fix=fix)
        return name


def _dtype(element_type: Any) -> Any:
    if isinstance(element_type, int):
        if element_type not in TYPES:
            raise InvalidArgument(f"the element type {element_type} is not supported.", fix=f"one of {sorted(TYPES)}")
        return np.dtype(TYPES[element_type][1])
    return np.dtype(element_type)


def _at(address: int, element_type: Any, shape: Sequence[int]) -> Array:
    """The memory at an address as an array; the caller keeps it alive."""
    return memory_at(address, _dtype(element_type), tuple(shape))
