"""Small networks of transformers with random weights, exported as ONNX - for checks of the judge.

What an exporter makes of today's architectures, at sizes that compile in seconds.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from models import _calibrate_batchnorm, _randomise, _scrub, _wrap

TEXT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
DECODER = TEXT | {"num_key_value_heads": 2, "use_cache": False, "vocab_size": 512, "max_position_embeddings": 64}
IMAGE = TEXT | {"image_size": 64, "patch_size": 16}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "Bert": ("text", TEXT),
    "Roberta": ("text", TEXT),
    "Electra": ("text", TEXT | {"embedding_size": 32}),
    "Albert": ("text", TEXT | {"embedding_size": 32}),
    "MPNet": ("text", TEXT),
    "DistilBert": ("text", {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}),
    "Deberta": ("text", TEXT),
    "SqueezeBert": ("text", TEXT | {"embedding_size": 64}),
    "GPT2": ("text", {"n_embd": 64, "n_layer": 2, "n_head": 4, "use_cache": False}),
    "OPT": ("text", TEXT | {"ffn_dim": 128, "word_embed_proj_dim": 64, "use_cache": False}),
    "Llama": ("text", DECODER),
    "Mistral": ("text", DECODER),
    "Qwen2": ("text", DECODER),
    "Gemma": ("text", DECODER | {"head_dim": 16}),
    "Phi": ("text", DECODER),
    "GPTNeoX": ("text", DECODER),
    "ViT": ("image", IMAGE),
    "DeiT": ("image", IMAGE),
    "Beit": ("image", IMAGE),
    "Swin": ("image", {"image_size": 64, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}),
    "ConvNext": ("image", {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 48]}),
    "ConvNextV2": ("image", {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 48]}),
    "ResNet": ("image", {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 48], "embedding_size": 16}),
    "RegNet": ("image", {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 48], "groups_width": 8}),
    "MobileNetV1": ("image", {"depth_multiplier": 0.25}),
    "MobileNetV2": ("image", {"depth_multiplier": 0.35}),
    "MobileViT": ("image", {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 40]}),
    "PoolFormer": ("image", {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 48]}),
    "Segformer": ("image", {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 48]}),
    "Bit": ("image", {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 48, 64], "embedding_size": 16}),
}


def export(name: str, path: Path) -> None:
    """Write one network; the same name gives the same weights."""
    import torch
    import transformers

    torch.set_grad_enabled(False)
    torch.manual_seed(zlib.crc32(name.encode()))
    kind, options = CONFIGS[name]
    config = getattr(transformers, f"{name}Config")(**options)
    model = getattr(transformers, f"{name}Model")(config)
    if kind == "text":
        names = ("input_ids",)
        inputs = {"input_ids": torch.randint(0, config.vocab_size, (1, 17))}
    else:
        names = ("pixel_values",)
        inputs = {"pixel_values": torch.randn(1, 3, 64, 64)}
    wrapped = _wrap(model, lambda out: out.last_hidden_state, names)
    _randomise(wrapped, torch.Generator().manual_seed(1))
    _calibrate_batchnorm(wrapped, inputs)
    wrapped.eval()
    torch.onnx.export(
        wrapped, tuple(inputs.values()), path, dynamo=True, external_data=False, verbose=False,
        input_names=list(inputs), output_names=["output"],
    )  # fmt: skip
    _scrub(path)
