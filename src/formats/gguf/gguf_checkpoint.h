// Checkpoint over a GGUF file, or over the first of several parts.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "src/formats/checkpoint.h"

namespace mneme {

std::unique_ptr<Checkpoint> open_gguf(const std::filesystem::path& path);
// The same over bytes in memory, which must outlive the checkpoint; `file` names them in errors.
std::unique_ptr<Checkpoint> open_gguf(std::span<const std::byte> bytes, std::string file);

}  // namespace mneme
