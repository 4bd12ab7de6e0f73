# The rooms of the project, in the order of the data: a room includes only itself and rooms above it. This list is read by
# CMake, by tests/house/include_direction_test and by docs/design/tree.md. A folder without a line here belongs to the
# room of its parent.
set(MNEME_ROOMS
  src/base                  # errors and checks, thread pool, random numbers, mapped files
  src/parallel              # ranks of one model: collectives, how ranks find each other
  src/tensor                # element types, views, buffers
  src/text/unicode          # UTF-8, case tables
  src/formats/bytes         # bounds-checked readers and writers of binary data
  src/cuda                  # CUDA runtime wrappers (device, memory, stream) and headers that kernels share
  src/ops/simd              # what every CPU kernel is handed; Highway helpers
  src/ops/gemm              # GEMM and skinny GEMM, weight types and their quantisation
  src/kv                    # layout of keys and values, page pool, page tables, a sequence's cache
  src/selection/pool        # scores of a group's query heads to one score per KV head
  src/offload               # device cache of host pages: slots, resolve, recall
  src/selection/gate        # whether a KV head keeps the selection that it has
  src/kv/append             # new tokens of a step on the device: norm, RoPE, store
  src/ops/norm_rope         # norms, activations, RoPE, rotated keys
  src/ops/recurrent         # layers with a state of one size: Gated DeltaNet
  src/ops/experts           # mixtures of experts on the device: routing, grouped GEMM
  src/ops/attention         # decode (split-KV), prefill and windowed attention
  src/ops/sampling          # tokens from logits on the device
  src/selection/region      # arithmetic of sinks, window, candidates and budget
  src/selection/index       # what is stored per unit to score it: boxes, 1-bit keys, centroids
  src/selection/summary     # page summaries: centroids, sketches, moments
  src/selection/topk        # top-k by pages, tokens and lists
  src/selection/cluster     # k-means, clusters and segments
  src/selection/mass        # attention that tokens received; what a drop keeps
  src/selection/layer       # selection for all heads of a layer at once
  src/formats               # a model on disk: config, tensors, tokenizer data (untrusted input)
  src/formats/gguf          # GGUF
  src/formats/safetensors   # Hugging Face folders
  src/formats/open          # opens either of them; converts
  src/text/jinja            # the templates' language
  src/text/tokenizer        # byte-level BPE, SentencePiece BPE, streaming decoder
  src/text/chat             # chat framing of turns
  src/text/answer           # what answers look like; thoughts, text and calls of an answer as it is written
  src/text/constraint       # the interface of constraints on tokens; the vocabulary as a trie
  src/text/grammar          # JSON and JSON schemas as constraints on tokens
  src/text/answer_grammar   # an answer of a format as a constraint on tokens: free text, then valid calls
  src/recipes               # methods as data: one file a method, registry, compile, override
  src/methods               # a method at run time on the CPU: decode, windows, drops, state, statistics
  src/model                 # weights and the forward pass
  src/model/cuda/retrieval  # methods on the device: selection, index, cache slots, recall
  src/model/cuda            # the forward pass on the device
  src/sampler               # tokens from logits
  src/engine                # requests, scheduler, step; sessions
  src/engine/loop           # the thread that serves many callers: generations, prefix cache, slots
  src/server                # HTTP, the OpenAI API, files of slots, metrics, the page
  apps/hub                  # models fetched from a Hugging Face compatible endpoint, and the cache that keeps them
  apps/bench                # the machine and its limits, shapes, what a step must read and compute, plans
  apps/bench/timed          # steps timed on the CPU, load on a server
  apps/bench/device         # steps and their parts timed on a GPU
  apps/eval/prose           # text that hides facts: a file's, or generated
  apps/eval/scorers         # what an answer is worth: the suites' metrics, graders
  apps/eval/generated       # questions made at any length for any tokenizer: facts, RULER, NIAH, passkey, long answers
  apps/eval/suites          # published benchmarks: readers of their files, prompts, truncation
  apps/eval                 # the runner, runs that resume and merge, reports, figures
  apps/mneme                # the program
  apps/mneme/measured       # the model and the machine that doctor, plan, bench and eval measure or compute for
  apps/mneme/doctor         # mneme doctor and mneme plan
  apps/mneme/serve          # mneme serve
  apps/mneme/eval           # mneme eval
  apps/mneme/bench          # mneme bench
  apps/mneme/main           # entries of mneme, mneme-doctor, mneme-serve, mneme-eval and mneme-bench
)
