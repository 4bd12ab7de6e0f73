#!/usr/bin/env python3
"""Times Hugging Face transformers on a shape of `mneme bench`, with random weights, for a figure beside ours.

  tools/measure_transformers.py --depth 2048,32768,131072 --prefill 32768 > transformers.json

Decode: milliseconds a token at a depth, SDPA attention, static batch of 1, the whole cache on the GPU (and, with
--offloaded, transformers' own cache in host memory). Prefill: seconds a prompt, the best of three. Medians over --steps.
"""
import argparse
import json
import statistics
import time

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig


def model_of():
    config = LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                         num_key_value_heads=8, vocab_size=128256, max_position_embeddings=262144, rope_theta=500000.0)
    torch.manual_seed(0)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model.eval()


def filled_cache(model, depth, offloaded):
    cache = DynamicCache(config=model.config, offloading=offloaded)
    for layer in range(model.config.num_hidden_layers):
        shape = (1, model.config.num_key_value_heads, depth, model.config.head_dim)
        cache.update(torch.randn(shape, device="cuda"), torch.randn(shape, device="cuda"), layer)
    return cache


def timed(f):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    f()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--depth", default="2048,32768,131072")
    parser.add_argument("--prefill", default="32768")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--offloaded", action="store_true")
    o = parser.parse_args()
    model = model_of()
    out = {"transformers": transformers.__version__, "torch": torch.__version__,
           "device": torch.cuda.get_device_name(), "decode_ms": {}, "prefill_s": {}}
    for depth in [int(d) for d in o.depth.split(",") if d]:
        cache = filled_cache(model, depth, o.offloaded)
        token = torch.randint(0, model.config.vocab_size, (1, 1), device="cuda")
        step = lambda: model(token, past_key_values=cache, use_cache=True)
        for _ in range(3):
            timed(step)
        out["decode_ms"][depth] = 1e3 * statistics.median(timed(step) for _ in range(o.steps))
        del cache
        torch.cuda.empty_cache()
    for n in [int(d) for d in o.prefill.split(",") if d]:
        tokens = torch.randint(0, model.config.vocab_size, (1, n), device="cuda")
        run = lambda: model(tokens, use_cache=True, logits_to_keep=1)
        timed(run)
        out["prefill_s"][n] = min(timed(run) for _ in range(3))
    print(json.dumps(out))


if __name__ == "__main__":
    main()
