"""Texts in gRPC's messages: a stream's request with tokens or a text, and an answer for each token - for `rpc`.

A request of `ModelStreamInfer` has one input: the decoder's tokens by their name in the model (`input_ids`), or
``text_input``, BYTES of one text. The parameters are those of JSON (`tvmopt.serving.texts`); ``stop`` is a list of
tokens in JSON. An answer has the outputs ``token`` (INT64 [1]) and ``text_output`` (BYTES [1]); the last one has no
token, and the parameters ``finish_reason`` and ``triton_final_response``.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tvmopt.runtime.model import Model
from tvmopt.serving import texts
from tvmopt.serving.refusals import bad

TEXT = "text_input"
INTEGERS = {"INT32": ("int_contents", np.int32), "INT64": ("int64_contents", np.int64)}


def is_text(request: Any, model: Model) -> bool:
    """Whether a request asks for a text, and not for one call of the model."""
    names = [i.name for i in request.inputs]
    return names == [TEXT] or (model.manifest.decoder.in_place and names == [model.manifest.decoder.ids])


def asked(request: Any) -> texts.Asked:
    """What a request asks for.

    Raises:
        Refused: it is not as the module says.
    """
    (one,) = request.inputs
    prompt = _text(request, one) if one.name == TEXT else _tokens(request, one)
    parameters: dict[str, Any] = {}
    for entry in request.parameters:
        kind = entry.value.WhichOneof("parameter_choice")
        if kind is None:
            raise bad(f"the parameter {entry.key!r} has no value.")
        parameters[entry.key] = getattr(entry.value, kind)
    if isinstance(parameters.get("stop"), str):
        try:
            parameters["stop"] = json.loads(parameters["stop"])
        except ValueError:
            raise bad("the parameter 'stop' is no list in JSON.") from None
    return texts.asked(prompt, parameters, request.id)


def answer(types: Any, request: Any, version: str, piece: texts.Piece) -> Any:
    """The message of one piece."""
    text = piece.text.encode()
    outputs = [{"name": "text_output", "datatype": "BYTES", "shape": [1]}]
    raw = [len(text).to_bytes(4, "little") + text]
    parameters = [{"key": "triton_final_response", "value": {"bool_param": piece.token is None}}]
    if piece.token is not None:
        outputs.append({"name": "token", "datatype": "INT64", "shape": [1]})
        raw.append(np.int64(piece.token).tobytes())
    else:
        parameters.append({"key": "finish_reason", "value": {"string_param": piece.finish}})
    return types.ModelInferResponse(
        model_name=request.model_name, model_version=version, id=request.id, outputs=outputs, parameters=parameters,
        raw_output_contents=raw,
    )  # fmt: skip


def _text(request: Any, one: Any) -> str:
    given = [*one.contents.bytes_contents]
    if request.raw_input_contents:
        raw = request.raw_input_contents[0]
        if len(raw) < 4 or int.from_bytes(raw[:4], "little") != len(raw) - 4:
            raise bad(f"the raw contents of {TEXT!r} are no single text behind its length.")
        given = [raw[4:]]
    if one.datatype != "BYTES" or len(given) != 1:
        raise bad(f"{TEXT!r} is one text, of the datatype BYTES.")
    try:
        return str(given[0].decode())
    except UnicodeDecodeError:
        raise bad(f"{TEXT!r} is no UTF-8.") from None


def _tokens(request: Any, one: Any) -> tuple[int, ...]:
    if one.datatype not in INTEGERS:
        raise bad(f"the tokens {one.name!r} are INT32 or INT64, not {one.datatype}.")
    name, kind = INTEGERS[one.datatype]
    given = [*getattr(one.contents, name)]
    if request.raw_input_contents:
        raw = request.raw_input_contents[0]
        if len(raw) % np.dtype(kind).itemsize:
            raise bad(f"the raw contents of {one.name!r} are no {one.datatype}.")
        given = np.frombuffer(raw, kind).tolist()
    return texts.checked_tokens(given)
