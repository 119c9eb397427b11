"""Networks of the suite, compiled for AArch64 and run by QEMU, where it is."""

import json

import arm
import pytest

from tests.toolchain.test_emulation import missing


@pytest.mark.skipif(bool(missing("aarch64")), reason=missing("aarch64") or "it is here")
@pytest.mark.parametrize(("name", "precision"), [("squeezenet", "fp32"), ("shufflenet", "bf16"), ("zfnet512", "fp16")])
def test_a_network_is_right_on_arm(name: str, precision: str) -> None:
    row = arm.examine(name, precision)
    assert row["right"] and "qemu" in row["emulator"].lower()


def test_the_table_of_what_has_been_run() -> None:
    rows = [json.loads(file.read_text("utf-8")) for file in sorted(arm.RESULTS.glob("*.json"))]
    assert all(row["right"] for row in rows)
    assert arm.table(rows) == (arm.RESULTS / "README.md").read_text("utf-8")
