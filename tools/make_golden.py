#!/usr/bin/env python3
"""Writes tests/golden/data: tiny random models of every architecture, and the logits that transformers computes for them.

    pip install torch==2.6.0 transformers==4.52.4 safetensors==0.5.3 numpy    # the cases up to qwen3-yarn
    pip install transformers==5.23.0 torch safetensors numpy                  # the cases up to gpt-oss
    pip install transformers==5.24.0 torch safetensors numpy                  # the others
    tools/make_golden.py NAME...

Each case is a Hugging Face folder plus golden.json (tokens, which rows are stored, error levels) and raw little-endian f32 logits
[rows, vocab]:

  truth.f32          transformers' own code, run in float64 throughout (also where it says float32: norms, softmax, angles)
  truth_kv_X.f32     the same with keys (after RoPE) and values rounded to X on their way into attention; f32 and f16 weights only

The levels are errors against those truths, max and rms over the stored rows, of plain arithmetic:

  plain.X    transformers in the weights' own dtype, keys and values rounded to X; against truth
  rounded.X  plain.X with what experts in MXFP4 multiply rounded to bf16; such weights only
  sharp.X    transformers in float32, keys and values rounded to X; against truth_kv_X

Each level is the largest of several runs whose hidden dimension is permuted: the same model, its sums in another order. Every option
that a case is about is taken away once, and the truth must then move by more than five times the tolerance: a test on these files
that passes has really used the option.
"""
import contextlib
import json
import pathlib
import struct
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

try:
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as attention_with_sinks
except ImportError:  # transformers before 5
    attention_with_sinks = None

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "data"
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
KV_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
N_PERMUTED = 16
N_DECODE = 12  # the last rows, all stored

kv_rounding = None  # dtype that keys and values are rounded to, or None


def rounded_attention(module, query, key, value, mask, **kwargs):
    if kv_rounding is not None:
        key, value = key.to(kv_rounding).to(query.dtype), value.to(kv_rounding).to(query.dtype)
    attention = attention_with_sinks if hasattr(module, "sinks") else eager_attention_forward
    return attention(module, query, key, value, mask, **kwargs)


ALL_ATTENTION_FUNCTIONS["golden"] = rounded_attention
if transformers.__version__ >= "5":  # which makes no mask for attention that it does not know
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
    ALL_MASK_ATTENTION_FUNCTIONS.register("golden", eager_mask)


@contextlib.contextmanager
def float32_means_float64():
    """transformers computes norms, softmax and angles in float32 whatever the model's dtype; here they run in float64."""
    saved = torch.float32, torch.float, torch.Tensor.float
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = saved
        torch.set_default_dtype(default)


def case(arch, dtype, *, n_tokens, drop, context=0, mxfp4=False, vision=None, **config):
    """drop: name -> change of the config, or function on the state dict, that takes one option away.
    mxfp4: experts have values that MXFP4 holds, and are stored as such.
    vision: vision_config of a model that reads pictures; `config` is that of its text."""
    base = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, max_position_embeddings=256,
                rms_norm_eps=0.05, tie_word_embeddings=False)
    if "rope_parameters" not in config:
        base["rope_theta"] = 100.0
    drop = {"theta": {"rope_theta": 150.0}, "eps": {"rms_norm_eps": 1e-6}, **drop}
    return dict(arch=arch, dtype=dtype, n_tokens=n_tokens, context=context, drop=drop, mxfp4=mxfp4, vision=vision,
                config={**base, **config})


def without(suffix, value):
    def change(state):
        return {k: torch.full_like(v, value) if k.endswith(suffix) else v for k, v in state.items()}
    return change


def rope(base, **changes):
    return {"rope_parameters": {**base, **changes}}


PLAIN_ROPE = {"rope_type": "default", "rope_theta": 100.0}
MISTRAL3_ROPE = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 4.0,
                 "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}
# Its ramp is from 3.87 to 10.39 of 8 pairs; truncated it would be from 3 to 11.
GPT_OSS_ROPE = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 4.0,
                "beta_slow": 1.0, "truncate": False}
NO_SCALING = {"scaling": {"rope_scaling": None}}
THETA = {"theta": {"rope_parameters": {**PLAIN_ROPE, "rope_theta": 150.0}}}
BIASES = {"q bias": without("q_proj.bias", 0), "k bias": without("k_proj.bias", 0), "v bias": without("v_proj.bias", 0)}
OLMO3_ROPE = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 4.0,
              "beta_slow": 1.0, "attention_factor": 1.6}


def olmo3_rope(full, window=PLAIN_ROPE):
    return {"rope_parameters": {"full_attention": full, "sliding_attention": window}}


def longrope(pairs, original, **changes):
    return {"rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": original,
            "short_factor": [1 + 0.5 * i / pairs for i in range(pairs)], "long_factor": [1 + 8.0 * i / pairs for i in range(pairs)],
            **changes}


QWEN3_VL_ROPE = {**PLAIN_ROPE, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
QWEN2_VL_ROPE = {**PLAIN_ROPE, "mrope_section": [2, 1, 1]}
PARTIAL_ROPE = {**PLAIN_ROPE, "partial_rotary_factor": 0.5}
HUNYUAN_ROPE = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 1.0, "alpha": 20.0}
# 4 of a head's 16 values rotate. Two key heads, four or six value heads; three layers of linear attention before each other one.
HYBRID_ROPE = {**PLAIN_ROPE, "partial_rotary_factor": 0.25}
HYBRID = dict(num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, linear_num_key_heads=2,
              linear_key_head_dim=8, linear_value_head_dim=12, linear_conv_kernel_dim=4)


def changed(suffix, change):
    return lambda state: {k: change(v) if k.endswith(suffix) else v for k, v in state.items()}


def without_output_gates(state):
    def zeros(w):  # rows of a head: 16 of q, 16 of its gate
        return torch.cat([w.view(4, 2, 16, -1)[:, :1], torch.zeros_like(w.view(4, 2, 16, -1)[:, 1:])], 1).view_as(w)
    return changed("q_proj.weight", zeros)(state)


def tiled_heads(state):
    """Value heads in GGUF's order, where they have key heads 0, 1, 0, 1: another model to who reads them as 0, 0, 1, 1."""
    def of(rows, first=0):
        def tile(w):
            heads = w[first:].view(2, -1, rows, *w.shape[1:])
            return torch.cat([w[:first], heads.transpose(0, 1).reshape(w[first:].shape)])
        return tile
    columns = of(12)
    for suffix, change in {"in_proj_qkv.weight": of(12, 32), "conv1d.weight": of(12, 32), "in_proj_z.weight": of(12), "A_log": of(1),
                           "in_proj_a.weight": of(1), "in_proj_b.weight": of(1), "dt_bias": of(1),
                           "out_proj.weight": lambda w: columns(w.T.contiguous()).T.contiguous()}.items():
        state = changed(suffix, change)(state)
    return state


HYBRID_DROP = {"theta": rope(HYBRID_ROPE, rope_theta=150.0), "width of RoPE": rope(HYBRID_ROPE, partial_rotary_factor=0.5),
               "q norm": without("q_norm.weight", 0), "k norm": without("k_norm.weight", 0), "output gate": without_output_gates,
               "order of taps": changed("conv1d.weight", lambda w: w.flip(-1)), "decay": without("A_log", -10),
               "dt": without("dt_bias", 0), "norm of heads": without("linear_attn.norm.weight", 1),
               "1 of the norms": changed("layernorm.weight", lambda w: w - 1)}
HYBRID_PARTS = {"beta": without("in_proj_b.weight", 0), "alpha": without("in_proj_a.weight", 0), "z": without("in_proj_z.weight", 1),
                "order of heads": tiled_heads}
HYBRID_EXPERTS = {"second expert": {"num_experts_per_tok": 1}, "router": without("mlp.gate.weight", 0),
                  "shared expert": without("shared_expert.down_proj.weight", 0),
                  "gate of the shared expert": without("shared_expert_gate.weight", 0)}
QWEN3_VISION = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, out_hidden_size=32, patch_size=2, in_channels=1,
                    deepstack_visual_indexes=[0], num_position_embeddings=4)
QWEN2_VISION = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=2, out_hidden_size=32, patch_size=2, in_channels=1)
def gemma3_rope(full, windows=PLAIN_ROPE):
    return {"rope_parameters": {"full_attention": full, "sliding_attention": windows}}


def unscaled_embeddings(state):
    """Gemma's embeddings are multiplied by sqrt(hidden), the tied head is not."""
    scale = state["model.norm.weight"].shape[0] ** 0.5
    return {**state, "model.embed_tokens.weight": state["model.embed_tokens.weight"].float() / scale,
            "model.norm.weight": (1 + state["model.norm.weight"].float()) * scale - 1}


def norms_less_one(state):
    return {k: v.float() - 1 if k.endswith("norm.weight") else v for k, v in state.items()}


GEMMA3_ROPE = {"rope_type": "linear", "rope_theta": 400.0, "factor": 4.0}
CASES = {
    "llama-f32": case("Llama", "float32", n_tokens=72, drop={},
                      num_attention_heads=2, num_key_value_heads=2, head_dim=16),
    "llama-llama3": case("Llama", "float32", n_tokens=100, drop=NO_SCALING, tie_word_embeddings=True,
                         num_attention_heads=8, num_key_value_heads=2, head_dim=8, max_position_embeddings=128,
                         rope_scaling={"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                       "original_max_position_embeddings": 32}),
    "llama-linear": case("Llama", "float16", n_tokens=72, drop=NO_SCALING, tie_word_embeddings=True,
                         num_attention_heads=5, num_key_value_heads=1, head_dim=16,
                         rope_scaling={"rope_type": "linear", "factor": 3.0}),
    "llama-dynamic": case("Llama", "bfloat16", n_tokens=96, context=96, drop=NO_SCALING,
                          num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=40,
                          rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
    "mistral": case("Mistral", "bfloat16", n_tokens=72, drop={}, sliding_window=None,
                    num_attention_heads=8, num_key_value_heads=2, head_dim=16),
    "mistral-window": case("Mistral", "bfloat16", n_tokens=100,
                           drop={"window": {"sliding_window": None}, "window + 1": {"sliding_window": 25}}, sliding_window=24,
                           num_attention_heads=4, num_key_value_heads=1, head_dim=16),
    # A window that is named but switched off, as published Qwen2 configurations have it.
    "qwen2": case("Qwen2", "bfloat16", n_tokens=72, tie_word_embeddings=True, sliding_window=16, use_sliding_window=False,
                  drop={"q bias": without("q_proj.bias", 0), "k bias": without("k_proj.bias", 0), "v bias": without("v_proj.bias", 0)},
                  num_attention_heads=14, num_key_value_heads=2, head_dim=8),
    "qwen3": case("Qwen3", "bfloat16", n_tokens=72, tie_word_embeddings=True,
                  drop={"q norm": without("q_norm.weight", 1), "k norm": without("k_norm.weight", 1)},
                  num_attention_heads=10, num_key_value_heads=2, head_dim=8),
    "qwen3-yarn": case("Qwen3", "bfloat16", n_tokens=100,
                       drop={**NO_SCALING, "q norm": without("q_norm.weight", 1), "k norm": without("k_norm.weight", 1)},
                       num_attention_heads=8, num_key_value_heads=2, head_dim=16,
                       rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                                     "beta_fast": 4.0, "beta_slow": 1.0}),
    # Queries grow at 32, 64 and 96.
    "mistral3": case("Ministral3", "bfloat16", n_tokens=100,
                     drop={"theta": rope(MISTRAL3_ROPE, rope_theta=150.0), "scaling": rope(MISTRAL3_ROPE, rope_type="default"),
                           "temperature": rope(MISTRAL3_ROPE, llama_4_scaling_beta=0.0),
                           "scale of cos and sin": rope(MISTRAL3_ROPE, mscale=0.0)},
                     num_attention_heads=8, num_key_value_heads=2, head_dim=16, max_position_embeddings=128,
                     rope_parameters=MISTRAL3_ROPE),
    # f32, so that rounding sends no row to other experts than the truth's: see tokens_of().
    "qwen3moe": case("Qwen3Moe", "float32", n_tokens=72,
                     drop={"theta": rope(PLAIN_ROPE, rope_theta=150.0), "q norm": without("q_norm.weight", 1),
                           "k norm": without("k_norm.weight", 1), "shares that sum to 1": {"norm_topk_prob": False},
                           "second expert": {"num_experts_per_tok": 1}, "router": without("mlp.gate.weight", 0)},
                     num_attention_heads=8, num_key_value_heads=2, head_dim=8, num_experts=8, num_experts_per_tok=2,
                     moe_intermediate_size=16, norm_topk_prob=True, rope_parameters=PLAIN_ROPE),
    "gpt-oss": case("GptOss", "float32", n_tokens=100,
                    drop={"theta": rope(GPT_OSS_ROPE, rope_theta=150.0), "scaling": rope(GPT_OSS_ROPE, rope_type="default"),
                          "ramp between pairs": rope(GPT_OSS_ROPE, truncate=True),
                          "sinks": without("sinks", -100), "window + 1": {"sliding_window": 17}, "window - 1": {"sliding_window": 15},
                          "windows in even layers": {"layer_types": ["full_attention", "sliding_attention"] * 2},
                          "q bias": without("q_proj.bias", 0), "k bias": without("k_proj.bias", 0), "v bias": without("v_proj.bias", 0),
                          "o bias": without("o_proj.bias", 0), "router bias": without("router.bias", 0),
                          "gate and up bias": without("gate_up_proj_bias", 0), "down bias": without("down_proj_bias", 0),
                          "cut-off": {"swiglu_limit": 1e6}, "1.702": {"swiglu_alpha": 1.0},
                          "second expert": {"num_experts_per_tok": 1}, "router": without("router.weight", 0)},
                    num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, head_dim=16, num_local_experts=4,
                    num_experts_per_tok=2, intermediate_size=32, sliding_window=16, layer_types=["sliding_attention", "full_attention"] * 2,
                    rope_parameters=GPT_OSS_ROPE, mxfp4=True),
    "granite": case("Granite", "bfloat16", n_tokens=72, tie_word_embeddings=True,
                    drop={**THETA, "embedding multiplier": {"embedding_multiplier": 1.0},
                          "attention multiplier": {"attention_multiplier": 8 ** -0.5},
                          "residual multiplier": {"residual_multiplier": 1.0}, "divisor of logits": {"logits_scaling": 1.0}},
                    num_attention_heads=4, num_key_value_heads=2, embedding_multiplier=0.6, attention_multiplier=0.8,
                    residual_multiplier=0.6, logits_scaling=1.5, rope_parameters=PLAIN_ROPE),
    "qwen3-vl": case("Qwen3VL", "bfloat16", n_tokens=72, vision=QWEN3_VISION,
                     drop={**THETA, "q norm": without("q_norm.weight", 1), "k norm": without("k_norm.weight", 1)},
                     num_attention_heads=8, num_key_value_heads=2, head_dim=8,
                     rope_parameters=QWEN3_VL_ROPE),
    "qwen3-vl-moe": case("Qwen3VLMoe", "float32", n_tokens=72, vision=QWEN3_VISION,
                         drop={"theta": rope(QWEN3_VL_ROPE, rope_theta=150.0), "q norm": without("q_norm.weight", 1),
                               "k norm": without("k_norm.weight", 1), "second expert": {"num_experts_per_tok": 1},
                               "router": without("mlp.gate.weight", 0)},
                         num_attention_heads=8, num_key_value_heads=2, head_dim=8, num_experts=8, num_experts_per_tok=2,
                         moe_intermediate_size=16, rope_parameters=QWEN3_VL_ROPE),
    "qwen2-5-vl": case("Qwen2_5_VL", "bfloat16", n_tokens=72, vision=QWEN2_VISION,
                       drop={"theta": rope(QWEN2_VL_ROPE, rope_theta=150.0), **BIASES},
                       num_attention_heads=4, num_key_value_heads=2,
                       rope_parameters=QWEN2_VL_ROPE),
    "smollm3": case("SmolLM3", "float32", n_tokens=72, tie_word_embeddings=True,
                    drop={**THETA, "layer without RoPE": {"no_rope_layers": [1, 1, 1, 1]},
                          "that layer": {"no_rope_layers": [1, 1, 0, 1]}},
                    num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=1, pad_token_id=0, rope_parameters=PLAIN_ROPE),
    "seed-oss": case("SeedOss", "bfloat16", n_tokens=72, drop={**THETA, **BIASES},
                     num_attention_heads=6, num_key_value_heads=2, head_dim=16, rope_parameters=PLAIN_ROPE),
    "olmo2": case("Olmo2", "bfloat16", n_tokens=72,
                  drop={**THETA, "q norm": without("q_norm.weight", 1), "k norm": without("k_norm.weight", 1),
                        "norm behind attention": without("post_attention_layernorm.weight", 1),
                        "norm behind the MLP": without("post_feedforward_layernorm.weight", 1)},
                  num_attention_heads=4, num_key_value_heads=2, rope_parameters=PLAIN_ROPE),
    "olmo3": case("Olmo3", "bfloat16", n_tokens=100,
                  drop={"theta": olmo3_rope({**OLMO3_ROPE, "rope_theta": 150.0}, {**PLAIN_ROPE, "rope_theta": 150.0}),
                        "scaling": olmo3_rope(PLAIN_ROPE), "scaling of full layers alone": olmo3_rope(OLMO3_ROPE, OLMO3_ROPE),
                        "scale of cos and sin": olmo3_rope({**OLMO3_ROPE, "attention_factor": 1.0}),
                        "window + 1": {"sliding_window": 17},
                        "fourth layer full": {"layer_types": ["sliding_attention"] * 2 + ["full_attention", "sliding_attention"]},
                        "q norm": without("q_norm.weight", 1), "k norm": without("k_norm.weight", 1)},
                  num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, sliding_window=16, max_position_embeddings=128,
                  **olmo3_rope(OLMO3_ROPE)),
    # The long factors: the model is loaded with more than 32 tokens. 12 of 16 values rotate.
    "phi3": case("Phi3", "bfloat16", n_tokens=100,
                 drop={"theta": rope(longrope(6, 32, partial_rotary_factor=0.75), rope_theta=150.0),
                       "factors": rope(longrope(6, 32, partial_rotary_factor=0.75), long_factor=[1.0] * 6),
                       "scale of cos and sin": {"max_position_embeddings": 32},
                       "unrotated values": rope(longrope(8, 32))},
                 num_attention_heads=2, num_key_value_heads=1, original_max_position_embeddings=32, pad_token_id=0,
                 rope_parameters=longrope(6, 32, partial_rotary_factor=0.75)),
    # The short ones: a context of 100 tokens. All values rotate.
    "phi3-short": case("Phi3", "bfloat16", n_tokens=100, context=100,
                       drop={"theta": rope(longrope(8, 128), rope_theta=150.0),
                             "factors": rope(longrope(8, 128), short_factor=[1.0] * 8)},
                       num_attention_heads=2, num_key_value_heads=2, original_max_position_embeddings=128, pad_token_id=0,
                       rope_parameters=longrope(8, 128)),
    "glm4": case("Glm4", "bfloat16", n_tokens=72,
                 drop={"theta": rope(PARTIAL_ROPE, rope_theta=150.0), "unrotated half": rope(PARTIAL_ROPE, partial_rotary_factor=1.0),
                       **BIASES, "norm behind attention": without("post_self_attn_layernorm.weight", 1),
                       "norm behind the MLP": without("post_mlp_layernorm.weight", 1)},
                 num_attention_heads=6, num_key_value_heads=2, head_dim=16, attention_bias=True, pad_token_id=0,
                 rope_parameters=PARTIAL_ROPE),
    "ernie4-5": case("Ernie4_5", "bfloat16", n_tokens=72, tie_word_embeddings=True, drop=THETA,
                     num_attention_heads=6, num_key_value_heads=2, head_dim=16, rope_parameters=PLAIN_ROPE),
    "hunyuan-dense": case("HunYuanDenseV1", "bfloat16", n_tokens=72, tie_word_embeddings=True,
                          drop={"theta": rope(HUNYUAN_ROPE, rope_theta=150.0), "alpha": rope(HUNYUAN_ROPE, alpha=1.0),
                                "q norm": without("query_layernorm.weight", 1), "k norm": without("key_layernorm.weight", 1)},
                          num_attention_heads=6, num_key_value_heads=2, head_dim=16, rope_parameters=HUNYUAN_ROPE),
    # Layer 5 is full.
    "gemma3": case("Gemma3", "float32", n_tokens=100, tie_word_embeddings=True,
                   drop={"theta": gemma3_rope({**GEMMA3_ROPE, "rope_theta": 900.0}),
                         "theta of windows": gemma3_rope(GEMMA3_ROPE, {**PLAIN_ROPE, "rope_theta": 400.0}),
                         "scaling": gemma3_rope({**GEMMA3_ROPE, "rope_type": "default"}),
                         "scaling of full layers alone": gemma3_rope(GEMMA3_ROPE, {**PLAIN_ROPE, "rope_type": "linear", "factor": 4.0}),
                         "window + 1": {"sliding_window": 17}, "sixth layer full": {"layer_types": ["sliding_attention"] * 7},
                         "q norm": without("q_norm.weight", 0), "k norm": without("k_norm.weight", 0),
                         "norm behind attention": without("post_attention_layernorm.weight", 0),
                         "norm before the MLP": without("pre_feedforward_layernorm.weight", 0),
                         "norm behind the MLP": without("post_feedforward_layernorm.weight", 0),
                         "1 + w": norms_less_one, "scale of embeddings": unscaled_embeddings,
                         "scale of queries": {"query_pre_attn_scalar": 16}, "GELU": {"hidden_activation": "silu"},
                         "cap of logits": {"final_logit_softcapping": None}},
                   num_hidden_layers=7, num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=16,
                   query_pre_attn_scalar=5, final_logit_softcapping=4.0, pad_token_id=0, hidden_activation="gelu_pytorch_tanh",
                   **gemma3_rope(GEMMA3_ROPE)),
    "qwen3-5": case("Qwen3_5", "float32", n_tokens=100, vision=QWEN3_VISION, tie_word_embeddings=True, drop={**HYBRID_DROP, **HYBRID_PARTS}, **HYBRID,
                    linear_num_value_heads=6, rope_parameters={**HYBRID_ROPE, "mrope_section": [1, 1, 0], "mrope_interleaved": True}),
    "qwen3-5-moe": case("Qwen3_5Moe", "float32", n_tokens=100, vision=QWEN3_VISION,
                        drop={**HYBRID_DROP, **HYBRID_PARTS, **HYBRID_EXPERTS}, **HYBRID, linear_num_value_heads=4, num_experts=8,
                        num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24,
                        rope_parameters={**HYBRID_ROPE, "mrope_section": [1, 1, 0], "mrope_interleaved": True}),
    "qwen3-next": case("Qwen3Next", "float32", n_tokens=100,
                       drop={**HYBRID_DROP, **HYBRID_EXPERTS, "shares that sum to 1": {"norm_topk_prob": False}}, **HYBRID,
                       linear_num_value_heads=6, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True,
                       shared_expert_intermediate_size=24, rope_parameters=HYBRID_ROPE),
}


def make_config(c, **changes):
    fields = {**c["config"], **changes}
    if c["vision"]:
        fields = dict(text_config=fields, vision_config=c["vision"], tie_word_embeddings=fields["tie_word_embeddings"])
    text_only = "Text" if c["arch"].startswith("Gemma") and not c["vision"] else ""
    config = getattr(transformers, c["arch"] + text_only + "Config")(**fields)
    for part in [config, config.text_config] if c["vision"] else [config]:
        part._attn_implementation = "golden"
        part._experts_implementation = "eager"
    return config


def model_class(c):
    return getattr(transformers, c["arch"] + ("ForConditionalGeneration" if c["vision"] else "ForCausalLM"))


FROM_ONE = {"Gemma3", "Qwen3_5", "Qwen3_5Moe", "Qwen3Next"}  # whose norms multiply by 1 + weight


def random_state(c, seed):
    """Queries and keys large enough that attention is far from uniform, logits with a spread of about 2, norms around 1."""
    shapes = model_class(c)(make_config(c)).state_dict()
    g = torch.Generator().manual_seed(seed)
    state = {}
    for name, like in shapes.items():
        if name == "lm_head.weight" and c["config"]["tie_word_embeddings"]:
            continue
        w = torch.randn(like.shape, generator=g)
        if name.endswith("norm.weight"):
            from_one = c["arch"] in FROM_ONE and not name.endswith("linear_attn.norm.weight")
            w = 0.3 * w if from_one else 1 + 0.3 * w
        elif name.endswith("A_log") or "conv1d" in name:
            w = 0.5 * w
        elif name.endswith("dt_bias"):
            w = 0.7 * w
        elif name.endswith(".bias"):
            w = 0.5 * w
        elif "embed_tokens" in name:
            w = 0.4 * w
        else:
            gain = 1.25 if "q_proj" in name or "k_proj" in name or "qkv_proj" in name else 2.0 if "lm_head" in name else 1.0
            gain = 3.0 if name.endswith(("mlp.gate.weight", "mlp.router.weight")) else gain
            stacked = ".mlp.experts." in name and c["arch"] == "GptOss"  # [E, in, out]
            gain = 4.0 if name.endswith("gate_up_proj") and stacked else gain  # gates exceed the limit of 7
            w = gain * w / like.shape[-2 if stacked else -1] ** 0.5
        if name.endswith(("sinks", "_proj_bias")):
            w = torch.randn(like.shape, generator=g)
        if c["mxfp4"] and name.endswith(("gate_up_proj", "down_proj")):
            w = mxfp4_values(*mxfp4_codes(w.mT)).mT
        state[name] = w.to(DTYPES[c["dtype"]])
    return state


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def mxfp4_codes(w):
    """Codes [..., K] and exponents [..., K / 32] of the nearest values."""
    blocks = w.reshape(*w.shape[:-1], -1, 32)
    exponent = torch.floor(torch.log2(blocks.abs().amax(-1))) - 2
    scaled = blocks / 2 ** exponent[..., None]
    codes = (scaled[..., None] - FP4).abs().argmin(-1)
    return codes.reshape(w.shape).to(torch.uint8), (exponent + 127).to(torch.uint8)


def mxfp4_values(codes, scales):
    values = FP4[codes.int()].reshape(*codes.shape[:-1], -1, 32) * 2.0 ** (scales.float() - 127)[..., None]
    return values.reshape(codes.shape)


def permuted(state, seed):
    """The same function with the hidden dimension in another order."""
    hidden = state["model.norm.weight" if "model.norm.weight" in state else "model.language_model.norm.weight"].shape[0]
    p = torch.randperm(hidden, generator=torch.Generator().manual_seed(seed))
    transposed = any(name.endswith("experts.down_proj_bias") for name in state)  # gpt-oss: stacks are [E, in, out]
    out = {}
    for name, w in state.items():
        if name.endswith(("gate_up_proj_bias", "sinks", "router.bias")):
            pass  # nothing of the hidden dimension
        elif ".visual." in name or name.endswith(("query_layernorm.weight", "key_layernorm.weight")):
            pass  # neither
        elif name.endswith(("conv1d.weight", "A_log", "dt_bias", "linear_attn.norm.weight")):
            pass  # neither
        elif transposed and name.endswith("experts.gate_up_proj"):
            w = w[..., p, :]
        elif transposed and name.endswith(("experts.down_proj", "experts.down_proj_bias")):
            w = w[..., p]
        elif name.endswith(("layernorm.weight", "model.norm.weight")) or "o_proj" in name or "down_proj" in name or "out_proj" in name:
            w = w[..., p, :] if w.ndim > 1 else w[p]
        elif w.ndim >= 2:
            w = w[..., p]
        out[name] = w.contiguous()
    return out


@torch.no_grad()
def logits(c, state, tokens, dtype, kv=None, changes=None, rounded=False):
    global kv_rounding
    with float32_means_float64() if dtype == torch.float64 else contextlib.nullcontext():
        model = model_class(c)(make_config(c, **(changes or {}))).to(dtype).eval()
        state = {k: v.to(dtype) for k, v in state.items()}
        if c["config"]["tie_word_embeddings"]:
            state["lm_head.weight"] = next(w for k, w in state.items() if "embed_tokens" in k)
        model.load_state_dict(state)
        if rounded:
            round_experts_inputs(model)
        kv_rounding = kv
        out = model(torch.tensor([tokens]), use_cache=False).logits[0].double()
        if dtype == torch.float64 and kv is None and not changes and "dynamic" not in str(c["config"].get("rope_scaling")):
            check_cached_decode(model, tokens, out)
        kv_rounding = None
    return out


def round_experts_inputs(model):
    """GEMMs of many rows with quantised weights may round activations to bf16: gpt-oss's experts alone have such weights."""
    def to_bf16(x):
        return x.to(torch.bfloat16).to(x.dtype)
    for layer in model.model.layers:
        experts = layer.mlp.experts
        gate = experts._apply_gate
        experts._apply_gate = lambda x, gate=gate: to_bf16(gate(x))
        experts.register_forward_pre_hook(lambda _, inputs: (to_bf16(inputs[0]), *inputs[1:]))


def check_cached_decode(model, tokens, expected):
    """transformers' own decode agrees with its prefill, so one truth serves both."""
    split = len(tokens) - N_DECODE
    out = model(torch.tensor([tokens[:split]]), use_cache=True)
    for i in range(split, len(tokens)):
        out = model(torch.tensor([[tokens[i]]]), past_key_values=out.past_key_values, use_cache=True)
        error = (out.logits[0, -1] - expected[i]).abs().max().item()
        assert error <= 1e-9, f"decode differs from prefill at {i} by {error}"


def published(state):
    """Stacked experts under the names that folders have."""
    out = {}
    for name, w in state.items():
        if name + "_bias" in state:  # gpt-oss keeps its stacks
            codes, scales = mxfp4_codes(w.mT)
            pairs = codes.reshape(*codes.shape[:-1], -1, 16, 2)
            out[name + "_blocks"] = pairs[..., 0] | pairs[..., 1] << 4
            out[name + "_scales"] = scales
            assert torch.equal(mxfp4_values(codes, scales).mT.to(w.dtype), w), name
            continue
        if name.endswith("_proj_bias"):
            out[name] = w
            continue
        if ".language_model." in name and name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            out[name] = w if any(k.endswith("A_log") for k in state) else w.mT  # qwen3_vl_moe: input by output
            continue
        base, _, part = name.rpartition(".")
        if not base.endswith(".experts"):
            out[name] = w
            continue
        for e in range(w.shape[0]):
            pieces = {"gate_proj": w[e].chunk(2)[0], "up_proj": w[e].chunk(2)[1]} if part == "gate_up_proj" else {"down_proj": w[e]}
            for piece, values in pieces.items():
                out[f"{base}.{e}.{piece}.weight"] = values
    return out


SEEDS = {"gpt-oss": 1}  # the first by which every option moves the truth far enough
CANDIDATES, MARGIN = 64, 0.25  # tokens to draw from at a position; of logits whose spread is about 1


@torch.no_grad()
def expert_margins(model, c, tokens):
    """By row, the least difference over the layers between the logits of the last expert taken and the first that is not."""
    used, margins, handles = c["config"]["num_experts_per_tok"], [], []
    for layer in (model.model.language_model if c["vision"] else model.model).layers:
        def measure(_, __, output):
            top = output[0].view(*tokens.shape, -1).sort(-1, descending=True).values
            margins.append(top[..., used - 1] - top[..., used])
        gate = layer.mlp.gate if hasattr(layer.mlp, "gate") else layer.mlp.router
        handles.append(gate.register_forward_hook(measure))
    model(tokens, use_cache=False)
    for handle in handles:
        handle.remove()
    return torch.stack(margins).amin(0)


def tokens_of(name, c, state, seed):
    """A mixture's tokens are drawn until no row is near another expert: rounding must not send it there."""
    tokens = random_tokens(c, seed)
    if "num_experts_per_tok" not in c["config"]:
        return tokens
    with float32_means_float64():
        model = model_class(c)(make_config(c)).to(torch.float64).eval()
        model.load_state_dict({k: v.double() for k, v in state.items()})
        g = torch.Generator().manual_seed(seed + 2)
        for at in range(len(tokens)):
            drawn = torch.randint(0, c["config"]["vocab_size"], (CANDIDATES,), generator=g)
            batch = torch.tensor(tokens[:at + 1]).repeat(CANDIDATES, 1)
            batch[1:, at] = drawn[1:]
            margins = expert_margins(model, c, batch)[:, at]
            best = next((i for i, m in enumerate(margins.tolist()) if m >= MARGIN), int(margins.argmax()))
            tokens[at] = int(batch[best, at])
        least = expert_margins(model, c, torch.tensor([tokens])).min().item()
    print(f"{name}: margin of experts {least:.3f}")
    return tokens


def random_tokens(c, seed):
    return torch.randint(0, c["config"]["vocab_size"], (c["n_tokens"],), generator=torch.Generator().manual_seed(seed + 1)).tolist()


def level(run, state, truth, rows):
    errors = [run(state if i == 0 else permuted(state, i))[rows] - truth for i in range(1 + N_PERMUTED)]
    return {"max": max(e.abs().max().item() for e in errors), "rms": max(e.pow(2).mean().sqrt().item() for e in errors)}


def tokenizer_json(vocab):
    words = ["<|bos|>", "<|end|>"] + [chr(c) for c in range(0x21, 0x21 + vocab - 2)]
    added = [{"id": i, "content": w, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, w in enumerate(words[:2])]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "vocab": {w: i for i, w in enumerate(words)}, "merges": []}}


def stored_rows(n_tokens):
    edges = [0, 1, 2, 6, 7, 8, 13, 20, 24, 31, 32, 33, 40, 48, 63, 64, 65]
    return sorted({r for r in edges if r < n_tokens - N_DECODE} | set(range(n_tokens - N_DECODE, n_tokens)))


def write_case(name, c, seed):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    state = random_state(c, seed)
    dtype = DTYPES[c["dtype"]]
    tokens = tokens_of(name, c, state, seed)
    rows = stored_rows(c["n_tokens"])

    def write_logits(file, values):
        flat = values.flatten().tolist()
        (folder / file).write_bytes(struct.pack(f"<{len(flat)}f", *flat))

    truth = logits(c, state, tokens, torch.float64)[rows]
    write_logits("truth.f32", truth)
    golden = {"tokens": tokens, "rows": rows, "n_decode": N_DECODE, "context": c["context"], "plain": {}, "rounded": {}, "sharp": {}}
    for kv_name, kv in KV_DTYPES.items():
        golden["plain"][kv_name] = level(lambda s: logits(c, s, tokens, dtype, kv), state, truth, rows)
        if c["mxfp4"]:
            golden["rounded"][kv_name] = level(lambda s: logits(c, s, tokens, dtype, kv, rounded=True), state, truth, rows)
        # GEMMs with bf16 and quantised weights may round activations too, so there is no sharper truth.
        if dtype != torch.bfloat16 and not c["mxfp4"]:
            truth_kv = logits(c, state, tokens, torch.float64, kv)[rows]
            write_logits(f"truth_kv_{kv_name}.f32", truth_kv)
            golden["sharp"][kv_name] = level(lambda s: logits(c, s, tokens, torch.float32, kv), state, truth_kv, rows)

    tolerance = 2 * max(l["max"] for l in golden["plain"].values())
    for option, change in c["drop"].items():
        changed = change(state) if callable(change) else state
        moved = logits(c, changed, tokens, torch.float64, changes=None if callable(change) else change)[rows]
        effect = (moved - truth).abs().max().item()
        assert effect > 5 * tolerance, f"{name}: without {option} logits move by {effect}, tolerance is {tolerance}"

    config = make_config(c).to_dict()
    text = config["text_config"] if c["vision"] else config
    keep = {k: v for k, v in text.items() if k in {*c["config"], "model_type", "hidden_act", "attention_bias", "mlp_bias",
                                                   "use_sliding_window"}}
    if c["vision"]:
        keep = {"model_type": config["model_type"], "text_config": keep, "vision_config": c["vision"],
                "tie_word_embeddings": config["tie_word_embeddings"]}
    keep |= {"architectures": [model_class(c).__name__], "torch_dtype": c["dtype"], "bos_token_id": 0, "eos_token_id": 1}
    if "num_experts" in c["config"]:
        (keep["text_config"] if c["vision"] else keep)["num_experts"] = c["config"]["num_experts"]  # as published folders have it; transformers 5 writes another name
    if c["mxfp4"]:
        keep["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(keep, indent=1, sort_keys=True) + "\n")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(c["config"]["vocab_size"]), ensure_ascii=False) + "\n")
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    save_file({k: v.contiguous() for k, v in published(state).items()}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    print(f"{name:16} spread {truth.std():.2f}  plain bf16 kv {golden['plain']['bf16']['max']:.2e}"
          + (f"  sharp {golden['sharp']['bf16']['max']:.2e} {golden['sharp']['f16']['max']:.2e}" if golden["sharp"] else ""))


def main():
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # one order of sums, so that the files come out the same
    wanted = sys.argv[1:] or CASES
    for i, (name, c) in enumerate(CASES.items()):
        if name in wanted:
            write_case(name, c, 1000 * (i + 1) + SEEDS.get(name, 0))


main()
