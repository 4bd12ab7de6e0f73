#!/usr/bin/env python3
"""Writes tests/formats/safetensors/data/quantised.{safetensors,json}: small matrices in every quantised format of Hugging Face folders, and the
values they stand for.

Needs  pip install numpy==2.4.6; with torch and compressed-tensors its own packing is compared with ours
Usage  tools/make_safetensors_goldens.py [--out FOLDER]

Codes, scales and zero points are random. The values are the formula of the format in float32, rounded once: every factor but the scale of
fp8 and int8 has so few bits that there is nothing to round; of nvfp4 the scale is rounded before the value. The JSON lists the cases: `config` is a quantization_config, `type` what the
repacked matrix must be, `rows` the rows whose values CASE.truth [rows, k] holds. A block of fp8 with a NaN is NaN throughout.
"""
import argparse
import json
import pathlib
import struct

import numpy as np

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "formats" / "safetensors" / "data"
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
TYPES = {np.dtype(np.uint8): "U8", np.dtype(np.int8): "I8", np.dtype(np.int32): "I32", np.dtype(np.int64): "I64",
         np.dtype(np.float32): "F32", np.dtype(np.float16): "F16"}

rng = np.random.default_rng(17)


class Bits:
    """Elements of a type that numpy lacks."""

    def __init__(self, bits, name):
        self.bits, self.name = bits, name


def bf16(values):
    """Values that bf16 holds exactly, and their bits."""
    bits = (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return (bits.astype(np.uint32) << 16).view(np.float32), Bits(bits, "BF16")


def f16(values):
    half = np.asarray(values, np.float16)
    return half.astype(np.float32), half


def f32(values):
    return np.asarray(values, np.float32), np.asarray(values, np.float32)


def e4m3(codes):
    """Values of codes, from the definition: bias 7, no infinities, 0x7f and 0xff are NaN."""
    codes = np.asarray(codes, np.int64)
    sign, exponent, mantissa = np.where(codes & 128, -1.0, 1.0), codes >> 3 & 15, codes & 7
    values = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    return np.where((codes & 127) == 127, np.nan, sign * values).astype(np.float32)


def scales(shape, kind, size=0.01):
    return kind(rng.uniform(0.2, 1.0, shape).astype(np.float32) * np.float32(size))


def pack_words(codes, axis):
    """Eight nibbles a word along an axis, the first one lowest; zero-padded."""
    codes = np.moveaxis(np.asarray(codes, np.uint32), axis, -1)
    codes = np.concatenate([codes, np.zeros(codes.shape[:-1] + (-codes.shape[-1] % 8,), np.uint32)], -1)
    words = np.zeros(codes.shape[:-1] + (codes.shape[-1] // 8,), np.uint32)
    for i in range(8):
        words |= codes[..., i::8] << np.uint32(4 * i)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32)


def pack_awq(codes):
    """[k, n] to [k, n / 8]: column 8 a + j is nibble AWQ_ORDER[j] of word a."""
    codes = np.asarray(codes, np.uint32)
    words = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint32)
    for j, nibble in enumerate(AWQ_ORDER):
        words |= codes[:, j::8] << np.uint32(4 * nibble)
    return words.view(np.int32)


def spread(grid, block, n, k):
    """Entries of a grid of blocks for every element of [n, k]."""
    return np.repeat(np.repeat(grid, block[0], 0), block[1], 1)[:n, :k]


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


class Goldens:
    def __init__(self):
        self.cases, self.tensors = [], {}

    def add(self, name, config, kind, tensors, truth, rows=None):
        rows = list(range(truth.shape[0])) if rows is None else rows
        for part, tensor in tensors.items():
            self.tensors[f"{name}.{part}"] = tensor
        self.tensors[f"{name}.truth"] = np.ascontiguousarray(truth[rows], np.float32)
        self.cases.append({"name": name, "config": config, "type": kind, "n": truth.shape[0], "k": truth.shape[1], "rows": rows})

    def fp8(self, name, config, shape, block, scale, part, scalar=False):
        n, k = shape
        codes = rng.integers(0, 256, shape).astype(np.uint8)
        codes[(codes & 127) == 127] = 8
        grid = (-(-n // block[0]), -(-k // block[1]))
        values, stored = scales(grid, scale)
        if scalar:
            stored = stored.reshape(()) if isinstance(stored, np.ndarray) else stored
        with np.errstate(invalid="ignore"):
            truth = e4m3(codes) * spread(values, block, n, k)
        rows = sorted({0, 1, n // 2, min(127, n - 1), min(128, n - 1), n - 1})
        self.add(name, config, "fp8", {"weight": Bits(codes, "F8_E4M3"), part: stored}, truth, rows)
        return codes, values

    def all_fp8(self):
        block = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
        whole = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
        self.fp8("fp8_block", block, (136, 192), (128, 128), f32, "weight_scale_inv")
        self.fp8("fp8_block_bf16", block, (40, 256), (128, 128), bf16, "weight_scale_inv")
        self.fp8("fp8_tensor", whole, (16, 64), (16, 64), f32, "weight_scale_inv", scalar=True)
        self.fp8("fbgemm_channel", {"quant_method": "fbgemm_fp8"}, (16, 64), (1, 64), f32, "weight_scale")
        self.fp8("ct_fp8_tensor", compressed("float", 8, "tensor"), (16, 64), (16, 64), bf16, "weight_scale")
        self.fp8("ct_fp8_channel", compressed("float", 8, "channel"), (16, 64), (1, 64), bf16, "weight_scale")
        self.fp8("ct_fp8_block", compressed("float", 8, "block", block_structure=[128, 128]), (136, 128), (128, 128), bf16, "weight_scale")
        codes = np.arange(256, dtype=np.uint8).reshape(4, 64)
        truth = e4m3(codes) * np.float32(0.5)
        truth[[1, 3]] = np.nan  # rows 1 and 3 are a block each, with the codes 127 and 255
        self.add("fp8_all_codes", whole, "fp8", {"weight": Bits(codes, "F8_E4M3"), "weight_scale_inv": np.array([0.5], np.float32)}, truth)

    def all_int8(self):
        codes = rng.integers(-128, 128, (16, 64)).astype(np.int8)
        for name, kind, dtype in (("ct_int8_f32", f32, "int8"), ("ct_int8_bf16", bf16, "q8_0")):
            values, stored = scales((16, 1), kind)
            self.add(name, compressed("int", 8, "channel"), dtype, {"weight": codes, "weight_scale": stored}, codes * values)
        values, stored = scales((16, 2), bf16)
        codes = rng.integers(-128, 128, (16, 128)).astype(np.int8)
        words = (codes.astype(np.int16) + 128).astype(np.uint8).view(np.int32)
        self.add("ct_packed_int8", compressed("int", 8, "group", group_size=64), "q8_0",
                 {"weight_packed": words, "weight_scale": stored, "weight_shape": np.array([16, 128], np.int64)},
                 codes * spread(values, (1, 64), 16, 128))

    def packed(self, name, dtype, group, kind, zero, act_order=False, size=0.01):
        n, k = 20, 256
        groups = k // group
        codes = rng.integers(0, 16, (n, k))
        values, stored = scales((n, groups), kind, size)
        zeros = rng.integers(0, 16, (n, groups)) if zero else np.full((n, groups), 8)
        index = rng.permutation(np.arange(k) // group) if act_order else np.arange(k) // group
        tensors = {"weight_packed": pack_words(codes, 1), "weight_scale": stored, "weight_shape": np.array([n, k], np.int64)}
        if zero:
            tensors["weight_zero_point"] = pack_words(zeros, 0)
        if act_order:
            tensors["weight_g_idx"] = index.astype(np.int32)
        truth = (codes - zeros[:, index]).astype(np.float32) * values[:, index]
        strategy = "channel" if group == k else "group"
        self.add(name, compressed("int", 4, strategy, group_size=group, symmetric=not zero), dtype, tensors, truth)
        return codes, zeros, tensors

    def gptq(self, name, dtype, group, v2=False, zero=True, act_order=False):
        n, k = 24, 256
        groups = k // group
        codes = rng.integers(0, 16, (n, k))
        values, stored = scales((groups, n), f16)
        zeros = rng.integers(0, 16, (groups, n)) if zero else np.full((groups, n), 8)
        index = rng.permutation(np.arange(k) // group) if act_order else np.arange(k) // group
        config = {"quant_method": "gptq", "bits": 4, "group_size": group, "sym": not zero, "desc_act": act_order,
                  "checkpoint_format": "gptq_v2" if v2 else "gptq"}
        words = pack_words(zeros, 1)
        if not v2:  # one less, with borrows, as GPTQModel packs it
            words = (words.view(np.uint32) - np.uint32(0x11111111)).view(np.int32)
        tensors = {"qweight": pack_words(codes.T, 0), "qzeros": words, "scales": stored, "g_idx": index.astype(np.int32)}
        truth = (codes - zeros.T[:, index]).astype(np.float32) * values.T[:, index]
        self.add(name, config, dtype, tensors, truth)

    def awq(self, name, group):
        n, k = 24, 256
        codes = rng.integers(0, 16, (k, n))
        values, stored = scales((k // group, n), f16)
        zeros = rng.integers(0, 16, (k // group, n))
        config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
        truth = ((codes - np.repeat(zeros, group, 0)).astype(np.float32) * np.repeat(values, group, 0)).T
        self.add(name, config, "int4", {"qweight": pack_awq(codes), "qzeros": pack_awq(zeros), "scales": stored}, truth)

    def nvfp4(self, name, config, global_scale, divides):
        n, k = 16, 192
        codes, steps = rng.integers(0, 16, (n, k)), rng.integers(0, 127, (n, k // 16)).astype(np.uint8)
        steps[0, :4] = (0, 1, 7, 126)  # zero, subnormal, subnormal, the largest
        factor = np.float32(global_scale)
        grid = e4m3(steps) / factor if divides else e4m3(steps) * factor
        truth = E2M1[codes] * spread(grid, (1, 16), n, k)
        packed = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
        weight, whole = ("weight_packed", "weight_global_scale") if divides else ("weight", "weight_scale_2")
        stored = factor.reshape(1) if divides else factor.reshape(())
        self.add(name, config, "nvfp4", {weight: packed, "weight_scale": Bits(steps, "F8_E4M3"), whole: stored}, truth)
        return packed, steps, truth, factor

    def write(self, folder):
        header, data = {}, b""
        for name, tensor in sorted(self.tensors.items(), key=lambda item: -alignment(item[1])):
            array, kind = (tensor.bits, tensor.name) if isinstance(tensor, Bits) else (tensor, TYPES[tensor.dtype])
            blob = np.ascontiguousarray(array).tobytes()
            header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(blob)]}
            data += blob
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (folder / "quantised.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        (folder / "quantised.json").write_text(json.dumps({"cases": self.cases}, indent=1) + "\n")


def alignment(tensor):
    return (tensor.bits if isinstance(tensor, Bits) else tensor).dtype.itemsize


def compressed(kind, bits, strategy, **weights):
    form = {("float", 8): "float-quantized", ("int", 8): "int-quantized", ("int", 4): "pack-quantized",
            ("float", 4): "nvfp4-pack-quantized"}[kind, bits]
    if strategy == "group":
        form = "pack-quantized"
    group = {"targets": ["Linear"], "input_activations": None,
             "weights": {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": False, **weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}, "ignore": ["lm_head"],
            "kv_cache_scheme": None, "quantization_status": "compressed"}


def check_against_compressed_tensors(codes, zeros, tensors):
    """Its pack_to_int32 takes signed codes."""
    try:
        import torch
        try:
            from compressed_tensors.compressors.quantized_compressors.pack_quantized import pack_to_int32
        except ImportError:
            from compressed_tensors.compressors import pack_to_int32
    except ImportError as e:
        print("compressed-tensors is not there; its packing is not compared:", e)
        return
    def packed(values, axis):
        return pack_to_int32(torch.from_numpy((values - 8).astype(np.int8)), 4, packed_dim=axis).numpy()

    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32).numpy()
    assert np.array_equal(every, e4m3(np.arange(256)), equal_nan=True)
    assert (packed(codes, 1) == tensors["weight_packed"]).all()
    assert (packed(zeros, 0) == tensors["weight_zero_point"]).all()
    print("the same words as compressed-tensors packs")


def check_nvfp4_against_compressed_tensors(packed, steps, truth, factor):
    try:
        import torch
        from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    except ImportError:
        try:
            from compressed_tensors.compressors.quantized_compressors.nvfp4_quantized import unpack_fp4_from_uint8
        except ImportError as e:
            print("compressed-tensors is not there; its nvfp4 is not compared:", e)
            return
    n, half = packed.shape
    values = unpack_fp4_from_uint8(torch.from_numpy(packed), n, 2 * half, dtype=torch.float32).numpy()
    scale = torch.from_numpy(steps).view(torch.float8_e4m3fn).to(torch.float32).numpy() / factor
    assert (values * np.repeat(scale, 16, 1) == truth).all()
    print("the same values as compressed-tensors unpacks")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    out = parser.parse_args().out
    goldens = Goldens()
    goldens.all_fp8()
    goldens.all_int8()
    goldens.packed("ct_int4_symmetric", "q4_0", 32, bf16, zero=False)
    check_against_compressed_tensors(*goldens.packed("ct_int4", "int4", 128, f16, zero=True))
    goldens.packed("ct_int4_channel", "int4", 256, bf16, zero=True)
    goldens.packed("ct_int4_below_f16", "int4", 64, bf16, zero=False, size=1e-9)
    goldens.packed("ct_int4_act_order", "int4", 64, f16, zero=True, act_order=True)
    goldens.gptq("gptq", "int4", 64)
    goldens.gptq("gptq_v2", "int4", 128, v2=True)
    goldens.gptq("gptq_symmetric", "q4_0", 128, zero=False)
    goldens.gptq("gptq_act_order", "int4", 32, act_order=True)
    goldens.awq("awq", 128)
    goldens.awq("awq_32", 32)
    nvfp4 = compressed("float", 4, "tensor_group", group_size=16)
    check_nvfp4_against_compressed_tensors(*goldens.nvfp4("ct_nvfp4", nvfp4, 2688 / 0.37, divides=True))
    goldens.nvfp4("modelopt_nvfp4", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.37 / 2688, divides=False)
    out.mkdir(parents=True, exist_ok=True)
    goldens.write(out)


if __name__ == "__main__":
    main()
