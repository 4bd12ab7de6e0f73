#include "src/recipes/blocks/full_heads.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/base/size32.h"

namespace mneme {

FullHeads parse_full_heads(std::string_view text, const std::string& file) {
  FullHeads heads{.file = file};
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    std::int32_t n = 0;
    while (true) {
      line.remove_prefix(std::min(line.find_first_not_of(" \t\r"), line.size()));
      if (line.empty()) break;
      double share = 0;
      const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), share);
      if (error != std::errc()) fail(ErrorKind::kFormat, "{}: '{}' is not a number", file, line.substr(0, 20));
      line.remove_prefix(end - line.data());
      heads.full.push_back(share >= 0.5 ? 1 : 0);
      ++n;
    }
    if (n == 0) continue;
    if (heads.n_layers > 0 && n != heads.n_kv_heads)
      fail(ErrorKind::kFormat, "{}: layer {} has {} heads, layer 0 has {}", file, heads.n_layers, n, heads.n_kv_heads);
    heads.n_kv_heads = n;
    ++heads.n_layers;
  }
  if (heads.full.empty()) fail(ErrorKind::kFormat, "{}: no numbers: expected a line a layer, a number a KV head", file);
  return heads;
}

FullHeads read_full_heads(const std::string& file) {
  const MappedFile mapped(file);
  const auto bytes = mapped.bytes();
  return parse_full_heads({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file);
}

void check_full_heads(const Recipe& r, const MethodShape& shape, std::vector<std::string>& reasons) {
  if (!r.full_heads) return;
  const FullHeads& heads = *r.full_heads;
  if (shape.n_kv_heads > 0 && shape.n_layers < std::numeric_limits<std::int32_t>::max() &&
      (heads.n_layers != shape.n_layers || heads.n_kv_heads != shape.n_kv_heads))
    reasons.push_back(fmt::format("full_heads names {} x {} heads, the model has {} layers of {} KV heads",
                                  heads.n_layers, heads.n_kv_heads, shape.n_layers, shape.n_kv_heads));
  if (r.attend != Attend::kRegions)
    reasons.push_back("full_heads goes with sinks, a window and a selection: what is dropped stays dropped");
  if (r.prefill_window || r.positions != Positions::kAbsolute)
    reasons.push_back("full_heads needs an exact prefill at true positions: use prefill=exact, positions=absolute");
}

}  // namespace mneme
