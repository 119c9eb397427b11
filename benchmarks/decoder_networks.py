"""The networks that decoders.py exports: transformers' configurations of families of decoders, with random weights.

A family has two sizes: "tiny" compiles in seconds; "base" has 0.05 to 0.6 B parameters in the shape of a small model
that people use, where the family has one. The comments name it.
"""

from __future__ import annotations

import zlib
from typing import Any

SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 160, "vocab_size": 384, "max_position_embeddings": 256, "initializer_range": 0.4,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
FEWER = {"num_key_value_heads": 1, "head_dim": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
DECODERS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": None, "head_dim": 16},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Gemma": FEWER,
    "Gemma2": FEWER | {"sliding_window": 4096, "query_pre_attn_scalar": 16},
    "Gemma3": FEWER | {"sliding_window": 4096, "query_pre_attn_scalar": 16},
    "Phi": {"num_key_value_heads": 4},
    "Phi3": {"num_key_value_heads": 4, "sliding_window": None},
    "GPT2": {"num_key_value_heads": 4},
    "GPTNeoX": {"num_key_value_heads": 4},
    "Qwen3Moe": EXPERTS | {"head_dim": 16, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None, "head_dim": 16},
}
"""The configurations of size "tiny", beside :data:`SMALL`."""


def _shape(hidden: int, layers: int, heads: int, kv_heads: int, inner: int, words: int, most: int) -> dict[str, Any]:
    """Sizes that all families have; weights as large as keep the numbers of a layer where they are."""
    return {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": inner, "vocab_size": words,
        "max_position_embeddings": most, "initializer_range": round(1.5 * hidden**-0.5, 4),
    }  # fmt: skip


BASE: dict[str, dict[str, Any]] = {
    "Llama": _shape(576, 30, 9, 3, 1536, 49152, 8192) | {"tie_word_embeddings": True},  # SmolLM2-135M
    "Mistral": _shape(768, 12, 12, 4, 2048, 32000, 8192) | {"head_dim": 64},
    "Qwen2": _shape(896, 24, 14, 2, 4864, 151936, 32768) | {"tie_word_embeddings": True},  # Qwen2-0.5B
    "Qwen3": _shape(1024, 3, 16, 8, 3072, 32000, 40960) | {"head_dim": 128},  # 3 of Qwen3-0.6B's 28 layers
    "Gemma": _shape(768, 4, 8, 1, 3072, 64000, 8192) | {"head_dim": 128},
    "Gemma2": _shape(768, 12, 8, 4, 3072, 64000, 8192) | {"head_dim": 128, "query_pre_attn_scalar": 128},
    "Gemma3": _shape(640, 18, 4, 1, 2048, 262144, 32768)  # gemma-3-270m
    | {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 512},
    "Phi": _shape(1024, 4, 16, 16, 4096, 25600, 2048),  # half as wide as phi-1, which has 1.3 B
    "Phi3": _shape(1024, 12, 16, 16, 4096, 32064, 4096),
    "GPT2": _shape(768, 12, 12, 12, 3072, 50257, 1024),  # gpt2, 124M
    "GPTNeoX": _shape(768, 12, 12, 12, 3072, 50304, 2048),  # pythia-160m
    "Qwen3Moe": _shape(512, 4, 8, 2, 1536, 32000, 8192)
    | {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "head_dim": 64},
    "Mixtral": _shape(512, 8, 8, 2, 1024, 32000, 8192) | {"num_local_experts": 8, "head_dim": 64},
}
"""What size "base" has instead."""

SIZES = ("tiny", "base")


def config_of(name: str, size: str = "tiny") -> Any:
    """The configuration of a family."""
    import transformers

    options = SMALL | DECODERS[name] | (BASE[name] if size == "base" else {})
    if name == "GPT2":
        names = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
        names |= {"n_positions": "max_position_embeddings", "n_inner": "intermediate_size"}
        options |= {theirs: options[ours] for theirs, ours in names.items()}
    kind = {"Gemma3": "Gemma3Text"}.get(name, name)
    return getattr(transformers, f"{kind}Config")(**options)


def depth_of(config: Any) -> int:
    """Numbers of a head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def network(name: str, size: str = "tiny") -> Any:
    """A family's network with random weights, the same for the same name and size."""
    import torch
    import transformers

    torch.set_grad_enabled(False)
    torch.manual_seed(zlib.crc32(name.encode()))
    kind = {"GPT2": "GPT2LMHead"}.get(name, f"{name}ForCausalLM").removesuffix("Model")
    kind = kind if kind.endswith("ForCausalLM") else f"{kind}Model"
    made = getattr(transformers, kind)(config_of(name, size)).eval()
    if hasattr(made.config, "num_experts_per_tok"):  # a loop over the experts that have tokens is not exported
        made.set_experts_implementation("batched_mm")
    return made


def in_float64() -> Any:
    """A context in which what a network computes in float32 whatever its type, as its norms, is computed in float64."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Wide(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if kwargs.get("dtype") == torch.float32:
                kwargs["dtype"] = torch.float64
            return func(*args, **kwargs)

    return Wide()


def exact(name: str, size: str, prompt: list[int], tokens: list[int]) -> Any:
    """The network's scores in float64 behind the prompt and behind each token but the last: [tokens, vocabulary]."""
    import torch

    model = network(name, size).double()
    with in_float64():
        scores = model(input_ids=torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
    assert scores.dtype == torch.float64
    return scores.numpy()
