#include "apps/hub/hub_settings.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string_view>

#include "src/base/ascii.h"
#include "src/base/error.h"

namespace mneme::hub {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

bool is_set(const char* name) {
  std::string value = variable(name);
  std::transform(value.begin(), value.end(), value.begin(), to_upper);
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

fs::path expanded(const std::string& path) {
  if (path == "~" || path.starts_with("~/")) return variable("HOME") + path.substr(1);
  return path;
}

fs::path home_folder() {
  if (const std::string given = variable("HF_HOME"); !given.empty()) return expanded(given);
  if (const std::string given = variable("XDG_CACHE_HOME"); !given.empty()) return expanded(given) / "huggingface";
  if (variable("HOME").empty())
    fail(ErrorKind::kOption, "-hf: no folder to keep models in: HF_HOME, HF_HUB_CACHE and HOME are not set");
  return fs::path(variable("HOME")) / ".cache" / "huggingface";
}

fs::path cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const std::string given = variable(name); !given.empty()) return expanded(given);
  return home_folder() / "hub";
}

std::string stored_token() {
  if (is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return {};
  const std::string given = variable("HF_TOKEN_PATH");
  if (given.empty() && variable("HF_HOME").empty() && variable("HOME").empty()) return {};
  std::ifstream in(given.empty() ? home_folder() / "token" : expanded(given), std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  return std::string(trimmed(text));
}

std::string find_token() {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
    if (std::string given(trimmed(variable(name))); !given.empty()) return given;
  return stored_token();
}

}  // namespace

HubSettings hub_settings_from_environment() {
  HubSettings out{.token = find_token(), .cache = cache_folder()};
  if (std::string given(trimmed(variable("HF_ENDPOINT"))); !given.empty()) {
    while (given.ends_with('/')) given.pop_back();
    out.endpoint = given;
  }
  if (!out.endpoint.starts_with("https://") && !out.endpoint.starts_with("http://"))
    fail(ErrorKind::kOption, "HF_ENDPOINT: expected an address that begins with https:// or http://, found \"{}\"",
         out.endpoint);
  // A line end in a header would begin another one.
  if (std::any_of(out.token.begin(), out.token.end(), [](char c) { return c <= 0x20 || c >= 0x7f; }))
    fail(ErrorKind::kOption, "HF_TOKEN: expected letters, digits and signs on one line");
  for (const char* name : {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"})
    if (const std::string given = variable(name); !given.empty()) out.ca_file = expanded(given);
  out.offline = is_set("HF_HUB_OFFLINE") || is_set("TRANSFORMERS_OFFLINE");
  return out;
}

}  // namespace mneme::hub
