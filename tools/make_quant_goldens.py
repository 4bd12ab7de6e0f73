#!/usr/bin/env python3
"""Writes tests/ops/gemm/data/quant-blocks.json: blocks of every quantised weight type as the `gguf` package (numpy) makes and reads them.

Needs  pip install gguf==0.19.0
Usage  tools/make_quant_goldens.py [--out FILE] [--ggml libggml-base.so]

Each entry: type, name, block (its bytes in hexadecimal) and what the block dequantises to: `values`, f32 as hexadecimal words, or `crc`,
the CRC-32 of their bytes, where every NaN counts as 7fc00000. Beside it one of
  x      32 f32 as words; block is quantize(x)
  input  the name of an input of 256 values, see numbers(); block is what ggml's own code makes of it. The package does not quantise these
         types. Without --ggml such blocks are taken from the file that is there.
Entries with neither are blocks of random or hostile bytes, whose values a reader must find too.
"""
import argparse
import ctypes
import json
import pathlib
import zlib

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "ops" / "gemm" / "data" / "quant-blocks.json"
TYPES = {"q8_0": GGMLQuantizationType.Q8_0, "q4_0": GGMLQuantizationType.Q4_0, "q4_1": GGMLQuantizationType.Q4_1}
# Name, and the offsets of the f16 scales (of MXFP4: of the exponent).
MORE = {"q5_0": [0], "q5_1": [0, 2], "q2_k": [80, 82], "q3_k": [108], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208], "iq4_nl": [0],
        "iq4_xs": [0], "mxfp4": [0]}
BY_NUMPY = ("q5_0", "q5_1", "mxfp4")
BY_GGML = {"q2_k": "quantize_q2_K", "q3_k": "quantize_q3_K", "q4_k": "quantize_q4_K", "q5_k": "quantize_q5_K", "q6_k": "quantize_q6_K",
           "iq4_nl": "quantize_iq4_nl"}
# f16 words; a scale and a minimum take neighbouring ones.
HOSTILE_SCALES = {"zero": 0x0000, "minus zero": 0x8000, "smallest": 0x0001, "subnormal": 0x83ff, "largest": 0x7bff, "least": 0xfbff,
                  "infinite": 0x7c00, "NaN": 0x7e01}
HOSTILE_EXPONENTS = (0, 1, 2, 126, 252, 254, 255)


def inputs(rng):
    normal = rng.standard_normal((4, 32), dtype=numpy.float32)
    spike = numpy.zeros(32, numpy.float32)
    spike[7] = -3.5
    return {
        "normal": normal[0],
        "weights": normal[1] * numpy.float32(0.02),
        "all positive": numpy.abs(normal[2]) + numpy.float32(5),
        "all negative": -numpy.abs(normal[3]) - numpy.float32(5),
        "zeros": numpy.zeros(32, numpy.float32),
        "equal": numpy.full(32, 0.75, numpy.float32),
        "one value": spike,
        "whole numbers": numpy.arange(32, dtype=numpy.float32) - 11,
        "halves of steps": numpy.arange(32, dtype=numpy.float32) / 2,
        "scale below the normal f16": normal[0] * numpy.float32(1e-6),
        "scale below the smallest f16": normal[1] * numpy.float32(1e-12),
        "large": normal[2] * numpy.float32(10000),
    }


def numbers(name):
    """256 values that a test can make again: from the generator x = 1664525 x + 1013904223 modulo 2^32, the upper 16 bits over 2^15."""
    state, out = 7, []
    for _ in range(256):
        state = (1664525 * state + 1013904223) % 2**32
        out.append((state >> 16) / 32768 - 1)
    x = numpy.array(out, numpy.float32)
    return {"uniform": x, "cubes": x * x * x, "positive": x + numpy.float32(3), "negative": x - numpy.float32(3),
            "every other group zero": numpy.where(numpy.arange(256) // 16 % 2 == 0, x, numpy.float32(0)),
            "tiny": x * numpy.float32(2.0**-20), "large": x * numpy.float32(2.0**12), "zeros": x * numpy.float32(0)}[name]


INPUTS = ("uniform", "cubes", "positive", "negative", "every other group zero", "tiny", "large")


def words(values):
    return [f"{v:08x}" for v in numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32).reshape(-1)]


def dequantised(block, kind):
    with numpy.errstate(all="ignore"):
        return quants.dequantize(block.reshape(1, -1), kind).reshape(-1)


def crc(values):
    bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32).copy()
    bits[numpy.isnan(values)] = 0x7fc00000
    return f"{zlib.crc32(bits.astype('<u4').tobytes()):08x}"


def random_block(rng, name, size):
    scales = rng.uniform(-2, 2, 2 if name == "q4_1" else 1).astype(numpy.float16)
    rest = rng.integers(0, 256, size - 2 * len(scales), numpy.uint8)
    return numpy.concatenate([scales.view(numpy.uint8), rest])


def first_types():
    rng = numpy.random.default_rng(1)
    for name, kind in TYPES.items():
        for what, x in inputs(numpy.random.default_rng(2)).items():
            block = quants.quantize(x.reshape(1, 32), kind).reshape(-1)
            yield {"type": name, "name": what, "x": words(x), "block": block.tobytes().hex(), "values": words(dequantised(block, kind))}
        for i in range(4):
            block = random_block(rng, name, len(block))
            yield {"type": name, "name": f"random bytes {i}", "block": block.tobytes().hex(), "values": words(dequantised(block, kind))}


def with_scales(block, name, bits):
    block = block.copy()
    for i, at in enumerate(MORE[name]):
        block[at:at + 2] = numpy.array([bits + i], numpy.uint16).view(numpy.uint8)
    return block


def blocks_of_bytes(rng, name, size):
    """Random blocks with finite scales, then hostile ones: name and bytes."""
    for i in range(8):
        block = rng.integers(0, 256, size, numpy.uint8)
        if name == "mxfp4":
            block[0] = rng.integers(100, 140)
        for at in MORE[name] if name != "mxfp4" else []:
            block[at:at + 2] = rng.uniform(-2, 2, 1).astype(numpy.float16).view(numpy.uint8)
        yield f"random bytes {i}", block
    plain = block
    for fill in (0, 255):
        block = numpy.full(size, fill, numpy.uint8)
        yield f"all bytes {fill}, scale 1", with_scales(block, name, 0x3c00) if name != "mxfp4" else block
    if name == "mxfp4":
        for e in HOSTILE_EXPONENTS:
            yield f"exponent {e}", numpy.concatenate([numpy.array([e], numpy.uint8), plain[1:]])
        return
    for what, bits in HOSTILE_SCALES.items():
        yield f"scale {what}", with_scales(plain, name, bits)


def by_ggml(library, name, what, before):
    if library is None:
        return bytes.fromhex(before[(name, what)])
    x = numpy.ascontiguousarray(numbers(what))
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[name.upper()]]
    out = ctypes.create_string_buffer(size * (256 // block))
    function = getattr(library, BY_GGML[name])
    function.restype = ctypes.c_size_t
    function(x.ctypes.data_as(ctypes.c_void_p), out, ctypes.c_int64(1), ctypes.c_int64(256), None)
    return out.raw


def further_types(library, before):
    for number, name in enumerate(MORE):
        kind = GGMLQuantizationType[name.upper()]
        size = GGML_QUANT_SIZES[kind][1]
        if name in BY_NUMPY:
            for what, x in inputs(numpy.random.default_rng(2)).items():
                with numpy.errstate(all="ignore"):
                    block = quants.quantize(x.reshape(1, 32), kind).reshape(-1)
                yield {"type": name, "name": what, "x": words(x), "block": block.tobytes().hex(), "crc": crc(dequantised(block, kind))}
        for what in INPUTS if name in BY_GGML else []:
            block = numpy.frombuffer(by_ggml(library, name, what, before), numpy.uint8)
            yield {"type": name, "name": f"ggml, {what}", "input": what, "block": block.tobytes().hex(),
                   "crc": crc(dequantised(block, kind))}
        for what, block in blocks_of_bytes(numpy.random.default_rng(10 + number), name, size):
            entry = {"type": name, "name": what, "block": block.tobytes().hex(), "crc": crc(dequantised(block, kind))}
            if what == "random bytes 0" and GGML_QUANT_SIZES[kind][0] == 32:
                entry["values"] = words(dequantised(block, kind))
            yield entry


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    parser.add_argument("--ggml", help="ggml's library of quantisers, for blocks that the package cannot make")
    options = parser.parse_args()
    before = {(e["type"], e["input"]): e["block"] for e in json.loads(OUT.read_text()) if "input" in e} if OUT.exists() else {}
    library = ctypes.CDLL(options.ggml) if options.ggml else None
    entries = [*first_types(), *further_types(library, before)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("[\n" + ",\n".join(json.dumps(e) for e in entries) + "\n]\n")


if __name__ == "__main__":
    main()
