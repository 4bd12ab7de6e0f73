// What a GGUF file's metadata means: the model's configuration and its tokenizer.
#pragma once

#include "src/checkpoint/gguf_file.h"
#include "src/checkpoint/model_config.h"
#include "src/checkpoint/tokenizer_data.h"

namespace mneme {

// Errors  kFormat: missing or impossible values; kUnsupported: architecture, RoPE scaling, mixture of experts (named)
ModelConfig read_gguf_config(const GgufFile& file);

// Errors  kFormat: missing or contradicting; kUnsupported: tokenizer model (named)
TokenizerData read_gguf_tokenizer(const GgufFile& file);

}  // namespace mneme
