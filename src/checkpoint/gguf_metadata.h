// A model's configuration and tokenizer as GGUF metadata: the inverse of gguf_model.h.
#pragma once

#include "src/checkpoint/gguf_writer.h"
#include "src/checkpoint/model_config.h"
#include "src/checkpoint/tokenizer_data.h"

namespace mneme {

// general.* and the architecture's keys. llama3 scaling has no key: it is the tensor rope_freqs.weight
// (gguf_freq_factors).
void put_config(GgufWriter& writer, const ModelConfig& config, DType weights);
// tokenizer.*, and mneme.tokenizer.* for what GGUF has no key for.
void put_tokenizer(GgufWriter& writer, const TokenizerData& tokenizer);

// The architecture's name in GGUF files, where mistral is llama.
std::string_view gguf_architecture(Architecture architecture);
// How that architecture orders the rows of q and k.
RopePairs gguf_rope_pairs(Architecture architecture);

// What inverse frequencies are divided by, [head_dim / 2]: the file's own factors, or what llama3 scaling comes to.
// Empty: none.
//
// Source  llama3: frequencies are left alone where a wave is short against the original context, divided by `factor`
// where it is
//         long, and blended between (Llama 3.1's published code).
std::vector<float> gguf_freq_factors(const ModelConfig& config);

// The name under which GGUF files know patterns of a tokenizer.json, or nothing.
std::string_view known_pre_tokenizer(const std::vector<std::string>& patterns);

}  // namespace mneme
