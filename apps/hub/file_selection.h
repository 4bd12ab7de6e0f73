// Which files of a repository make a model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/hub/listing.h"
#include "apps/hub/repo_id.h"

namespace mneme::hub {

struct FileSelection {
  std::vector<std::string> files;  // what is fetched, in this order
  std::string gguf;                // the file to open, the first part of a split one; empty: the folder is opened
  std::string index;               // the index of a folder's weights, which names further files; empty: none
};

// GGUF: the file, or all parts of the split one, whose name has `quant` between separators (or is `quant`); without one
// Q4_K_M, else Q8_0, else the only one there is. Projectors and importance matrices do not count. Without a quant and
// where no such file exists, a folder: config, tokenizer, model.safetensors or the index of its parts.
//
// Errors  kRequest: no file fits, or several do; the message lists what there is. kFormat: parts are missing.
FileSelection select_files(const Listing& listing, const RepoId& repo);

// The files that an index of weights names. Errors  kFormat: not an index, or a file that the listing lacks.
std::vector<std::string> files_of_index(std::string_view index, std::string_view from, const Listing& listing);

}  // namespace mneme::hub
