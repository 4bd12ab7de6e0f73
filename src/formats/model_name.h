// What a model is called by where it lies.
#pragma once

#include <filesystem>
#include <string>

namespace mneme {

// "models/qwen3-8b-q8_0.gguf" as "qwen3-8b-q8_0", a folder by its own name, and a snapshot in huggingface_hub's cache,
// whose folder is called by a commit, by its repository: models--Qwen--Qwen3-8B/snapshots/COMMIT as "Qwen3-8B".
std::string model_name(const std::filesystem::path& path);

}  // namespace mneme
