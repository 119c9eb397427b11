"""What onnxruntime asks of a node of com.microsoft: its inputs and outputs, their types, its attributes.

ONNX has no schemas of these operators. The table is what ``onnxruntime`` says of those that the importer knows (a test
compares the two); converters and the rules for shapes rely on it.
"""

from __future__ import annotations

import re
from functools import cache

from onnx.defs import OpSchema

DOMAIN = "com.microsoft"

TABLE = """
Attention
    (T input, T weights, T bias?, M mask_index?, T past?, T attention_bias?, M past_sequence_length?) -> (T
        output, T present?)
    do_rotary int, mask_filter_value float, num_heads int!, past_present_share_buffer int, qkv_hidden_sizes
        ints, rotary_embedding_dim int, scale float, unidirectional int
    where M: int32, T: bfloat16 float float16
BiasAdd
    (T X, T bias, T skip) -> (T Y)
    where T: float float16
BiasGelu
    (T A, T B) -> (T C)
    where T: bfloat16 double float float16
BiasSoftmax
    (T data, T bias) -> (T output)
    axis int, is_inner_broadcast int!
    where T: double float float16
BiasSplitGelu
    (T X, T bias) -> (T Y)
    where T: float float16
CDist
    (T A, T B) -> (T C)
    metric string
    where T: double float
ConvTransposeWithDynamicPads
    (T X, T W, tensor(int64) Pads?, T B?) -> (T Y)
    auto_pad string, dilations ints, group int, kernel_shape ints, output_padding ints, strides ints
    where T: double float float16
DequantizeLinear
    (T1 x, T2 x_scale, T1 x_zero_point?) -> (T2 y)
    axis int
    where T1: int16 int32 int4 int8 uint16 uint4 uint8, T2: float float16
DynamicQuantizeLSTM
    (T X, T2 W, T2 R, T B?, T1 sequence_lens?, T initial_h?, T initial_c?, T P?, T W_scale, T2 W_zero_point, T
        R_scale, T2 R_zero_point) -> (T Y?, T Y_h?, T Y_c?)
    activation_alpha floats, activation_beta floats, activations strings, clip float, direction string,
        hidden_size int, input_forget int
    where T: float, T1: int32, T2: int8 uint8
DynamicQuantizeMatMul
    (T1 A, T2 B, T1 b_scale, T2 b_zero_point?, T1 bias?) -> (T1 Y)
    where T1: float, T2: int8 uint8
EmbedLayerNormalization
    (T1 input_ids, T1 segment_ids?, T word_embedding, T position_embedding, T segment_embedding?, T gamma, T
        beta, T1 mask?, T1 position_ids?) -> (T output, T1 mask_index?, T embedding_sum?)
    epsilon float, mask_index_type int
    where T: float float16, T1: int32
ExpandDims
    (T X, tensor(int32) axis) -> (T Y)
    where T: bool complex128 complex64 double float float16 int16 int32 int64 int8 string uint16 uint32 uint64
        uint8
FastGelu
    (T X, T bias?) -> (T Y)
    where T: bfloat16 double float float16
FusedConv
    (T X, T W, T B?, T Z?) -> (T Y)
    activation string, activation_params floats, auto_pad string, dilations ints, group int, kernel_shape ints,
        pads ints, strides ints
    where T: double float float16
FusedGemm
    (T A, T B, T C?) -> (T Y)
    activation string, activation_alpha float, activation_beta float, activation_gamma float, alpha float, beta
        float, transA int, transB int
    where T: double float float16 int32 int64 uint32 uint64
FusedMatMul
    (T A, T B) -> (T Y)
    alpha float, transA int, transB int, transBatchA int, transBatchB int
    where T: bfloat16 double float float16
GatedAdd
    (T X, T Y, T gate, T gate_weight?) -> (T output)
    where T: bfloat16 float float16
GatherBlockQuantized
    (T1 data, Tind indices, T2 scales, T1 zero_points?) -> (T2 output)
    bits int, block_size int, gather_axis int, quantize_axis int
    where T1: float4e2m1 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz int4 uint4 uint8, T2: bfloat16
        float float16, Tind: int32 int64
GatherND
    (T data, Tind indices) -> (T output)
    where T: bool complex128 complex64 double float float16 int16 int32 int64 int8 string uint16 uint32 uint64
        uint8, Tind: int32 int64
Gelu
    (T X) -> (T Y)
    where T: bfloat16 double float float16
GridSample
    (T1 X, T1 Grid) -> (T2 Y)
    align_corners int, mode string, padding_mode string
    where T1: bool complex128 complex64 double float float16 int16 int32 int64 int8 string uint16 uint32 uint64
        uint8, T2: double float float16
GroupNorm
    (T X, M gamma, M beta) -> (T Y)
    activation int!, channels_last int, epsilon float, groups int!
    where M: float float16, T: float float16
GroupQueryAttention
    (T query, T key?, T value?, T_CACHE past_key?, T_CACHE past_value?, M seqlens_k, M total_sequence_length, T
        cos_cache?, T sin_cache?, tensor(int64) position_ids?, T attention_bias?, T head_sink?, T_KV_SCALE
        k_scale?, T_KV_SCALE v_scale?, T q_norm_weight?, T k_norm_weight?, M query_seqlens?) -> (T output,
        T_CACHE present_key?, T_CACHE present_value?, T output_qk?)
    causal int, do_rotary int, k_norm_epsilon float, k_quant_type string, kv_cache_bit_width int, kv_num_heads
        int!, local_window_size int, num_heads int!, q_norm_epsilon float, qk_norm_epsilon float, qk_output int,
        rotary_interleaved int, scale float, sliding_window_cache int, smooth_softmax int, softcap float,
        v_quant_type string
    where M: int32, T: bfloat16 float float16, T_CACHE: bfloat16 float float16 float8e4m3fn int8 uint8,
        T_KV_SCALE: float
MatMulBnb4
    (T1 A, T2 B, T1 absmax) -> (T1 Y)
    K int!, N int!, block_size int!, quant_type int!, training_mode int, transB int
    where T1: bfloat16 float float16, T2: uint8
MatMulInteger16
    (T1 A, T2 B) -> (T3 Y)
    where T1: int16 uint16, T2: int16 uint16, T3: int32 uint32
MatMulIntegerToFloat
    (T1 A, T2 B, T3 a_scale, T3 b_scale, T1 a_zero_point?, T2 b_zero_point?, T3 bias?) -> (T3 Y)
    where T1: int8 uint8, T2: int8 uint8, T3: float float16
MatMulNBits
    (T1 A, T2 B, T1 scales, T3 zero_points?, T4 g_idx?, T1 bias?) -> (T1 Y)
    K int!, N int!, accuracy_level int, bits int, block_size int!, weight_prepacked int
    where T1: bfloat16 float float16, T2: uint8, T3: bfloat16 float float16 uint8, T4: int32
MultiHeadAttention
    (T query, T key?, T value?, T bias?, M key_padding_mask?, T attention_bias?, T past_key?, T past_value?, M
        past_sequence_length?, M cache_indirection?) -> (T output, T present_key?, T present_value?, QK qk?)
    mask_filter_value float, num_heads int!, scale float, unidirectional int
    where M: int32, QK: bfloat16 float float16, T: bfloat16 float float16
NhwcMaxPool
    (T x) -> (T y)
    auto_pad string, ceil_mode int, dilations ints, kernel_shape ints!, pads ints, strides ints
    where T: int8 uint8
Pad
    (T data, tensor(int64) pads, T value?) -> (T output)
    mode string
    where T: double float float16
QAttention
    (T1 input, T2 weight, T3 bias, T3 input_scale, T3 weight_scale, T4 mask_index?, T1 input_zero_point?, T2
        weight_zero_point?, T3 past?) -> (T3 output, T3 present?)
    do_rotary int, mask_filter_value float, num_heads int!, past_present_share_buffer int, scale float,
        unidirectional int
    where T1: int8 uint8, T2: int8 uint8, T3: float float16, T4: int32
QEmbedLayerNormalization
    (T1 input_ids, T1 segment_ids?, T2 word_embedding_quant, T2 position_embedding_quant, T2 segment_embedding?,
        T2 gamma_quant, T2 beta_quant, T1 mask?, T word_embedding_scale, T position_embedding_scale, T
        segment_embedding_scale?, T gamma_scale, T beta_scale, T2 word_embedding_zero_point, T2
        position_embedding_zero_point, T2 segment_embedding_zero_point?, T2 gamma_zero_point, T2
        beta_zero_point) -> (T layernorm_out, T1 mask_index_out)
    epsilon float
    where T: float, T1: int32, T2: int8 uint8
QGemm
    (TA A, T a_scale, TA a_zero_point, TB B, T b_scale, TB b_zero_point, TC C?, T y_scale?, TYZ y_zero_point?)
        -> (TY Y)
    alpha float, transA int, transB int
    where T: float, TA: int8 uint8, TB: int8 uint8, TC: int32, TY: float int8 uint8, TYZ: int8 uint8
QLinearAdd
    (T A, tensor(float) A_scale, T A_zero_point?, T B, tensor(float) B_scale, T B_zero_point?, tensor(float)
        C_scale, T C_zero_point?) -> (T C)
    where T: int8 uint8
QLinearAveragePool
    (T X, tensor(float) x_scale, T x_zero_point?, tensor(float) y_scale, T y_zero_point?) -> (T Y)
    auto_pad string, ceil_mode int, channels_last int, count_include_pad int, kernel_shape ints!, pads ints,
        strides ints
    where T: int8 uint8
QLinearConcat
    (TF Y_scale, T8 Y_zero_point, TV inputs*~) -> (T8 Y)
    axis int!
    where T8: int8 uint8, TF: float, TV: float int8 uint8
QLinearConv
    (T1 x, tensor(float) x_scale, T1 x_zero_point, T2 w, tensor(float) w_scale, T2 w_zero_point, tensor(float)
        y_scale, T3 y_zero_point, T4 B?) -> (T3 y)
    auto_pad string, channels_last int, dilations ints, group int, kernel_shape ints, pads ints, strides ints
    where T1: int8 uint8, T2: int8 uint8, T3: int8 uint8, T4: int32
QLinearGlobalAveragePool
    (T X, tensor(float) x_scale, T x_zero_point, tensor(float) y_scale, T y_zero_point) -> (T Y)
    channels_last int
    where T: int8 uint8
QLinearLeakyRelu
    (T X, tensor(float) X_scale, T X_zero_point?, tensor(float) Y_scale, T Y_zero_point?) -> (T Y)
    alpha float
    where T: int8 uint8
QLinearMul
    (T A, tensor(float) A_scale, T A_zero_point?, T B, tensor(float) B_scale, T B_zero_point?, tensor(float)
        C_scale, T C_zero_point?) -> (T C)
    where T: int8 uint8
QLinearReduceMean
    (T data, tensor(float) data_scale, T data_zero_point?, tensor(float) reduced_scale, T reduced_zero_point?)
        -> (T reduced)
    axes ints!, keepdims int!
    where T: int8 uint8
QLinearSigmoid
    (T X, tensor(float) X_scale, T X_zero_point?, tensor(float) Y_scale, T Y_zero_point?) -> (T Y)
    where T: int8 uint8
QLinearSoftmax
    (T X, tensor(float) X_scale, T x_zero_point?, tensor(float) y_scale, T y_zero_point) -> (T Y)
    axis int, opset int!
    where T: int8 uint8
QLinearWhere
    (B condition, T X, TF x_scale, T x_zero_point, T Y, TF y_scale, T y_zero_point, TF z_scale, T z_zero_point)
        -> (T Z)
    where B: bool, T: int8 uint8, TF: float
QuantizeLinear
    (T1 x, T1 y_scale, T2 y_zero_point?) -> (T2 y)
    axis int
    where T1: float float16, T2: int16 int4 int8 uint16 uint4 uint8
QuickGelu
    (T X) -> (T Y)
    alpha float
    where T: bfloat16 double float float16
Range
    (T start, T limit, T delta?) -> (T Y)
    where T: double float int16 int32 int64
RotaryEmbedding
    (T input, M position_ids, T cos_cache, T sin_cache) -> (T output)
    interleaved int, is_packed_batching int, num_heads int, rotary_embedding_dim int, scale float
    where M: int64, T: bfloat16 float float16
SkipGroupNorm
    (T X, M gamma, M beta, T skip, T bias?) -> (T Y, T S?)
    activation int!, channels_last int, epsilon float, groups int!
    where M: float float16, T: float float16
SkipLayerNormalization
    (T input, T skip, T gamma, T beta?, T bias?) -> (T output, U mean?, U inv_std_var?, T input_skip_bias_sum?)
    epsilon float
    where T: bfloat16 float float16, U: float
SkipSimplifiedLayerNormalization
    (T input, T skip, T gamma, T bias?) -> (T output, U mean?, U inv_std_var?, T input_skip_bias_sum?)
    epsilon float
    where T: bfloat16 float float16, U: float
TransposeMatMul
    (T A, T B) -> (T Y)
    alpha float, transA int, transB int
    where T: bfloat16 double float float16
Trilu
    (T X, tensor(int64) k?) -> (T Y)
    upper int
    where T: bfloat16 bool double float float16 int16 int32 int64 int8 uint16 uint32 uint64 uint8
UnfoldTensor
    (T input) -> (T output)
    dim int, size int!, step int
    where T: bfloat16 bool complex128 complex64 double float float16 int16 int32 int64 int8 string uint16 uint32
        uint64 uint8
"""
"""Of each operator: ``(type name, ...) -> (type name, ...)`` of its inputs and outputs, behind a name `?`: may be left
out, `*`: any number, `~`: of different types; its attributes, `!`: required; what its types stand for."""

KIND = OpSchema.FormalParameterOption
OPTIONS = {"": KIND.Single, "?": KIND.Optional, "*": KIND.Variadic}


@cache
def contrib_schema(op_type: str) -> OpSchema | None:
    """The schema of an operator of com.microsoft, which knows no shapes; None of one that the table lacks."""
    text = _entries().get(op_type)
    if text is None:
        return None
    sides, rest = re.fullmatch(r"(\(.*?\) -> \(.*?\))(.*)", text).groups()  # type: ignore[union-attr]
    given, _, types = rest.partition(" where ")
    inputs, outputs = ([_parameter(p) for p in side.strip("()").split(", ")] for side in sides.split(" -> "))
    pairs = [entry.split(": ") for entry in types.split(", ")] if types else []
    return OpSchema(
        op_type,
        DOMAIN,
        1,
        inputs=inputs,
        outputs=outputs,
        type_constraints=[(name, [f"tensor({kind})" for kind in kinds.split()], "") for name, kinds in pairs],
        attributes=[_attribute(*entry.split()) for entry in given.split(", ") if entry.strip()],
    )


@cache
def _entries() -> dict[str, str]:
    """The table's entries, each on one line."""
    blocks = re.split(r"\n(?=\w)", TABLE.strip())
    return {name: " ".join(rest.split()) for name, _, rest in (block.partition("\n") for block in blocks)}


def _parameter(text: str) -> OpSchema.FormalParameter:
    kind, name = text.split()
    bare = name.rstrip("?*~")
    option = OPTIONS[name[len(bare) :].rstrip("~")]
    return OpSchema.FormalParameter(bare, kind, "", param_option=option, is_homogeneous=not name.endswith("~"))


def _attribute(name: str, kind: str) -> OpSchema.Attribute:
    return OpSchema.Attribute(
        name, getattr(OpSchema.AttrType, kind.rstrip("!").upper()), "", required=kind.endswith("!")
    )
