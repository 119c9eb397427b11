"""C archives: the same bytes as the artifact, from C, on this machine and under QEMU; what they refuse, and how."""

from __future__ import annotations

import errno
import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.cli.command import tvmopt as command
from tests.decoders.translator import merged_model
from tests.runtime.small import small_model
from tests.toolchain.test_emulation import missing, network, quantised
from tvmopt.analysis.samples import sample_inputs
from tvmopt.compiler.carchive import check, emit, program
from tvmopt.compiler.carchive.arena import Span, places
from tvmopt.errors import AccuracyError, InputError, MissingDependency
from tvmopt.targets.detect import host_arch
from tvmopt.toolchain.linking import find_cc
from tvmopt.toolchain.static import Archiver

VALUE = helper.make_tensor_value_info


def save(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], *weights: Any) -> Path:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def lookup(folder: Path) -> Path:
    """Rows of a table, of which the indices are checked, and their order: three outputs, two types."""
    table = np.random.default_rng(0).standard_normal((50, 16), dtype=np.float32)
    return save(
        folder / "lookup.onnx",
        [helper.make_node("Gather", ["w", "i"], ["e"]), helper.make_node("TopK", ["e", "k"], ["v", "order"])],
        [VALUE("i", TensorProto.INT64, [5])],
        [
            VALUE("v", TensorProto.FLOAT, [5, 16]),
            VALUE("order", TensorProto.INT64, [5, 16]),
            VALUE("e", TensorProto.FLOAT, [5, 16]),
        ],
        numpy_helper.from_array(table, "w"),
        numpy_helper.from_array(np.array([16]), "k"),
    )


def passed_on(folder: Path) -> Path:
    """Outputs that no kernel writes where they are wanted: an input, a weight, a scalar, a view of another output."""
    return save(
        folder / "passed.onnx",
        [
            helper.make_node("Identity", ["x:0"], ["same"]),
            helper.make_node("Relu", ["x:0"], ["y"]),
            helper.make_node("Reshape", ["y", "flat"], ["y/flat"]),
            helper.make_node("Constant", [], ["number"], value=numpy_helper.from_array(np.float32(3.5))),
            helper.make_node("Identity", ["w"], ["Y"]),
        ],
        [VALUE("x:0", TensorProto.FLOAT, [3, 5])],
        [
            VALUE("same", TensorProto.FLOAT, [3, 5]),
            VALUE("y", TensorProto.FLOAT, [3, 5]),
            VALUE("y/flat", TensorProto.FLOAT, [15]),
            VALUE("number", TensorProto.FLOAT, []),
            VALUE("Y", TensorProto.FLOAT, [7]),
        ],
        numpy_helper.from_array(np.array([15]), "flat"),
        numpy_helper.from_array(np.arange(7, dtype=np.float32), "w"),
    )


def without_inputs(folder: Path) -> Path:
    """A model that only gives what it has."""
    weight = numpy_helper.from_array(np.arange(7, dtype=np.float32), "w")
    return save(
        folder / "given.onnx", [helper.make_node("Identity", ["w"], ["y"])], [], [VALUE("y", TensorProto.FLOAT, [7])],
        weight,
    )  # fmt: skip


def masked(folder: Path) -> Path:
    """A boolean input, and a scalar that is a kernel's argument."""
    return save(
        folder / "masked.onnx",
        [
            helper.make_node("Where", ["m", "x", "low"], ["h"]),
            helper.make_node("Softmax", ["h"], ["y"], axis=-1),
            helper.make_node("Not", ["m"], ["n"]),
        ],
        [VALUE("m", TensorProto.BOOL, [9, 33]), VALUE("x", TensorProto.FLOAT, [9, 33])],
        [VALUE("y", TensorProto.FLOAT, [9, 33]), VALUE("n", TensorProto.BOOL, [9, 33])],
        numpy_helper.from_array(np.float32(-1e9), "low"),
    )


def raw(arrays: dict[str, Any], infos: Any) -> bytes:
    return b"".join(np.ascontiguousarray(arrays[info.name]).tobytes() for info in infos)


def build(folder: Path, source: str, *libraries: Path, name: str = "main") -> Path:
    """A program of C beside its archives, warnings as errors."""
    (folder / f"{name}.c").write_text(source)
    given = [word for lib in libraries for word in (f"-I{lib}", str(lib / f"lib{lib.name}.a"))]
    words = ["-Wall", "-Wextra", "-Werror", "-O1", str(folder / f"{name}.c"), *given, "-lm", "-pthread"]
    subprocess.run([*find_cc(), *words, "-o", str(folder / name)], check=True)
    return folder / name


@pytest.mark.parametrize("make", [network, quantised, lookup, passed_on, without_inputs, masked])
def test_the_example_gives_the_artifact_s_bytes(tmp_path: Path, make: Any) -> None:
    """On inputs that the check at compile time does not have, with one and three threads."""
    made = tvmopt.compile(make(tmp_path), emit="c-archive", output=tmp_path / "out", threads=2)
    assert made.archive is not None and made.archive.verified and made.path == tmp_path / "out"
    assert sorted(f.name for f in made.path.iterdir()) == ["libout.a", "out.h", "out_example.c"]
    example = build(tmp_path, (made.path / "out_example.c").read_text(), made.path)
    assert len((made.path / "out_example.c").read_text().splitlines()) <= 40
    manifest = made.manifest
    for seed, threads in ((5, "1"), (6, "3")):
        feeds = sample_inputs(manifest.inputs, seed=seed, bounds=manifest.options["bounds"])
        done = subprocess.run([example, threads], input=raw(feeds, manifest.inputs), capture_output=True, check=True)
        assert done.stdout == raw(made.model.run(feeds), manifest.outputs)
    short = subprocess.run([example], input=b"", capture_output=True, check=False)
    assert short.returncode == (2 if manifest.inputs else 0)


MISUSE = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "lookup.h"
#define TRY(call) do { int code = call; printf("%d %s;;", code, lookup_message(code)); } while (0)
static _Alignas(64) char room[3 * 64 + sizeof(float) * 4 * LOOKUP_OUTPUT_V];
int main(void) {
  int64_t index[LOOKUP_INPUT_I] = {0, 1, 2, 3, 49}, beyond[LOOKUP_INPUT_I] = {0, 1, 2, 3, 50};
  uint64_t bytes = LOOKUP_WORKSPACE(1);
  unsigned char *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
  memset(memory, 0xA5, bytes + 64);
  float *v = (float *)room, *e = v + LOOKUP_OUTPUT_V;
  int64_t *order = (int64_t *)(e + LOOKUP_OUTPUT_E);
  lookup_inputs good = {index}, bad = {beyond}, none = {0}, crooked = {(int64_t *)((char *)index + 4)};
  lookup_outputs out = {v, order, e}, off = {v + 1, order, e};
  TRY(lookup_run(&good, &out, lookup_weights, memory, 1));
  TRY(lookup_run(&bad, &out, lookup_weights, memory, 1));
  TRY(lookup_run(&none, &out, lookup_weights, memory, 1));
  TRY(lookup_run(NULL, &out, lookup_weights, memory, 1));
  TRY(lookup_run(&crooked, &out, lookup_weights, memory, 1));
  TRY(lookup_run(&good, &off, lookup_weights, memory, 1));
  TRY(lookup_run(&good, &out, lookup_weights + 32, memory, 1));
  TRY(lookup_run(&good, &out, lookup_weights, memory + 32, 1));
  TRY(lookup_run(&good, &out, lookup_weights, memory, 0));
  TRY(lookup_run(&good, &out, lookup_weights, memory, 1));
  for (int i = 0; i < 64; i++) if (memory[bytes + i] != 0xA5) return 3;
  return 0;
}
"""


def test_errors_are_codes_with_words(tmp_path: Path) -> None:
    """Nothing behind the workspace is written, and a run behind a refused one is right again."""
    made = tvmopt.compile(lookup(tmp_path), emit="c-archive", output=tmp_path / "lookup", verify=False)
    done = subprocess.run([build(tmp_path, MISUSE, tmp_path / "lookup")], capture_output=True, text=True, check=True)
    lines = done.stdout.split(";;")[:-1]
    assert [int(line[0]) for line in lines] == [0, 5, 1, 1, 2, 2, 2, 2, 3, 0]
    assert lines[0] == "0 no error" and "index" in lines[1] and "null" in lines[2] and "64" in lines[4]
    assert made.archive is not None and not made.archive.verified


CANARIES = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "one.h"
#include "two.h"
static float x[ONE_INPUT_X];
static void *work(void *argument) {
  int threads = argument ? 2 : 1;
  uint64_t bytes = ONE_WORKSPACE(threads);
  unsigned char *memory = aligned_alloc(64, bytes + 128);
  static __thread _Alignas(64) float first[ONE_OUTPUT_Y], y[ONE_OUTPUT_Y];
  for (int i = 0; i < 20; i++) {
    memset(memory, i, bytes + 128);
    if (one_run(&(one_inputs){x}, &(one_outputs){y}, one_weights, memory + 64, threads)) return "failed";
    for (int k = 0; k < 64; k++) if (memory[k] != i || memory[bytes + 64 + k] != i) return "wrote outside";
    if (!i) memcpy(first, y, sizeof y);
    if (memcmp(first, y, sizeof y)) return "differs";
  }
  free(memory);
  return NULL;
}
int main(void) {
  for (int i = 0; i < ONE_INPUT_X; i++) x[i] = (float)(i % 97) / 97 - 0.5f;
  pthread_t threads[4];
  for (long i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, (void *)(i % 2));
  for (int i = 0; i < 4; i++) {
    void *wrong = NULL;
    pthread_join(threads[i], &wrong);
    if (wrong) { puts(wrong); return 1; }
  }
  static _Alignas(64) float y[ONE_OUTPUT_Y], z[TWO_OUTPUT_Y];
  void *memory = aligned_alloc(64, ONE_WORKSPACE(2) > TWO_WORKSPACE(1) ? ONE_WORKSPACE(2) : TWO_WORKSPACE(1));
  one_run(&(one_inputs){x}, &(one_outputs){y}, one_weights, memory, 2);
  two_run(&(two_inputs){x}, &(two_outputs){z}, two_weights, memory, 1);
  float most = 0;
  for (int i = 0; i < ONE_OUTPUT_Y; i++) { float d = y[i] - z[i]; most = d > most ? d : -d > most ? -d : most; }
  printf("%g\\n", most);
  return most > 1e-5f;
}
"""


def test_two_archives_in_one_program_and_threads_that_share_one(tmp_path: Path) -> None:
    """Workspaces of exactly the size that the header says, between canaries; runs keep nothing that others see."""
    model = network(tmp_path)
    for name, options in (("one", {"threads": 2}), ("two", {"threads": 1, "exact": True})):
        tvmopt.compile(model, emit="c-archive", output=tmp_path / name, verify=False, **options)
    done = subprocess.run(
        [build(tmp_path, CANARIES, tmp_path / "one", tmp_path / "two")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


ONE_PROCESSOR = """
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "convs.h"
enum { BEHIND = 1 << 20 };
static float x[CONVS_INPUT_X];
static _Alignas(64) float wanted[CONVS_OUTPUT_Y], y[CONVS_OUTPUT_Y];

int main(void) {
  cpu_set_t set;
  int first = 0;
  if (sched_getaffinity(0, sizeof set, &set)) return 1;
  while (!CPU_ISSET(first, &set)) first++;
  CPU_ZERO(&set);
  CPU_SET(first, &set);
  if (sched_setaffinity(0, sizeof set, &set)) return 1; /* workers begin late: the caller does their tasks, too */
  for (int i = 0; i < CONVS_INPUT_X; i++) x[i] = (float)(i % 13) - 6;
  unsigned char *room = aligned_alloc(64, CONVS_WORKSPACE(3) + BEHIND);
  memset(room, 7, CONVS_WORKSPACE(3) + BEHIND);
  convs_inputs inputs = {x};
  if (convs_run(&inputs, &(convs_outputs){wanted}, convs_weights, room, 1)) return 1;
  for (int run = 0; run < 20; run++) {
    int threads = 2 + run % 2;
    memset(room + CONVS_WORKSPACE(threads), 7, CONVS_WORKSPACE(3) + BEHIND - CONVS_WORKSPACE(threads));
    if (convs_run(&inputs, &(convs_outputs){y}, convs_weights, room, threads)) return 1;
    if (memcmp(wanted, y, sizeof y)) return 2;
    for (unsigned char *at = room + CONVS_WORKSPACE(threads); at < room + CONVS_WORKSPACE(3) + BEHIND; at++)
      if (*at != 7) return 3;
  }
  return 0;
}
"""


def test_a_caller_that_does_its_workers_tasks_keeps_to_the_workspace(tmp_path: Path) -> None:
    weights = {"a": (16, 3, 7, 7), "b": (16, 16, 3, 3), "c": (16, 16, 3, 3)}
    rng = np.random.default_rng(0)
    shape = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["p"], kernel_shape=[7, 7], pads=[3] * 4, strides=[2, 2]),
        helper.make_node("Conv", ["p", "b"], ["q"], **shape),
        helper.make_node("Conv", ["q", "c"], ["y"], **shape),
    ]
    path = save(
        tmp_path / "convs.onnx", nodes, [VALUE("x", 1, [1, 3, 224, 224])], [VALUE("y", 1, [1, 16, 28, 28])],
        *(numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in weights.items()),
    )  # fmt: skip
    made = tvmopt.compile(path, emit="c-archive", output=tmp_path / "convs", threads=2)
    assert made.archive is not None and made.archive.scratch > 0
    program = build(tmp_path, ONE_PROCESSOR, made.path)
    assert subprocess.run([program], check=False).returncode == 0


def test_a_library_has_its_own_names_only_and_allocates_nothing(tmp_path: Path) -> None:
    folders = [tmp_path / "a" / "same", tmp_path / "b" / "same"]
    for folder in folders:
        folder.parent.mkdir()
        tvmopt.compile(network(tmp_path), emit="c-archive", output=folder, verify=False, threads=2)
    assert len({(folder / "libsame.a").read_bytes() for folder in folders}) == 1
    words = ["nm", "--extern-only", str(folders[0] / "libsame.a")]
    symbols = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")
    defined = {line.split()[-1] for line in symbols if len(line.split()) == 3}
    wanted = {line.split()[-1] for line in symbols if line.strip().startswith("U ")}
    assert defined == {"same_run", "same_message", "same_weights"}
    assert not {name for name in wanted if "alloc" in name or name.startswith(("TVM", "__TVM"))}


def test_weights_apart(tmp_path: Path) -> None:
    made = tvmopt.compile(network(tmp_path), emit="c-archive", output=tmp_path / "apart", strip_weights=True, threads=1)
    assert made.archive is not None and made.archive.verified
    file = tmp_path / "apart" / "apart.weights"
    assert file.stat().st_size == made.archive.weights == made.manifest.weight_bytes > 0
    assert made.archive.library < 200_000
    example = build(tmp_path, (tmp_path / "apart" / "apart_example.c").read_text(), tmp_path / "apart")
    assert subprocess.run([example, tmp_path / "none"], check=False).returncode == 2


@pytest.mark.parametrize(("target", "precision", "most"), [("aarch64", "fp32", 1e-5), ("neoverse-v2", "bf16", 3e-2)])
def test_on_arm(tmp_path: Path, target: str, precision: str, most: float) -> None:
    """Beside this machine's numbers; the emulator needs no Python for it."""
    qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    try:
        archiver = Archiver("aarch64")
    except MissingDependency as error:
        pytest.skip(f"{error.what} {error.fix}")
    if qemu is None:
        pytest.skip("needs qemu-aarch64: apt install qemu-user-static")
    options: Any = {"target": target, "precision": precision, "threads": 2, "verify": False}
    tvmopt.compile(network(tmp_path), emit="c-archive", output=tmp_path / "arm", **options)
    here = tvmopt.compile(network(tmp_path), verify=False)
    archiver.program(tmp_path / "arm", "arm_example.c", "libarm.a", tmp_path / "example")
    feeds = sample_inputs(here.manifest.inputs, seed=3)
    wanted = here.model.run(feeds)["y"]
    for threads in ("1", "2"):
        words = [qemu, "-cpu", "max", tmp_path / "example", threads]
        done = subprocess.run(words, input=raw(feeds, here.manifest.inputs), capture_output=True, check=True)
        got = np.frombuffer(done.stdout, np.float32).reshape(wanted.shape)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=most * np.abs(wanted).max())


def test_a_processor_that_lacks_instructions(tmp_path: Path) -> None:
    """AVX-512 on one that has none: a code, and no illegal instruction; AVX2 runs there."""
    if host_arch() != "x86_64" or (why := missing("x86_64")):
        pytest.skip(why if host_arch() == "x86_64" else "code for x86-64")
    for target, code in (("x86-64-v3", 0), ("x86-64-v4", 1)):
        folder = tmp_path / target.replace("-", "_")
        made = tvmopt.compile(network(tmp_path), emit="c-archive", output=folder, target=target, verify=False)
        example = build(tmp_path, (folder / f"{folder.name}_example.c").read_text(), folder, name=f"main_{code}")
        given = raw(sample_inputs(made.manifest.inputs), made.manifest.inputs)
        words = ["qemu-x86_64-static", "-cpu", "Haswell", example]
        done = subprocess.run(words, input=given, capture_output=True, check=False)
        assert done.returncode == code, done.stderr
        assert code == 0 or b"lacks instructions" in done.stderr


def test_the_check_finds_a_wrong_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that lies where another one still is."""
    monkeypatch.setattr(program, "places", lambda spans: ([0] * len(spans), max(span.bytes for span in spans)))
    with pytest.raises(AccuracyError, match=r"the C archive gave other outputs with the inputs of seed 0"):
        tvmopt.compile(network(tmp_path), emit="c-archive", output=tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_leaves_the_folder_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Archiver, "library", full)
    folder = tmp_path / "archive"
    if there:
        folder.mkdir()
        (folder / "notes").write_text("mine")
    with pytest.raises(InputError, match="No space left on device") as caught:
        tvmopt.compile(network(tmp_path), emit="c-archive", output=folder)
    assert caught.value.fix == "free some space"
    assert folder.exists() == there
    assert not there or [path.name for path in folder.iterdir()] == ["notes"]


def test_an_archive_that_ends_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little memory for what kernels ask: an error of the run, not a crash."""
    monkeypatch.setattr("tvmopt.compiler.carchive.scratch._asked", lambda module: 0)
    with pytest.raises(AccuracyError, match=r"ended with 1: a kernel failed"):
        tvmopt.compile(network(tmp_path), emit="c-archive", output=tmp_path / "small", without=["StackBuffers"])


def test_places_are_nobody_else_s() -> None:
    """Random spans, and those that all are needed at once; the size is at least what is alive at a time."""
    rng = np.random.default_rng(1)
    cases = [[Span(int(rng.integers(1, 500)), a, a + int(rng.integers(0, 6))) for a in range(n)] for n in (1, 7, 40)]
    for spans in [*cases, [Span(64 * n, 0, 9) for n in range(1, 9)], []]:
        offsets, size = places(spans)
        for (one, a), (other, b) in itertools.combinations(zip(spans, offsets, strict=True), 2):
            assert not one.meets(other) or a + one.bytes <= b or b + other.bytes <= a
        alive = [sum(s.bytes for s in spans if s.first <= t <= s.last) for t in range(50)]
        assert all(offset % 64 == 0 for offset in offsets) and size >= max(alive)
        assert size == max((o + -(-s.bytes // 64) * 64 for s, o in zip(spans, offsets, strict=True)), default=0)


def test_refusals(tmp_path: Path) -> None:
    branch = [
        helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [VALUE(op, TensorProto.FLOAT, [4])])
        for op in ("Relu", "Neg")
    ]
    decided = save(
        tmp_path / "if.onnx",
        [helper.make_node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1])],
        [VALUE("c", TensorProto.BOOL, []), VALUE("x", TensorProto.FLOAT, [4])],
        [VALUE("y", TensorProto.FLOAT, [4])],
    )
    relu = [helper.make_node("Relu", ["x"], ["y"])]
    ends = [VALUE("x", TensorProto.FLOAT, ["n", 4])], [VALUE("y", TensorProto.FLOAT, ["n", 4])]
    opened = save(tmp_path / "open.onnx", relu, *ends)
    beside = tmp_path / "merged.onnx"
    onnx.save(merged_model(), beside)
    (tmp_path / "file").write_text("mine")
    output = tmp_path / "out"
    for model, options, told in (
        (decided, {}, "cannot have an If"),
        (beside, {}, "of a decoder beside an encoder"),
        (opened, {}, r"open sizes \(n\)"),
        (opened, {"shape": {"x": (2, 4)}, "target": "x86-64-v3+x86-64-v4"}, "of one target"),
        (opened, {"shape": {"x": (2, 4)}, "threads": (1, 2)}, "of one target"),
        (opened, {"shape": {"x": (2, 4)}, "target": "nvidia-h100"}, "for a GPU"),
        (opened, {"emit": "exe"}, "nothing of the kind 'exe'"),
        (opened, {"output": None}, "no folder"),
        (opened, {"output": tmp_path / "file"}, "is a file"),
        (opened, {"output": tmp_path / "no" / "out"}, "does not exist"),
    ):
        with pytest.raises(InputError, match=told):
            tvmopt.compile(model, **{"emit": "c-archive", "output": output, **options})
    assert not output.exists() and (tmp_path / "file").read_text() == "mine"
    fitted = tvmopt.compile(opened, emit="c-archive", output=output, shape={"x": (2, 4)}, verify=False)
    assert fitted.archive is not None


def test_weights_that_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "MOST_LINKED", 1000)
    with pytest.raises(InputError, match="MB of weights") as caught:
        tvmopt.compile(network(tmp_path), emit="c-archive", output=tmp_path / "out", verify=False)
    assert "strip" in caught.value.fix
    tvmopt.compile(network(tmp_path), emit="c-archive", output=tmp_path / "out", verify=False, strip_weights=True)


def test_a_missing_archiver_is_told_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if "objcopy" in name else found(name))
    monkeypatch.setattr("tvmopt.compiler.driver.compile_model", lambda *_: pytest.fail("compiled"))
    with pytest.raises(MissingDependency, match="no objcopy"):
        tvmopt.compile(network(tmp_path), emit="c-archive", output=tmp_path / "out")


def test_the_command(tmp_path: Path) -> None:
    onnx.save(small_model(), str(tmp_path / "my-model.onnx"))
    done = command("compile", "my-model.onnx", "--emit", "c-archive", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "libmy_model.a" in done.stdout and "bit by bit" in done.stdout and "a run needs" in done.stdout
    assert (tmp_path / "my-model" / "my_model.h").is_file()
    done = command("compile", "my-model.onnx", "--emit", "c-archive", "-o", "x", "--no-verify", "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert told["archive"]["name"] == "x" and told["path"] == "x" and told["archive"]["workspace"] % 64 == 0
    done = command("compile", "my-model.onnx", "--emit", "exe", cwd=tmp_path)
    assert done.returncode == 2 and "artifact or c-archive" in done.stderr


def test_a_verified_archive_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`verified` is said of what was compared, with the artifact's outputs for each seed."""
    seen = []
    monkeypatch.setattr(check, "sample_inputs", lambda *a, **k: seen.append(k["seed"]) or sample_inputs(*a, **k))
    made = tvmopt.compile(lookup(tmp_path), emit="c-archive", output=tmp_path / "out")
    assert made.archive is not None and made.archive.verified and seen == list(check.SEEDS)
