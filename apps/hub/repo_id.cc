#include "apps/hub/repo_id.h"

#include <algorithm>

#include "src/base/ascii.h"
#include "src/base/error.h"

namespace mneme::hub {
namespace {

constexpr std::size_t kMaxName = 96, kMaxQuant = 255;

// Both become names of folders, so names that mean another folder are refused.
bool is_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxName) return false;
  const auto fits = [](char c) { return is_letter_or_digit(c) || c == '-' || c == '.' || c == '_'; };
  if (!std::all_of(name.begin(), name.end(), fits)) return false;
  if (name.find("--") != name.npos || name.find("..") != name.npos) return false;
  const auto edge = [](char c) { return is_letter_or_digit(c) || c == '_'; };
  return edge(name.front()) && edge(name.back());
}

bool is_quant(std::string_view quant) {
  return quant.size() <= kMaxQuant &&
         std::all_of(quant.begin(), quant.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

}  // namespace

RepoId parse_repo_id(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view id = text.substr(0, colon);
  const std::size_t slash = id.find('/');
  RepoId out{.owner = std::string(id.substr(0, slash)),
             .name = slash == id.npos ? "" : std::string(id.substr(slash + 1)),
             .quant = colon == text.npos ? "" : std::string(text.substr(colon + 1))};
  const bool quant_fits = colon == text.npos || (!out.quant.empty() && is_quant(out.quant));
  if (!is_name(out.owner) || !is_name(out.name) || !quant_fits)
    fail(ErrorKind::kOption, "-hf: expected OWNER/NAME[:QUANT] as in Qwen/Qwen3-8B-GGUF:Q4_K_M, found \"{}\"", text);
  return out;
}

}  // namespace mneme::hub
