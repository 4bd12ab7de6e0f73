#!/usr/bin/env python3
"""Compares token ids with Hugging Face's `tokenizers` 0.23: 2,000 generated texts for each kind of tokenizer.json.

compare_with_tokenizers.py TOKENIZE_LINES [TEXTS]; ends with 77 (skipped) where the library is missing.
"""
import json
import random
import subprocess
import sys
import tempfile

try:
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
except ImportError:
    print("skipped: no module `tokenizers`")
    sys.exit(77)

CORPUS = ["user hello world inform Hey . the sea and the theatre, 12 345 6789 it's WE'LL naïve café 東京 \n\n  x = y"] * 30
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
ADDED = ["[INST]", "[/INST]", "<tool>", "<n>", "<l>", "<r>", "<lr>", "<spc>", "  ", "<s>", "</s>"]
WORDS = ADDED + ["user", "hello", "world", "the", "theatre", "12", "6789", "it's", "WE'LL", "café", "東京", "☃", "🙂", "é",
                 "▁", " ", " ", "  ", "   ", "\n", "\t", "\r\n", "\u00a0", "\u2003", ".", ",", "<", "x"]


def texts(n, seed):
    r = random.Random(seed)
    return ["", " ", "  ", "▁", "<n>", " <n> ", "[INST] [INST]"] + [
        "".join(r.choice(WORDS) for _ in range(r.randrange(1, 12))) for _ in range(n - 7)]


def add_tokens(t):
    t.add_special_tokens(["[INST]", "[/INST]", AddedToken("<spc>", normalized=True, special=True)])
    t.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<n>", normalized=True),
                  AddedToken("<l>", normalized=False, lstrip=True), AddedToken("<r>", normalized=False, rstrip=True),
                  AddedToken("<lr>", normalized=True, lstrip=True, rstrip=True)])


def sentence_piece(pre=None, normalizer=None, fuse=True, all_bytes=True):
    t = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=fuse))
    t.normalizer = normalizers.Replace(" ", "▁")
    bytes_ = ["<0x%02X>" % i for i in range(256)] if all_bytes else []
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, show_progress=False,
                                                      special_tokens=["<unk>", "<s>", "</s>"] + bytes_))
    t.normalizer = normalizer
    add_tokens(t)
    j = json.loads(t.to_str())
    j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
    j["pre_tokenizer"] = pre
    return Tokenizer.from_str(json.dumps(j))


def byte_level(*pre, ignore_merges=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    t.pre_tokenizer = pre_tokenizers.Sequence(list(pre)) if len(pre) > 1 else pre[0]
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, show_progress=False, special_tokens=["<s>", "</s>"],
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    add_tokens(t)
    return t


def kinds():
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            yield "Metaspace %s split=%s" % (scheme, split), sentence_piece(
                {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split})
    marks = normalizers.Replace(" ", "▁")
    prepend = normalizers.Sequence([normalizers.Prepend("▁"), marks])
    yield "Prepend and Replace", sentence_piece(normalizer=prepend)
    yield "Replace", sentence_piece(normalizer=marks)
    yield "unknown characters one by one", sentence_piece(normalizer=prepend, fuse=False, all_bytes=False)
    yield "unknown characters fused", sentence_piece(normalizer=prepend, all_bytes=False)
    yield "unknown characters fused, split", sentence_piece(
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}, all_bytes=False)
    level = lambda **k: pre_tokenizers.ByteLevel(**({"add_prefix_space": False, "use_regex": False} | k))
    split = lambda p: pre_tokenizers.Split(Regex(p), "isolated")
    yield "ByteLevel", byte_level(level(use_regex=True))
    yield "ByteLevel with a space before", byte_level(level(use_regex=True, add_prefix_space=True))
    yield "ByteLevel without pattern", byte_level(level())
    yield "Digits, ByteLevel", byte_level(pre_tokenizers.Digits(True), level(use_regex=True))
    yield "Digits in runs, ByteLevel", byte_level(pre_tokenizers.Digits(False), level(use_regex=True))
    yield "Qwen 2", byte_level(split(QWEN2), level())
    yield "Llama 3", byte_level(split(LLAMA3), level())
    yield "Llama 3, whole pieces", byte_level(split(LLAMA3), level(), ignore_merges=True)
    yield "GPT-2 as Split", byte_level(split(GPT2), level())


def main():
    program, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    bad = 0
    for i, (name, t) in enumerate(kinds()):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            f.write(t.to_str())
            f.flush()
            given = texts(n, i)
            run = subprocess.run([program, f.name], input="\n".join(map(json.dumps, given)) + "\n", text=True,
                                 capture_output=True, check=False)
        if run.returncode != 0:
            bad += n
            print("%s: %s" % (name, run.stderr.strip()[-600:]))
            continue
        lines = [[int(x) for x in line.split()] for line in run.stdout.split("\n")[:n]]
        wrong = [(s, t.encode(s).ids, got) for s, got in zip(given, lines) if t.encode(s).ids != got]
        bad += len(wrong)
        print("%s: %d of %d differ" % (name, len(wrong), n))
        for s, want, got in wrong[:3]:
            print("  %r\n    tokenizers %s\n    mneme      %s" %
                  (s, [t.id_to_token(x) for x in want], [t.id_to_token(x) for x in got]))
    return 1 if bad else 0


sys.exit(main())
