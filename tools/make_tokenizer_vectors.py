#!/usr/bin/env python3
"""Makes tests/text/tokenizer/data/hf-vectors.json: texts, and their ids as Hugging Face `tokenizers` and `sentencepiece` give them.

Needs  pip install tokenizers sentencepiece
Usage  tools/make_tokenizer_vectors.py [--texts N] [--sweep] [--out FILE]

The byte-level entries use the shipped model's vocabulary with three pre-tokenizers; the others train small vocabularies on this
repository's own documents. --sweep adds every character of the basic plane that Unicode 14 knows, for a one-time check.
"""
import argparse
import glob
import io
import json
import os
import random
import struct
import unicodedata

import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PATTERNS = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
FRAGMENTS = [
    "the", " the", " of", "The", " house", "running", "n't", "'s", "'LL", "'Re", "ſ", "'ſ", " ", "  ", "   ", "\n", "\n\n", " \n", "\t", "\r\n",
    "\u00a0", "\u3000", "\u2028", "\u0085", "0", "7", "12", "2024", "3.14", "٣٤", "½", "Ⅷ", ",", ".", "...", "!?", "—", "“quoted”", "$", "€", "<", ">",
    "<|end|>", "<|user|>", "<s>", "</s>", "[INST]", "<0x41>", "é", "e\u0301", "ñ", "ß", "Größe", "naïve", "日本語", "中文", "한국어", "العربية",
    "हिन्दी", "ไทย", "русский", "Ελληνικά", "עברית", "😀", "👨‍👩‍👧", "🏳️‍🌈", "\u200b", "\u200d", "\ufeff", "\u0000", "\u0007", "\u007f", "_", "#", "//", "{}",
    "snake_case", "CamelCase", "a1b2", "x=1;", "http://a.b/c?d=e", "\U0001d54f", "\U00010348",
]


def needle_vocabulary():
    """Tokens, types and merges of the shipped GGUF file."""
    f = open(os.path.join(ROOT, "models", "needle-27m-q8_0.gguf"), "rb")
    read = lambda fmt: struct.unpack("<" + fmt, f.read(struct.calcsize("<" + fmt)))[0]
    string = lambda: f.read(read("Q")).decode()

    def value(kind):
        if kind == 8:
            return string()
        if kind == 9:
            inner, n = read("I"), read("Q")
            return [value(inner) for _ in range(n)]
        return read({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])

    f.seek(16)
    meta = {}
    for _ in range(read("Q")):
        key = string()
        meta[key] = value(read("I"))
    return [meta["tokenizer.ggml." + k] for k in ("tokens", "token_type", "merges")]


def make_texts(n, sweep):
    random.seed(20)
    texts = ["", " ", "  ", "\n", "a", "Hello World", "  lead", "trail  "]
    while len(texts) < n:
        texts.append("".join(random.choice(FRAGMENTS) for _ in range(random.randint(1, 14))))
    if sweep:
        known = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) not in ("Cn", "Co")]
        known = [c for c in known if c not in "\u180e\u2581"]  # docs/design/tokenizers.md: what differs
        for i in range(0, len(known), 64):
            texts.append("".join("a" + c + " " + c + "1" for c in known[i : i + 64]))
    return texts


def byte_level(name, pattern, tokens, types, merges, texts):
    special = {i for i, t in enumerate(types) if t == 3}
    vocab = {t: i for i, t in enumerate(tokens)}
    t = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in merges]))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    # Special tokens are not registered: user text that spells one is text.
    rows = [t.encode(x).ids for x in texts]
    assert all(i not in special for r in rows for i in r)
    assert all(t.decode(r, skip_special_tokens=False) == x for r, x in zip(rows, texts))
    return {"name": "needle, " + name, "patterns": [pattern], "ids": rows}


def training_lines():
    lines = []
    for path in sorted(glob.glob(os.path.join(ROOT, "models", "README.md")) + glob.glob(os.path.join(ROOT, "src", "tokenizer", "*.h"))):
        lines += open(path, encoding="utf-8").read().splitlines()
    return lines + ["日本語の文章", "Größe und Maß", "naïve café", "русский язык"]



def hugging_face_sentencepiece(texts):
    """The shape that transformers gives to a converted Llama 2: ▁ by normalizers, merges by rank, byte fallback."""
    base = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    marks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.normalizer = marks
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trained.train_from_iterator(training_lines(), trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>"], show_progress=False))
    state = json.loads(trained.to_str())["model"]
    learned = sorted((i, t) for t, i in state["vocab"].items() if t != "<unk>")
    vocab = {t: i for i, t in enumerate(base)}
    for _, token in learned:
        vocab.setdefault(token, len(vocab))
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in state["merges"]]
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = marks
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    # "▁" itself in a text is decoded as a space; the texts have none.
    rows = [t.encode(x).ids for x in texts]
    assert all(t.decode(r, skip_special_tokens=False) == x for r, x in zip(rows, texts))
    return {
        "name": "sentencepiece by merges", "kind": "sentencepiece", "add_space_prefix": True, "tokens": sorted(vocab, key=vocab.get),
        "types": "ucc" + "b" * 256 + "n" * (len(vocab) - 259), "merges": merges, "unk": 0, "ids": rows}


def sentencepiece_by_scores(texts):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(training_lines()), model_writer=model, vocab_size=520, model_type="bpe", byte_fallback=True,
        character_coverage=0.99, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2)
    p = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    n = p.get_piece_size()
    kind = lambda i: "u" if p.is_unknown(i) else "c" if p.is_control(i) else "b" if p.is_byte(i) else "n"
    return {
        "name": "sentencepiece by scores", "kind": "sentencepiece", "add_space_prefix": True, "tokens": [p.id_to_piece(i) for i in range(n)],
        "types": "".join(map(kind, range(n))), "scores": [p.get_score(i) for i in range(n)], "merges": [], "unk": p.unk_id(),
        "ids": [p.encode(x) for x in texts]}


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--texts", type=int, default=120)
    args.add_argument("--sweep", action="store_true")
    args.add_argument("--out", default=os.path.join(ROOT, "tests", "text", "tokenizer", "data", "hf-vectors.json"))
    args = args.parse_args()
    texts = make_texts(args.texts, args.sweep)
    tokens, types, merges = needle_vocabulary()
    entries = [byte_level(name, pattern, tokens, types, merges, texts) for name, pattern in PATTERNS.items()]
    entries += [hugging_face_sentencepiece(texts), sentencepiece_by_scores(texts)]
    with open(args.out, "w", encoding="utf-8") as f:
        json.dump({"texts": texts, "tokenizers": entries}, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
    print(args.out, os.path.getsize(args.out), "bytes,", len(texts), "texts,", len(entries), "tokenizers")


main()
