// Writes a model's configuration and tokenizer as GGUF metadata: the inverse of gguf_model.h.
#pragma once

#include "src/formats/gguf/gguf_writer.h"
#include "src/formats/model_config.h"
#include "src/formats/tokenizer_data.h"

namespace mneme {

// Writes general.* and the architecture's keys. llama3 scaling has no key; it is the tensor rope_freqs.weight
// (gguf_freq_factors).
void put_config(GgufWriter& writer, const ModelConfig& config, DType weights);
// Writes tokenizer.*, and mneme.tokenizer.* for what GGUF has no key for.
void put_tokenizer(GgufWriter& writer, const TokenizerData& tokenizer);

// The architecture's name in GGUF files; mistral is llama there.
std::string_view gguf_architecture(Architecture architecture);
// The order of the rows of q and k in that architecture's GGUF files.
RopePairs gguf_rope_pairs(Architecture architecture);

// Divisors of the inverse frequencies, [head_dim / 2]: the file's own, or those equivalent to llama3 scaling. Empty:
// none.
//
// Source  llama3: frequencies are kept where the wavelength is short against the original context, divided by `factor`
//         where it is long, and blended in between (Llama 3.1's published code).
std::vector<float> gguf_freq_factors(const ModelConfig& config);

// The name that GGUF files have for the patterns of a tokenizer.json; empty where they have none.
std::string_view known_pre_tokenizer(const std::vector<std::string>& patterns);

}  // namespace mneme
