// Any listing of a repository, any name and any index of weights: an error that names what is wrong, or files that stay
// in their folder and are listed.
//
// The input is a name, a zero byte, a listing, a zero byte, and an index.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "apps/hub/file_selection.h"
#include "apps/hub/listing.h"
#include "apps/hub/repo_id.h"
#include "src/base/check.h"
#include "src/base/error.h"

namespace {

using namespace mneme;

std::string_view next_part(std::string_view& text) {
  const std::string_view part = text.substr(0, text.find('\0'));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

void expect_listed(const hub::Listing& listing, const std::string& path) {
  MNEME_CHECK(hub::is_safe_path(path) && listing.find(path) != nullptr, "{} is fetched", path);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string_view name = next_part(text), source = next_part(text);
  try {
    const hub::RepoId repo = hub::parse_repo_id(name);
    MNEME_CHECK(hub::is_safe_path(repo.id()), "{}", repo.id());
    const hub::Listing listing = hub::parse_listing(source, "listing");
    const hub::FileSelection selection = hub::select_files(listing, repo);
    MNEME_CHECK(!selection.files.empty(), "nothing is fetched");
    for (const std::string& path : selection.files) expect_listed(listing, path);
    for (const std::string& path : hub::files_of_index(text, "index", listing)) expect_listed(listing, path);
  } catch (const Error&) {
  }
  return 0;
}
