// Split GGUF files: NAME-00001-of-00003.gguf, ... The first part has the metadata, each its own tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "src/base/mapped_file.h"
#include "src/formats/gguf/gguf_file.h"

namespace mneme {

// Adds the tensors of the other parts to `first`, the file at `path`; does nothing for a file that is whole. Returns
// their mappings, which must live as long as `first`.
//
// Errors  kFile: a part is missing. kFormat: not the first part, a name without its number, a part with another number
//         or count, tensors that occur twice or are fewer than the parts say; what GgufFile::parse() finds.
std::vector<MappedFile> add_other_parts(GgufFile& first, const std::filesystem::path& path);

// Errors  kFormat: a part other than the first, which lacks the metadata; the message names the first.
void expect_first_part(const GgufFile& file, const std::filesystem::path& path);

}  // namespace mneme
