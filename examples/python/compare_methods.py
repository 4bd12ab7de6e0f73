"""One document, six KV methods by forks: accuracy against bytes read, and what each method read of the document.

    python examples/python/compare_methods.py [MODEL] [FOLDER]

Writes compare_methods.png into FOLDER (the current one). compare_methods.ipynb is the same as a notebook.
"""

# %% [markdown]
# # One document, six methods
# The document is read once. Every method answers every question from a fork of that session, which shares its keys and
# values, and statistics say what its steps read.

# %%
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import mneme

ARGUMENTS = [a for a in sys.argv[1:] if not a.startswith("-")] if "ipykernel" not in sys.modules else []
MODEL = ARGUMENTS[0] if ARGUMENTS else "models/needle-27m-q8_0.gguf"
FOLDER = pathlib.Path(ARGUMENTS[1] if len(ARGUMENTS) > 1 else ".")
BUDGET = 512
METHODS = ["full", "window", "quest", "freekv", "fier", "louiskv"]

# %% [markdown]
# ## A document with facts
# Facts stand at ten depths of a text of some thousand tokens.

# %%
rng = np.random.default_rng(1)
NAMES = "silver-harbour copper-lantern golden-meadow marble-tower crimson-valley velvet-garden hollow-forest "
NAMES += "amber-bridge winter-castle summer-orchard"
facts = {name: f"{rng.integers(10000, 99999)}" for name in NAMES.split()}
filler = [
    "It was a dark evening, and the rain fell upon the roofs of the town.",
    "The old man lit his pipe, and for some time nobody spoke.",
    "Then the clock struck nine, and they went to bed.",
    "In the morning the ships left with the tide, and the quay was empty again.",
]
lines = []
for name, number in facts.items():
    lines += [filler[i] for i in rng.integers(0, len(filler), 24)]
    lines.append(f"The secret number of {name} is {number}.")
document = "\n".join(lines)

# %% [markdown]
# ## Asking

# %%
llm = mneme.LLM(MODEL, max_model_len=8192, max_num_seqs=4)
session = llm.session()
session.read(document)
n_document = len(llm.tokenize(document))

rows = []
for method in METHODS:
    recipe = mneme.Recipe(method) if method == "full" else mneme.Recipe(method, budget=BUDGET)
    right, read, index = 0, [], []
    for name, number in facts.items():
        output = session.fork().ask(f"What is the secret number of {name}?", kv=recipe)
        right += output.text.strip() == number
        read.append(output.stats.kv.kv_bytes_per_step)
        index.append(output.stats.kv.index_bytes_per_step)
    rows.append((method, 100 * right / len(facts), np.mean(read) / 1024, np.mean(index) / 1024))
    print("{:10s} {:5.0f} % right  {:8.0f} KiB of keys and values, {:6.0f} KiB of index a step".format(*rows[-1]))

# %% [markdown]
# ## What each method read
# One question by each method, its prompt read exactly: tokens that steps read of each page of 32, over layers and KV
# heads. Methods that select leave counts; sinks and window, which every step reads, are not in them.

# %%
name = "marble-tower"
prompt = llm.chat_tokens([{"role": "user", "content": f"{document}\n\n\nWhat is the secret number of {name}?"}])
params = mneme.SamplingParams(max_tokens=8, ignore_eos=True, page_reads=True)
selecting = [m for m in METHODS if m not in ("full", "window")]
pages = (len(prompt) + 8 + 31) // 32
heat = np.zeros((len(selecting), pages))
for row, method in enumerate(selecting):
    reads = llm.generate(prompt, params, kv=mneme.Recipe(method, budget=BUDGET))[0].outputs[0].page_reads
    heat[row, : len(reads)] = reads / max(1, reads.max())

# %% [markdown]
# ## The picture

# %%
figure, (left, right_side) = plt.subplots(1, 2, figsize=(13, 4), width_ratios=(1, 1.4))
for method, exact, kv, index in rows:
    left.scatter(kv + index, exact)
    left.annotate(method, (kv + index, exact), textcoords="offset points", xytext=(5, 4))
left.set_xscale("log")
left.set_ylim(-5, 105)
left.set_xlabel("KiB of keys, values and index read in a step")
left.set_ylabel("right answers, %")
left.set_title(f"{n_document} tokens, budget {BUDGET}")
right_side.imshow(heat, aspect="auto", cmap="magma", interpolation="nearest")
right_side.set_yticks(range(len(selecting)), selecting)
right_side.set_xlabel("page of 32 tokens")
right_side.set_title(f"read to answer: {name}")
figure.tight_layout()
figure.savefig(FOLDER / "compare_methods.png", dpi=110)
llm.close()
