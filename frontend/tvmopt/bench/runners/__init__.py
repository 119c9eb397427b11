"""The engines `tvmopt bench` can time: one table, each imported only in its own process."""

from __future__ import annotations

import difflib
from importlib import import_module

from tvmopt.bench.records import Job
from tvmopt.bench.runners.base import Runner
from tvmopt.errors import InputError

RUNNERS: dict[str, tuple[str, str]] = {  # name -> (module:class, what it is)
    "tvmopt": ("tvmopt.bench.runners.tvmopt:Tvmopt", "this compiler"),
    "onnxruntime": ("tvmopt.bench.runners.onnxruntime:OnnxRuntime", "onnxruntime, CPU provider"),
    "onnxruntime-cuda": ("tvmopt.bench.runners.onnxruntime:OnnxRuntimeCuda", "onnxruntime, CUDA provider"),
    "onnxruntime-tensorrt": (
        "tvmopt.bench.runners.onnxruntime:OnnxRuntimeTensorRT",
        "onnxruntime, TensorRT provider",
    ),
    "openvino": ("tvmopt.bench.runners.openvino:OpenVino", "OpenVINO, latency hint"),
    "tensorrt": ("tvmopt.bench.runners.tensorrt:TensorRT", "TensorRT, Python API"),
    "tvm": ("tvmopt.bench.runners.tvm:StockTvm", "TVM's own default pipeline"),
}

DECODERS: dict[str, tuple[str, str]] = {  # the same for `tvmopt bench --decode`
    "tvmopt": ("tvmopt.bench.runners.decoder:TvmoptDecoder", "this compiler"),
    "onnxruntime": ("tvmopt.bench.runners.decoder:OnnxRuntimeDecoder", "onnxruntime, caches bound as it returns them"),
    "onnxruntime-genai": ("tvmopt.bench.runners.decoder:OnnxRuntimeGenai", "onnxruntime-genai, its Generator"),
    "llama-cpp": ("tvmopt.bench.runners.decoder:LlamaCpp", "llama.cpp by llama-cpp-python, on a GGUF file"),
}


def runner_class(engine: str, phase: str = "") -> type[Runner]:
    """The class of an engine, for whole inferences or for a decoder; its package is not imported yet."""
    module, _, name = (DECODERS if phase else RUNNERS)[engine][0].partition(":")
    found: type[Runner] = getattr(import_module(module), name)
    return found


def make(job: Job) -> Runner:
    """The runner of a job."""
    return runner_class(job.engine, job.phase)(job)


def parse(spec: str, phase: str = "") -> tuple[str, dict[str, str]]:
    """An engine spec, ``name[:key=value...]`` with colons between options.

    >>> parse("onnxruntime:opt_level=basic:spinning=off")
    ('onnxruntime', {'opt_level': 'basic', 'spinning': 'off'})

    Raises:
        InputError: an unknown engine, with the nearest names, or an option without a value.
    """
    name, *options = spec.split(":")
    known = DECODERS if phase else RUNNERS
    if name not in known:
        near = difflib.get_close_matches(name, known, n=2, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        which = "no engine for decoders" if phase else "no engine"
        raise InputError(f"{which} {name!r}", where=f"engine {spec}", fix=f"{hint}there are {', '.join(known)}")
    pairs = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise InputError(
                f"option {option!r} of {name} has no value", where=f"engine {spec}", fix=f"{name}:{option}=VALUE"
            )
        pairs[key] = value
    return name, pairs
