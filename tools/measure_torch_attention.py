#!/usr/bin/env python3
"""Times torch's scaled_dot_product_attention on one layer's prompt, by backend, for a figure beside `mneme bench attention`.

  tools/measure_torch_attention.py --prompt 32768 > attention.json

Causal, bf16, batch 1; heads, KV heads and head size of llama-3.1-8b unless said. Medians of --times.
"""
import argparse
import json
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompt", default="32768")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--times", type=int, default=10)
    o = parser.parse_args()
    out = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "seconds": {}}
    for n in [int(x) for x in o.prompt.split(",")]:
        shape = lambda heads: (1, heads, n, o.head_dim)
        q, k, v = (torch.randn(shape(h), device="cuda", dtype=torch.bfloat16) for h in (o.heads, o.kv_heads, o.kv_heads))
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            seconds = []
            with sdpa_kernel(backend), torch.inference_mode():
                for i in range(-2, o.times):
                    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    begin.record()
                    scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                    end.record()
                    end.synchronize()
                    if i >= 0:
                        seconds.append(begin.elapsed_time(end) / 1e3)
            out["seconds"].setdefault(str(n), {})[backend.name] = statistics.median(seconds)
    print(json.dumps(out))


main()
