"""Which of an artifact's targets this machine runs - for whoever reads an artifact.

An artifact for a fleet has code for several targets. The one that needs the most of what this machine has is taken: a
target that needs AVX-512 before one that needs AVX2. Among targets that need equally much the first one named is taken.
There may be code for several numbers of threads of one target, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tvmopt.errors import ArtifactError, InputError
from tvmopt.runtime import container
from tvmopt.runtime.library import default_threads
from tvmopt.runtime.manifest import Manifest, Member
from tvmopt.runtime.pool import MOST
from tvmopt.targets import detect_host
from tvmopt.targets.detect import generated, host_arch


def unfit(manifest: Manifest) -> str:
    """Why this machine's processor cannot run a target's library; empty if it can."""
    arch = manifest.arch or host_arch()
    if arch != host_arch():
        return f"the artifact is for {arch}, this machine is {host_arch()}"
    if manifest.kind != "llvm":
        return ""
    missing = lacking(manifest)
    return f"this machine lacks instructions the artifact uses: {', '.join(missing)}" if missing else ""


def lacking(manifest: Manifest) -> list[str]:
    """The instructions that a target needs and this machine has not; the instruction set, where it has another one."""
    arch = manifest.arch or host_arch()
    if arch != host_arch():
        return [arch]
    here = {*detect_host().features, *generated()}
    return [feature for feature in manifest.features if feature not in here]


def titles(pairs: Sequence[tuple[str, int]]) -> list[str]:
    """What the targets of one file are called, of their names and numbers of threads.

    >>> titles([("x86-64-v3", 2), ("x86-64-v4", 1), ("x86-64-v4", 2)])
    ['x86-64-v3', 'x86-64-v4@1', 'x86-64-v4@2']
    """
    times = Counter(name for name, _ in pairs)
    return [f"{name}@{threads}" if times[name] > 1 else name for name, threads in pairs]


def preferred(manifests: Sequence[Manifest], threads: int = 0) -> list[Manifest]:
    """The targets, that which needs most first; of one with code for several numbers of threads the code for so many as
    will be used, or the next more, or the most that there is."""
    wanted = threads or default_threads(MOST)
    return sorted(manifests, key=lambda m: (-len(m.features), _order(manifests, m), _distance(m, wanted)))


def _order(manifests: Sequence[Manifest], one: Manifest) -> int:
    """Where a target is named first."""
    return next(i for i, manifest in enumerate(manifests) if manifest.target == one.target)


def _distance(manifest: Manifest, wanted: int) -> tuple[bool, int]:
    return manifest.threads < wanted, abs(manifest.threads - wanted)


def best(manifests: Sequence[Manifest], threads: int = 0) -> Manifest | None:
    """The target that this machine runs, with so many threads or as many as it has cores; None if it can run none."""
    return next((manifest for manifest in preferred(manifests, threads) if not unfit(manifest)), None)


def named(manifests: Sequence[Manifest], target: str, where: str, threads: int = 0) -> Manifest:
    """The target of a name, or of a title such as "x86-64-v4@2".

    Raises:
        InputError: the artifact has none of that name.
    """
    found = [manifest for manifest in manifests if target in (manifest.target, manifest.title)]
    if not found:
        names = ", ".join(manifest.title for manifest in manifests)
        raise InputError(f"the artifact has no code for {target!r}.", where=where, fix=f"it is for {names}")
    return preferred(found, threads)[0]


def chosen(manifests: Sequence[Manifest], where: str, target: str = "", threads: int = 0) -> Manifest:
    """The manifest of the target to run, with what there is beside it.

    Args:
        target: its name; default: the best that this machine can run. The only one of a file is not refused here.
        threads: how many will be used; default: as many as this process has cores.

    Raises:
        ArtifactError: this machine can run none of several; names what each needs and what is missing.
        InputError: there is no target of that name.
    """
    if target:
        return _among(manifests, named(manifests, target, where, threads))
    if len(manifests) == 1:
        return manifests[0]
    found = best(manifests, threads)
    if found is None:
        each = {manifest.target: manifest for manifest in preferred(manifests)}
        raise ArtifactError(
            f"this machine ({detect_host().name}) can run none of the artifact's targets: "
            + "; ".join(map(_told, each.values()))
            + ".",
            where=where,
            fix=f"compile the model for this machine, too: tvmopt compile {manifests[0].model} "
            f"--target {'+'.join(dict.fromkeys(m.target for m in manifests))}+cpu",
        )
    return _among(manifests, found)


def shown(manifests: Sequence[Manifest], where: str, target: str = "") -> Manifest:
    """The same to look at: where this machine can run none, the one that needs most.

    Raises:
        InputError: there is no target of that name.
    """
    if target:
        return _among(manifests, named(manifests, target, where))
    found = best(manifests)
    return _among(manifests, found or preferred(manifests)[0], runs=found is not None)


def _told(manifest: Manifest) -> str:
    """What a target needs, and which of it is missing here."""
    needs = " ".join(manifest.features) if manifest.arch in ("", host_arch()) else manifest.arch
    return f"{manifest.target} needs {needs} (missing: {' '.join(lacking(manifest))})"


def _among(manifests: Sequence[Manifest], found: Manifest, runs: bool = True) -> Manifest:
    if len(manifests) == 1:
        return found
    return replace(found, fleet=tuple(_member(one, runs and one is found) for one in manifests))


def _member(manifest: Manifest, taken: bool) -> Member:
    shared = [manifest.parts[name].bytes for name in manifest.segments if len(container.holders(name)) > 1]
    return Member(
        title=manifest.title,
        target=manifest.target,
        mcpu=manifest.mcpu,
        arch=manifest.arch,
        features=manifest.features,
        threads=manifest.threads,
        library=manifest.parts[manifest.library].bytes if manifest.parts else 0,
        weights=manifest.weight_bytes,
        shared=sum(shared),
        verified=bool(manifest.accuracy.get("verified")),
        lacks=tuple(lacking(manifest)),
        chosen=taken,
    )
