// Checkpoint over one GGUF file.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "src/checkpoint/checkpoint.h"

namespace mneme {

std::unique_ptr<Checkpoint> open_gguf(const std::filesystem::path& path);
// The same over bytes in memory, which must outlive it; `file` names them in errors.
std::unique_ptr<Checkpoint> open_gguf(std::span<const std::byte> bytes, std::string file);

}  // namespace mneme
