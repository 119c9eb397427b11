"""What a session and a run are asked for, by onnxruntime's names.

Options that choose between onnxruntime's own ways of working (arenas, memory patterns, execution modes, levels of
optimisation) are taken and have no effect: results are the same. Entries of the configuration whose names begin with
``tvmopt.`` are tvmopt's own::

    options = SessionOptions()
    options.intra_op_num_threads = 2
    options.add_session_config_entry("tvmopt.precision", "bf16")
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any

from tvmopt.onnxruntime.exceptions import InvalidArgument, Settings, missing
from tvmopt.texts import whole_number

ENTRIES = {
    "tvmopt.precision": "fp32 (default), bf16: as `tvmopt compile --precision`",
    "tvmopt.verify": "1 (default): compare a compiled model with onnxruntime; 0: do not",
    "tvmopt.exact": "0 (default); 1: as `tvmopt compile --exact`",
    "tvmopt.cores": "the processors to run on, as `tvmopt run --cores`: 0-3, node0",
}
"""Entries of the configuration that have an effect, beside :data:`AFFINITIES`."""
AFFINITIES = "session.intra_op_thread_affinities"
"""onnxruntime's list of a set of processors a thread, counted from 1; here the threads share all of them."""


MOST = 1 << 16
"""Processors."""


class GraphOptimizationLevel(IntEnum):
    """Taken; every compile uses all passes."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Taken; kernels run one after the other, each on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """Taken; the order is the compiler's."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class _Entries(Settings):
    """Named texts."""

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def _add(self, key: str, value: str) -> None:
        self._entries[str(key)] = str(value)

    def _get(self, key: str, what: str) -> str:
        if key not in self._entries:
            raise InvalidArgument(
                f"the {what} has no entry {key!r}.", fix=f"it has {', '.join(self._entries) or 'none'}"
            )
        return self._entries[key]


class SessionOptions(_Entries):
    """How a session works.

    Attributes:
        intra_op_num_threads: threads of a call, the caller among them; 0: one per core.
        log_severity_level: 3 and above: nothing is said while a model is compiled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = ExecutionOrder.DEFAULT
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.use_deterministic_compute = False
        self.use_per_session_threads = True
        self.profile_file_prefix = "onnxruntime_profile_"
        self.free_dimensions: dict[str, int] = {}
        self._sealed = True

    def add_session_config_entry(self, config_key: str, config_value: str) -> None:
        """Set one of :data:`ENTRIES`; of onnxruntime's own entries only the threads' processors have an effect."""
        if config_key.startswith("tvmopt.") and config_key not in ENTRIES:
            known = "; ".join(f"{key}: {words}" for key, words in ENTRIES.items())
            raise InvalidArgument(f"there is no entry {config_key!r}.", fix=known)
        self._add(config_key, config_value)

    @property
    def cores(self) -> str | None:
        """The processors that threads are bound to, as :func:`tvmopt.load` takes them."""
        if "tvmopt.cores" in self._entries:
            return self._entries["tvmopt.cores"]
        text = self._entries.get(AFFINITIES, "")
        if not text:
            return None
        numbers: set[int] = set()
        for part in re.split("[;,]", text):
            first, _, last = (whole_number(n.strip()) for n in part.partition("-"))
            if first is None or (last is None and "-" in part) or (last or first) < first or (last or 0) > MOST:
                fix = "sets of processors, counted from 1, with ; between the threads': 1,2;3-4"
                raise InvalidArgument(f"{AFFINITIES} cannot be read: {text!r}.", fix=fix)
            numbers |= set(range(first - 1, last or first))
        return ",".join(map(str, sorted(numbers)))

    def get_session_config_entry(self, config_key: str) -> str:
        """The text of an entry."""
        return self._get(config_key, "session's configuration")

    def add_free_dimension_override_by_name(self, dim_name: str, dim_size: int) -> None:
        """Give an open dimension its size, by the name that it has in the model."""
        self.free_dimensions[dim_name] = int(dim_size)

    def add_provider(self, provider_name: str, provider_options: Any = None) -> None:
        """Taken; the code runs on the CPU."""

    def has_providers(self) -> bool:
        """False: none is chosen."""
        return False

    def add_free_dimension_override_by_denotation(self, dim_denotation: str, dim_size: int) -> None:
        raise missing("add_free_dimension_override_by_denotation", "name the dimension instead: ..._by_name")

    def register_custom_ops_library(self, path: str) -> None:
        raise missing("register_custom_ops_library", "write a converter: docs/how-to/add-operator.md")

    def add_initializer(self, name: str, ort_value: Any) -> None:
        raise missing("add_initializer", "put the weights into the model")

    def add_external_initializers(self, names: Any, values: Any) -> None:
        raise missing("add_external_initializers", "put the weights into the model")

    @property
    def enable_profiling(self) -> bool:
        """False: see `tvmopt profile`."""
        return False

    @enable_profiling.setter
    def enable_profiling(self, wanted: bool) -> None:
        if wanted:
            raise missing("profiling", "tvmopt profile MODEL")

    @property
    def optimized_model_filepath(self) -> str:
        """Always empty."""
        return ""

    @optimized_model_filepath.setter
    def optimized_model_filepath(self, path: str) -> None:
        if path:
            raise missing("optimized_model_filepath", "tvmopt compile MODEL -o FILE, which a session opens too")


class RunOptions(_Entries):
    """How a run works: taken, without effect, but for `terminate`, with which no run begins."""

    def __init__(self) -> None:
        super().__init__()
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.terminate = False
        self.only_execute_path_to_fetches = False
        self._sealed = True

    def add_run_config_entry(self, config_key: str, config_value: str) -> None:
        """Taken, without effect."""
        self._add(config_key, config_value)

    def get_run_config_entry(self, config_key: str) -> str:
        """The text of an entry."""
        return self._get(config_key, "run's configuration")
