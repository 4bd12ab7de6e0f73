// Checkpoint over a Hugging Face folder: config.json, safetensors, tokenizer.json.
#pragma once

#include <filesystem>
#include <memory>

#include "src/formats/checkpoint.h"

namespace mneme {

std::unique_ptr<Checkpoint> open_hf(const std::filesystem::path& folder);

}  // namespace mneme
