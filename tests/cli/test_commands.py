"""The command line end to end: what is printed, where, with which exit code."""

from __future__ import annotations

import inspect as signatures
import json
import os
import shlex
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest
import typer
from onnx import TensorProto, helper, numpy_helper

from tests.cli.command import COMMAND, tvmopt
from tests.runtime.small import expected, small_model
from tests.waiting import FOREVER, until
from tvmopt import api, cli
from tvmopt.targets import Machine, names


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small.onnx and, compiled by the command, small.tvmopt."""
    folder = tmp_path_factory.mktemp("cli")
    onnx.save(small_model(), str(folder / "small.onnx"))
    done = tvmopt("compile", "small.onnx", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "agrees with float64 and onnxruntime" in done.stdout
    assert "small.tvmopt" in done.stdout
    assert done.stderr == ""
    return folder


def test_help_is_light() -> None:
    """`tvmopt --help` loads nothing heavy, and few modules at all; so it takes a tenth of a second."""
    heavy = ("tvm", "tvm_ffi", "onnx", "numpy", "onnxruntime", "torch")
    code = "import sys; from tvmopt.cli import main; main(['--help']); "
    code += f"print(len(sys.modules), [m for m in sys.modules if m in {heavy}], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, _, found = done.stderr.strip().partition(" ")
    assert found == "[]" and int(count) < 500
    for name in cli.COMMANDS:
        assert f" {name} " in done.stdout


def test_to_ask_for_a_compile_reads_no_model(tmp_path: Path) -> None:
    """What the compiler's process imports meanwhile is not imported here, too."""
    model = tmp_path / "model.onnx"
    model.write_bytes(b"no model, and nobody parses it")
    code = f"""
import os, sys
from tvmopt import children, cli
def call(*arguments, **options):
    heavy = {{"onnx", "tvm", "tvm_ffi", "tvmopt.importer", "tvmopt.preprocessing"}}
    print(sorted(heavy & sys.modules.keys()), flush=True)
    os._exit(7)
children.call = call
cli.main(["compile", {str(model)!r}, "--shape", "x:1x3", "--no-cache", "-o", {str(tmp_path / "out.tvmopt")!r}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "[]\n"), done.stderr


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_help(name: str) -> None:
    module = import_module(f"tvmopt.cli.{name}")
    assert isinstance(module.app, typer.Typer)
    assert tvmopt(name, "--help").returncode == 0


NO_VALUES = (
    "run x.tvmopt --seed -5", "bench x.onnx --seed -5", "compare x.onnx --seed -5", "tune x.onnx --seed -5",
    "generate x.tvmopt --seed -5", "surgeon reduce x.onnx -o y.onnx --seed -5",
    "serve . --max-body inf", "serve . --timeout nan", "run x.tvmopt --duration inf", "run x.tvmopt --duration 1e99",
    "bench x.onnx --duration 1e99", "compile x.onnx --tolerance inf", "compile x.onnx --tolerance nan",
    "refit x.tvmopt y.onnx --tolerance inf", "surgeon reduce x.onnx -o y.onnx --atol inf",
    "tune x.onnx --list-tasks --budget nan", "tune x.onnx --list-tasks --budget -5m",
    "compile x.onnx --shape a:1x3x", "compile x.onnx --shape a:1x3,", "compile x.onnx --shape a:1xx3",
    "compile x.onnx --shape a:1x3 --shape a:2x3", "compile x.onnx --value a=1 --value a=2",
)  # fmt: skip
"""Commands whose last option has a value that it cannot have."""


def test_wrong_use() -> None:
    for arguments, words in (
        (["cmpile", "x"], "did you mean 'compile'"),
        (["nope"], "there is no command 'nope'.\n"),
        (["compile"], "Missing argument"),
        (["compile", "x.onnx", "--taget", "cpu"], "--target"),
        (["compile", "x.onnx", "--input-shapes", "x:[1,3]"], "--shape NAME:1x3x224x224"),
        (["run", "x.tvmopt", "--fill-mode=zeros"], "--fill random|zeros|ones"),
        (["compile", "x.onnx", "--shape", "x=1,3"], "--shape NAME:1x3x224x224"),
        (["compile", "x.onnx", "--target", "nvidia-h10"], "did you mean 'nvidia-h100'"),
        (["run", "model.onnx"], "cannot be read"),
        (["compile", "."], "it is a folder"),
        (["compile", ""], "cannot be read"),
        (["compile", "x.onnx", "--tolerance", "-1"], "--tolerance"),
        (["bench", "x.onnx", "--fp16"], "--precision fp16"),
        (["bench", "x.onnx", "--against", "nope", "--against", "onnxruntime"], "no engine 'nope'"),
        (["bench", "x.onnx", "--threads", "x", "--threads", "1"], "'x' is not a positive number"),
        (["compare", "x.onnx", "--engines", "nope", "--engines", "onnxruntime"], "no engine 'nope'"),
        (["compile", "x.onnx", "--int8", "some"], "auto, all, off"),
        (["tune", "x.onnx", "-o", "records.json"], "logs export"),
        (["compile", "x.onnx", "--precision", "int8"], "`tvmopt quantize`"),
        (["run", "missing.tvmopt"], "No such file"),
        (["run", "missing.tvmopt", "--fill", "noise"], "random, zeros or ones"),
        *((line.split(), line.split()[-2]) for line in NO_VALUES),
    ):
        done = tvmopt(*arguments)
        assert done.returncode == 2, arguments
        assert words in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


def test_unreadable_models(tmp_path: Path) -> None:
    """Text, nothing, a cut file: an error of ours, exit code 2, and no file left."""
    data = small_model().SerializeToString()
    zipped = b"PK\x03\x04" + bytes(99)
    for name, content in (("text", b"hello"), ("empty", b""), ("cut", data[: len(data) // 2]), ("zip", zipped)):
        (tmp_path / f"{name}.onnx").write_bytes(content)
        done = tvmopt("compile", f"{name}.onnx", cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        assert f"{name}.onnx" in done.stderr
        assert not list(tmp_path.glob("*.tvmopt"))


def test_run(folder: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(3).standard_normal((1, 3, 9, 9)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "in.npz", x=x)
    for given in (f"x={tmp_path / 'x.npy'}", str(tmp_path / "in.npz")):
        output = tmp_path / "out.npz"
        done = tvmopt("run", folder / "small.tvmopt", "-i", given, "-o", output)
        assert done.returncode == 0, done.stderr
        np.testing.assert_allclose(np.load(output)["y"], expected(0, x), rtol=1e-4, atol=1e-5)


def test_run_timed_json(folder: Path) -> None:
    arguments = ["--print-time", "--iterations", "5", "--warmup", "1", "--json", "--fill", "ones"]
    result = json.loads(tvmopt("run", folder / "small.tvmopt", *arguments).stdout)
    assert result["timing"]["n"] == 5
    assert result["outputs"][0]["shape"] == [1, 10]


def test_run_refuses_what_does_not_fit(folder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 9, 8), "float32"))
    np.save(tmp_path / "pickle.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez_compressed(tmp_path / "whole.npz", x=np.zeros((1, 3, 9, 9), "float32"))
    damaged = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(damaged[:-9])
    (tmp_path / "bits.npz").write_bytes(damaged[:60] + bytes(20) + damaged[80:])
    for given, words in (
        (f"x={tmp_path / 'x.npy'}", "shape is (1, 3, 9, 8)"),
        (f"X={tmp_path / 'x.npy'}", "did you mean 'x'"),
        (f"x={tmp_path / 'none.npy'}", "cannot read the input: No such file"),
        (str(tmp_path / "cut.npz"), "cannot read the input"),
        (str(tmp_path / "bits.npz"), "cannot read the input"),
        (f"x={tmp_path / 'pickle.npy'}", "not an array of numbers"),
        (f"x={Path(__file__)}", "not an array of numbers"),
        (str(tmp_path / "x.npy"), "no name for it"),
    ):
        done = tvmopt("run", folder / "small.tvmopt", "-i", given)
        assert done.returncode == 2
        assert words in done.stderr, done.stderr


def test_compile_json_and_explain(folder: Path, tmp_path: Path) -> None:
    done = tvmopt("compile", folder / "small.onnx", "-o", tmp_path / "a.tvmopt", "--json", "--no-verify")
    report = json.loads(done.stdout)["report"]
    assert report["model"] == "small.onnx"
    assert report["kernels"]
    for source in (folder / "small.onnx", tmp_path / "a.tvmopt"):
        told = tvmopt("explain", source)
        assert told.returncode == 0, told.stderr
        assert "conv" in told.stdout
    assert "head" not in tvmopt("explain", tmp_path / "a.tvmopt", "--node", "conv").stdout.partition("kernel")[2]


def test_inspect(folder: Path) -> None:
    model = tvmopt("inspect", folder / "small.onnx", "--json")
    assert json.loads(model.stdout)["parameters"] == 8 * 27 + 8 + 80 + 10
    shown = tvmopt("inspect", folder / "small.onnx").stdout
    assert "Conv" in shown and "input 0" in shown and "x: float32[" in shown and "output 0" in shown
    artifact = tvmopt("inspect", folder / "small.tvmopt")
    assert "x: float32[1,3,9,9]" in artifact.stdout
    assert json.loads(tvmopt("inspect", folder / "small.tvmopt", "--json").stdout)["format"] == 8


def test_strip_and_refit(folder: Path, tmp_path: Path) -> None:
    stripped = tmp_path / "s.tvmopt"
    assert tvmopt("compile", folder / "small.onnx", "--strip-weights", "-o", stripped).returncode == 0
    refused = tvmopt("run", stripped)
    assert refused.returncode == 2
    assert f"tvmopt refit {stripped} small.onnx" in refused.stderr
    assert tvmopt("refit", stripped, folder / "small.onnx").returncode == 0
    assert tvmopt("run", stripped).returncode == 0


def test_refit_without_verification_says_so(folder: Path, tmp_path: Path) -> None:
    """What was found of the weights before is not told of the new ones."""
    done = tvmopt("refit", folder / "small.tvmopt", folder / "small.onnx", "-o", tmp_path / "r.tvmopt", "--no-verify")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "not verified")
    for command in ("explain", "inspect"):
        told = tvmopt(command, tmp_path / "r.tvmopt").stdout
        assert "not verified" in told and "agrees with" not in told and "hardly vary" not in told
    again = tvmopt("refit", tmp_path / "r.tvmopt", folder / "small.onnx")
    assert "agrees with float64 and onnxruntime" in again.stdout


def test_targets() -> None:
    listed = tvmopt("targets", "list").stdout
    for name in names():
        assert name in listed
    assert json.loads(tvmopt("targets", "show", "x86-64-v3", "--json").stdout)["vector_bits"] == 256
    assert "cores" in tvmopt("targets", "detect").stdout
    shown = {name: tvmopt("targets", "show", name).stdout for name in ("x86-64-v3", "nvidia-h100")}
    assert "fma_ports" in shown["x86-64-v3"] and "sm_threads" not in shown["x86-64-v3"]
    assert "sm_threads" in shown["nvidia-h100"] and "fma_ports" not in shown["nvidia-h100"]
    assert "core_bandwidth    48.00 GB/s" in shown["x86-64-v3"]
    for group in ("surgeon", "targets", "logs", "cache"):
        done = tvmopt(group, "foo")
        assert done.returncode == 2 and f"where: tvmopt {group}\n  fix:   one of " in done.stderr
    done = tvmopt("surgeon", "extrct")
    assert done.returncode == 2 and "there is no command 'extrct', did you mean 'extract'?" in done.stderr
    unknown = tvmopt("targets", "show", "saphire-rapids")
    assert unknown.returncode == 2
    assert "did you mean 'sapphire-rapids'" in unknown.stderr


def test_doctor() -> None:
    done = tvmopt("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert checks["apache-tvm-ffi"]["state"] == "ok"
    assert checks["C compiler (links kernels)"]["state"] == "ok"
    assert done.returncode == 0


def test_doctor_finds_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmopt import doctor

    monkeypatch.setattr(doctor, "_version", lambda name: "0.1.15" if name == "apache-tvm-ffi" else "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("TVM_NUM_THREADS", "lots")
    checks = {check.name: check for check in doctor.examine()}
    assert "pip install 'apache-tvm-ffi==0.1.14.post1'" in checks["apache-tvm-ffi"].fix
    assert checks["onnx"].state == checks["threads"].state == "broken"
    assert "apt install gcc" in checks["C compiler (links kernels)"].fix


def test_a_size_of_one_value_is_fixed(tmp_path: Path) -> None:
    """At most 8 is asked for, and the window of the convolution takes no fewer."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1, d]) for n, d in (("x", "n"), ("y", None)))
    window = numpy_helper.from_array(np.ones((1, 1, 8), "float32"), "w")
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "g", [x], [y], [window])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "m.onnx")
    shown = tvmopt("inspect", tmp_path / "m.onnx", "--shape", "n:..8").stdout
    assert "open size" not in shown and shown.partition("\nsize n ")[2].split("\n")[0].strip() == "fixed to 8"
    assert "open size n" in tvmopt("inspect", tmp_path / "m.onnx", "--shape", "n:..9").stdout


def test_a_compiled_model_is_no_model(folder: Path) -> None:
    """Also where the result would have its name, as it has by default."""
    done = tvmopt("compile", "small.tvmopt", cwd=folder)
    assert done.returncode == 2 and "This is a compiled model" in done.stderr and "would replace" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_streams_that_lack_characters(encoding: str, tmp_path: Path) -> None:
    """What they lack is escaped, in a name of a model's and in the frames of a help text."""
    model = small_model()
    model.graph.node[0].name = "卷积"
    onnx.save(model, tmp_path / "m.onnx")
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    for words, told in ((["compile", "--help"], b"--dump-code"), (["inspect", tmp_path / "m.onnx"], b"\\u5377\\u79ef")):
        done = subprocess.run([*COMMAND, *words], env=environment, capture_output=True, check=False)
        assert done.returncode == 0 and told in done.stdout and b"Traceback" not in done.stderr, done.stderr


def test_without_a_compiler(folder: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "compile", str(folder / "small.onnx"), "-o", str(tmp_path / "x.tvmopt")],
        env={**os.environ, "PATH": "", "CC": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 5
    assert "apt install gcc" in done.stderr


def test_interrupt_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "compile", str(folder / "small.onnx"), "-o", str(tmp_path / "x.tvmopt")],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    started = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: process.poll() is not None or started.read_text(), "the process that compiles is started")
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=FOREVER)
    assert process.returncode in (130, -signal.SIGINT, 0), told  # a shell says 130 of both
    assert not [p.name for p in tmp_path.iterdir() if p.suffix == ".part"]
    assert "Traceback" not in told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupt_while_loading(number: signal.Signals) -> None:
    """Ctrl-C before the command line is loaded: no traceback of imports. SIGTERM and SIGHUP do the same."""
    code = f"""
import os, signal, sys
from tvmopt.__main__ import main
class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Pressed())
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with it ignored
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # so does one behind nohup
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "interrupted\n")


SIGNALLED = """
import os, signal, sys, tempfile, time
import tvmopt.api, tvmopt.ending
from tvmopt.__main__ import main
number, disposition, left = int(sys.argv.pop(1)), getattr(signal, sys.argv.pop(1)), sys.argv.pop(1)
def compile_isolated(*_, **__):
    try:
        with tempfile.TemporaryDirectory():
            try:
                os.kill(os.getpid(), number)
                print("went on", file=sys.stderr)
            finally:
                os.kill(os.getpid(), number)  # `timeout` sends its signal to the process and to the group
    finally:
        if left == "gone":  # so is a terminal that was closed
            raise OSError(5, "Input/output error")
    sys.exit(7)
tvmopt.api.compile_isolated = compile_isolated
tvmopt.ending.AGAIN = 1e9
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(number, disposition)
sys.exit(main())
"""


@pytest.mark.parametrize("left", ["there", "gone"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_from_outside_is_taken_as_ctrl_c_is(
    number: signal.Signals, left: str, folder: Path, tmp_path: Path
) -> None:
    """SIGTERM and SIGHUP leave no temporary folder, neither this process's nor that of the one that compiles."""
    words = [sys.executable, "-c", SIGNALLED, str(int(number)), "SIG_DFL", left, "compile", str(folder / "small.onnx")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.stderr == f"interrupted by {number.name}; nothing was written\n"
    assert done.returncode == 128 + number
    assert not list(tmp_path.iterdir())


THROUGH = """
import os, signal, sys
import tvm_ffi
import tvmopt.api, tvmopt.tuning.driver
from tvmopt.__main__ import main
number, place = int(sys.argv.pop(1)), sys.argv.pop(1)
def pressed(*_, **__):
    if place == "ffi":
        tvm_ffi.convert(lambda: os.kill(os.getpid(), number))()
    try:
        os.kill(os.getpid(), number)
    except KeyboardInterrupt:
        raise ImportError("numpy._core.umath failed to import")
tvmopt.tuning.driver.module_at = tvmopt.api.compile_isolated = pressed
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


@pytest.mark.parametrize("place", ["ffi", "import"])
@pytest.mark.parametrize("command", ["tune", "compile"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_became_another_exception(
    number: signal.Signals, command: str, place: str, folder: Path
) -> None:
    """TVM's FFI makes a RuntimeError of it, modules that are being imported an ImportError."""
    words = [sys.executable, "-c", THROUGH, str(int(number)), place, command, str(folder / "small.onnx")]
    words += ["--list-tasks"] if command == "tune" else []
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    how = "interrupted" if number == signal.SIGINT else "interrupted by SIGTERM"
    left = "what was measured is kept, and the same command goes on from there" if command == "tune" else ""
    assert (done.returncode, done.stderr) == (128 + number, f"{how}; {left or 'nothing was written'}\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_is_ignored_stays_ignored(number: signal.Signals, folder: Path, tmp_path: Path) -> None:
    """As SIGHUP is behind `nohup`."""
    words = [
        sys.executable,
        "-c",
        SIGNALLED,
        str(int(number)),
        "SIG_IGN",
        "there",
        "compile",
        str(folder / "small.onnx"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (7, "went on\n")


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ('{run} >&-', 0, ""),
        ('{compile} -o {out} >&- 2>&- <&- && test -s {out}', 0, ""),
        ('mkdir gone && cd gone && rmdir ../gone && {compile}', 2, "the folder of the output does not exist"),
        ('cp {model} "$(printf "n\\377\\376.onnx")" && {tvmopt} compile n*.onnx', 0, ".tvmopt"),
        ('{compile} -o {out} --store ""', 2, "cannot open the tuning store"),
        ('{compile} -o "$(printf "x%.0s" $(seq 300))"', 2, "File name too long"),
        ('ulimit -n 10; {compile} -o {out} --no-cache', 2, "ulimit -n"),
        ('ulimit -f 10; {compile} -o {out} --no-cache', 2, "ulimit -f"),
        ('ulimit -v 400000; {compile} -o {out} --no-cache', 70, "ulimit -v"),
        ('CC=/nonexistent {compile} -o {out} --no-cache', 5, "CC=/nonexistent"),
        ('CC=false {compile} -o {out} --no-cache', 2, "exit status 1"),
        ('{run} -o /dev/null', 0, "output"),
        ('{run} -o /dev/stdout | wc -c | grep -q ...', 0, ""),
    ],
)  # fmt: skip
def test_where_a_shell_starts_it(line: str, code: int, words: str, folder: Path, tmp_path: Path) -> None:
    """Closed streams, limits, a folder that is gone, names that are no text: no traceback, and no talk of a bug."""
    command = shlex.join(COMMAND)
    names = {"tvmopt": command, "model": folder / "small.onnx", "out": tmp_path / "out.tvmopt"}
    names |= {"compile": f"{command} compile {names['model']}", "run": f"{command} run {folder / 'small.tvmopt'}"}
    done = subprocess.run(
        ["bash", "-c", line.format(**names)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    told = done.stdout + done.stderr
    assert (done.returncode, words in told, "Traceback" in told, "bug" in told) == (code, True, False, False), told


def test_a_full_disk_behind_stdout() -> None:
    with open("/dev/full", "w") as full:
        words = [*COMMAND, "targets", "list", "--json"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2 and "No space left" in done.stderr and "Traceback" not in done.stderr


def test_a_store_that_is_named_must_be_there(folder: Path, tmp_path: Path) -> None:
    missing = tmp_path / "no" / "missing.db"
    for words in (
        ["compile", folder / "small.onnx", "-o", tmp_path / "x.tvmopt"],
        ["logs", "list"], ["logs", "export", tmp_path / "out"], ["logs", "prune"], ["logs", "curve"],
        ["logs", "verify"], ["logs", "show", "00"],
    ):  # fmt: skip
        done = tvmopt(*words, "--store", missing)
        assert done.returncode == 2 and "there is no tuning store" in done.stderr, (words, done)
        assert str(missing) in done.stderr
    assert not list(tmp_path.iterdir())  # neither a store nor an output


@pytest.mark.parametrize("name", ["compile", "run", "inspect", "explain", "refit"])
def test_options_are_the_functions_parameters(name: str) -> None:
    """The command line and the Python API are one to one."""
    command = signatures.signature(import_module(f"tvmopt.cli.{name}").command)
    function = signatures.signature(getattr(api, name))
    only_api = {"progress"} if name == "compile" else {"progress", "values"}
    only_command = {"as_json", "top", "verbose", "list_passes"}
    assert set(command.parameters) - only_command == set(function.parameters) - only_api
    for parameter in set(command.parameters) & set(function.parameters):
        here, there = command.parameters[parameter].default, function.parameters[parameter].default
        assert here == there, parameter


def test_the_graph_as_a_page(folder: Path, tmp_path: Path) -> None:
    done = tvmopt("inspect", "small.tvmopt", "--html", tmp_path / "graph.html", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"written: {tmp_path / 'graph.html'}\n")
    page = (tmp_path / "graph.html").read_text()
    assert "Content-Security-Policy" in page and "http" not in page.replace("http-equiv", "")
    done = tvmopt("inspect", "small.tvmopt", "--timed", cwd=folder)
    assert done.returncode == 2 and "--html" in done.stderr
    done = tvmopt("inspect", "small.tvmopt", "--html", tmp_path / "no" / "graph.html", cwd=folder)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_json_has_no_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    from tvmopt.cli.common import print_json

    print_json({"a": [float("inf"), np.float64("nan"), 1.5], "b": Path("x")})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"a": [None, None, 1.5], "b": "x"}


def test_tables_in_a_pipe_are_never_folded(capsys: pytest.CaptureFixture[str]) -> None:
    from tvmopt.cli.common import table

    table(("name", "n"), [("x" * 300, 7), ("y", "[bold]")], title="t")
    lines = capsys.readouterr().out.splitlines()
    assert [len(line) for line in lines] == [1, 303 + 5, 303 + 5, 303 + 5]
    assert lines[2].endswith("7") and lines[3].endswith("[bold]")


def test_profile_of_a_model_in_another_precision(tmp_path: Path) -> None:
    """bf16 where this machine has it; else the refusal."""
    onnx.save(small_model(), str(tmp_path / "small.onnx"))
    given = ("--precision", "bf16", "--iterations", "5", "--duration", "0.1", "--json")
    done = tvmopt("profile", tmp_path / "small.onnx", *given)
    if Machine.load("cpu").has("avx512bf16"):
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["precision"] == "bf16"
    else:
        assert (done.returncode, done.stdout) == (2, "") and "avx512_bf16" in done.stderr


@pytest.mark.parametrize(("command", "words"), [("tune", "is kept"), ("compile", "nothing was written")])
def test_ctrl_c_says_what_is_left(
    command: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tvmopt.tuning.driver.tune", pressed)
    monkeypatch.setattr("tvmopt.api.compile_isolated", pressed)
    assert cli.main([command, "m.onnx"]) == 130
    told = capsys.readouterr()
    assert words in told.err and told.err.count("\n") == 1 and not told.out


@pytest.mark.parametrize(
    "words",
    [
        ("compile", "m.onnx", "-o", "m.onnx"),
        ("compile", "m.onnx", "-o", "weights.bin"),
        ("compile", "m.onnx", "-o", "link.onnx"),
        ("report", "m.onnx", "-o", "m.onnx"),
        ("report", "m.tvmopt", "--model", "m.onnx", "-o", "m.onnx"),
        ("profile", "m.onnx", "--trace", "m.onnx"),
        ("profile", "m.tvmopt", "--html", "m.tvmopt"),
        ("profile", "m.tvmopt", "--html", "new", "--svg", "./new"),
        ("compare", "m.onnx", "--html", "m.onnx"),
        ("bench", "m.onnx", "--html", "m.onnx"),
        ("inspect", "m.onnx", "--html", "m.onnx"),
        ("refit", "m.tvmopt", "m.onnx", "-o", "m.onnx"),
        ("run", "m.tvmopt", "-i", "in.npz", "-o", "in.npz"),
        ("run", "m.tvmopt", "-i", "x=in.npz", "-o", "in.npz"),
        ("quantize", "m.onnx", "--data", "in.npz", "-o", "m.onnx"),
    ],
    ids=" ".join,
)
def test_no_result_replaces_what_is_read(words: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    """A second name of a file, and the file with a model's weights, are it as well."""
    made = small_model()
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "link.onnx").symlink_to("m.onnx")
    (tmp_path / "m.tvmopt").write_bytes((folder / "small.tvmopt").read_bytes())
    np.savez(tmp_path / "in.npz", x=np.ones((1, 3, 9, 9), "float32"))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = tvmopt(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert "would replace" in done.stderr or "to one file" in done.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("words", [("--threads", "64"), ()])
def test_more_threads_than_cores_are_told(
    words: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever they are asked for."""
    monkeypatch.setattr("tvmopt.targets.detect.usable_cores", lambda: 2)
    monkeypatch.setenv("TVM_NUM_THREADS", "64" if not words else "2")
    done = tvmopt("run", folder / "small.tvmopt", *words)
    assert done.returncode == 0 and "share 2 cores" in done.stderr, done.stderr
