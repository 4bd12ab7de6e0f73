// "OWNER/NAME[:QUANT]": a repository, and which of its GGUF files.
#pragma once

#include <string>
#include <string_view>

namespace mneme::hub {

struct RepoId {
  std::string owner, name;
  std::string quant;  // what follows the colon: "Q4_K_M", or the name of a file; empty: the default

  std::string id() const { return owner + "/" + name; }
};

// Accepts the names that the hub gives out: letters, digits, - . _, no two of - or . in a row, at most 96 characters.
//
// Errors  kOption.
RepoId parse_repo_id(std::string_view text);

}  // namespace mneme::hub
