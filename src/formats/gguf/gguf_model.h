// Reads a model's configuration and tokenizer from GGUF metadata.
#pragma once

#include "src/formats/gguf/gguf_file.h"
#include "src/formats/model_config.h"
#include "src/formats/tokenizer_data.h"

namespace mneme {

// Errors  kFormat: missing or invalid values; kUnsupported: architecture, RoPE scaling, mixture of experts (named)
ModelConfig read_gguf_config(const GgufFile& file);

// Errors  kFormat: missing or inconsistent values; kUnsupported: tokenizer model (named)
TokenizerData read_gguf_tokenizer(const GgufFile& file);

}  // namespace mneme
