"""Calibration by NNCF or onnxruntime, in a process of its own, where NNCF does not tell Google Analytics of its use."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import onnx

from tvmopt import children
from tvmopt.errors import InputError, MissingDependency, ModelError, TvmoptError, reason
from tvmopt.quantization.data import Data, Input

METHODS = ("auto", "nncf", "onnxruntime")
PRESETS = ("performance", "mixed")


def chosen(method: str) -> str:
    """The method that "auto" means here.

    Raises:
        InputError: an unknown one.
        MissingDependency: NNCF is asked for and not installed.
    """
    if method not in METHODS:
        raise InputError(f"There is no method '{method}'.", where="--method", fix=f"one of {', '.join(METHODS)}")
    here = find_spec("nncf") is not None
    if method == "nncf" and not here:
        raise MissingDependency("NNCF is not installed.", where="--method nncf", fix="pip install 'tvmopt[quantize]'")
    return ("nncf" if here else "onnxruntime") if method == "auto" else method


def calibrate(
    method: str,
    model: str,
    output: str,
    data: Data,
    inputs: Sequence[Input],
    *,
    preset: str,
    smooth_quant: bool,
    exclude: Sequence[str],
    progress: children.Progress | None = None,
) -> str:
    """Write the quantised model of a file to another file; the method's name and version.

    Raises:
        ModelError: the method cannot quantise this model.
    """
    arguments = {
        "method": method, "model": model, "output": output, "data": vars(data), "inputs": [vars(i) for i in inputs],
        "preset": preset, "smooth_quant": smooth_quant, "exclude": list(exclude),
    }  # fmt: skip
    quiet = {"NNCF_CI": "1", "NO_COLOR": "1"}
    where = "tvmopt.quantization.calibrate:in_child"
    return str(children.call(where, arguments, progress=progress, environment=quiet))


def in_child(
    *, method: str, data: dict[str, Any], inputs: list[dict[str, Any]], progress: Callable[[str], None], **rest: Any
) -> str:
    """:func:`calibrate`, in the child."""
    source = Data(data["path"], data["samples"], tuple(data["mean"]), tuple(data["std"]))
    known = [Input(i["name"], i["dtype"], tuple(i["shape"])) for i in inputs]
    progress(f"calibrating with {method}")
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return {"nncf": _nncf, "onnxruntime": _onnxruntime}[method](source, known, **rest)
    except TvmoptError:
        raise
    except Exception as error:  # foreign code on a foreign model
        lines = reason(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"{method} cannot quantise this model: {lines[-1][:300]}",
            where=f"{type(error).__name__} in {method}",
            fix="try the other --method, or --exclude the nodes that it names",
        ) from error


def _nncf(
    data: Data, inputs: list[Input], model: str, output: str, preset: str, smooth_quant: bool, exclude: list[str]
) -> str:
    """By NNCF, with fast bias correction. Its reduced range for the first layer is for machines whose products of bytes
    saturate: ours do not."""
    import nncf
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, OverflowFix

    samples = list(data.feeds(inputs))
    quantised = nncf.quantize(
        onnx.load(model),
        nncf.Dataset(samples),
        preset=nncf.QuantizationPreset(preset),
        target_device=nncf.TargetDevice.CPU,
        subset_size=len(samples),
        fast_bias_correction=True,
        model_type=nncf.ModelType.TRANSFORMER if smooth_quant else None,
        ignored_scope=nncf.IgnoredScope(names=exclude) if exclude else None,
        advanced_parameters=AdvancedQuantizationParameters(overflow_fix=OverflowFix.DISABLE),
    )
    onnx.save(quantised, output)
    return f"nncf {nncf.__version__}"


def _onnxruntime(
    data: Data, inputs: list[Input], model: str, output: str, preset: str, smooth_quant: bool, exclude: list[str]
) -> str:
    """By onnxruntime: least and largest values, a scale for each channel of a weight."""
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    if smooth_quant:
        raise MissingDependency("SmoothQuant needs NNCF.", where="--smooth-quant", fix="pip install 'tvmopt[quantize]'")

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = data.feeds(inputs)

        def get_next(self) -> Any:
            return next(self.left, None)

    symmetric = preset == "performance"
    quantize_static(
        model,
        output,
        Reader(),
        per_channel=True,
        activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=exclude,
        extra_options={
            "ActivationSymmetric": symmetric,
            "WeightSymmetric": True,
            "QDQKeepRemovableActivations": True,
        },
    )
    return f"onnxruntime {onnxruntime.__version__}"
