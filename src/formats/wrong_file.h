// Names files that are no model for what they are: what a user has in hand decides what to do next.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace mneme {

// Whether an architecture (GGUF) or model_type (Hugging Face) turns text into vectors and generates none.
bool is_embedding_model(std::string_view architecture);
// Errors  kUnsupported, always. `key` is where the name stands.
[[noreturn]] void refuse_embedding_model(std::string_view file, std::string_view key, std::string_view name);

// Errors  kFile: the bytes are a Git LFS pointer and not the file that it stands for.
void refuse_lfs_pointer(std::span<const std::byte> bytes, std::string_view file);

// Errors  kUnsupported: a LoRA adapter; kFile: a folder without config.json, with the GGUF files that it has.
[[noreturn]] void refuse_folder_without_config(const std::filesystem::path& folder);

// Whether nothing is at the path, and it has the form of a model's name on Hugging Face, owner/name, of no folder here.
bool names_hub_model(const std::filesystem::path& path);
// Errors  kFile: nothing is at the path, and it has the form of a model's name on Hugging Face, owner/name.
void refuse_name_of_hub(const std::filesystem::path& path);

}  // namespace mneme
