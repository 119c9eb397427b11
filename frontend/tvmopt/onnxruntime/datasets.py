"""`onnxruntime.datasets`: the models that onnxruntime's package has for its examples."""

from __future__ import annotations

from pathlib import Path

from tvmopt.onnxruntime.replace import real


def get_example(name: str) -> str:
    """The path of an example's model, `sigmoid.onnx` for one.

    Raises:
        FileNotFoundError: there is none. NotImplemented: onnxruntime is not installed.
    """
    path = Path(real().__file__).parent / "datasets" / name
    if not path.is_file():
        raise FileNotFoundError(f"Unable to find example '{name}'")
    return str(path)
