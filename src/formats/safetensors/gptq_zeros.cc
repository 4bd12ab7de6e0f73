// Which of two ways a gptq folder packed its zero points.
#include <algorithm>
#include <cmath>
#include <vector>

#include "src/base/ratio.h"
#include "src/formats/safetensors/packed_words.h"
#include "src/formats/safetensors/quantised.h"

namespace mneme {

using Type = SafetensorsType;

GptqZeros GptqEvidence::verdict() const {
  const std::int64_t more = by_nibble - by_word;
  return more > 0 && more * more > 4 * (by_nibble + by_word) ? GptqZeros::kOneLessByNibble : GptqZeros::kOneLessByWord;
}

GptqEvidence gptq_evidence(const WeightSpec& weight, FindTensor find) {
  const std::string base = weight.hf_name.substr(0, weight.hf_name.rfind('.'));
  const std::int64_t n = weight.n_out, k = weight.n_in;
  const SafetensorsTensor *codes = find(base + ".qweight"), *zeros = find(base + ".qzeros"),
                          *g_idx = find(base + ".g_idx");
  const auto is_words = [](const SafetensorsTensor* t, std::int64_t rows, std::int64_t columns) {
    return t != nullptr && t->type == Type::kI32 && t->rank == 2 && t->dims[0] == rows && t->dims[1] == columns;
  };
  if (n % 8 != 0 || k % 8 != 0 || !is_words(codes, k / 8, n) || zeros == nullptr) return {};
  const std::int64_t groups = zeros->dims[0];
  if (!is_words(zeros, groups, n / 8) || k % groups != 0) return {};
  if (g_idx != nullptr && (g_idx->type != Type::kI32 || g_idx->rank != 1 || g_idx->dims[0] != k)) return {};
  const auto* q = reinterpret_cast<const std::uint32_t*>(codes->data.data());
  const auto* z = reinterpret_cast<const std::uint32_t*>(zeros->data.data());
  const auto* group = g_idx == nullptr ? nullptr : reinterpret_cast<const std::int32_t*>(g_idx->data.data());
  std::vector<std::vector<std::int64_t>> columns(groups);
  for (std::int64_t c = 0; c < k; ++c) {
    const std::int64_t g = group == nullptr ? c / (k / groups) : group[c];
    if (g >= 0 && g < groups) columns[g].push_back(c);
  }
  const auto mean_code = [&](std::int64_t r, std::int64_t g) {
    std::int64_t sum = 0;
    for (const std::int64_t c : columns[g]) sum += nibble_of(q[c / 8 * n + r], c % 8);
    return columns[g].empty() ? 0.0 : ratio(sum, std::ssize(columns[g]));
  };
  GptqEvidence evidence;
  for (std::int64_t i = 0; i < groups * (n / 8); ++i) {
    const std::uint32_t word = zeros_of(z[i], GptqZeros::kOneLessByWord);
    const std::uint32_t nibbles = zeros_of(z[i], GptqZeros::kOneLessByNibble);
    for (int j = 0; j < 8 && word != nibbles; ++j) {
      const int stored = nibble_of(z[i], j), a = nibble_of(word, j), b = nibble_of(nibbles, j);
      if (a == b || stored < 3 || stored > 12) continue;
      const double mean = mean_code(i % (n / 8) * 8 + j, i / (n / 8));
      if (mean < std::min(a, b) - 1 || mean > std::max(a, b) + 1) continue;  // weights of mostly one sign
      ++(std::abs(mean - b) < std::abs(mean - a) ? evidence.by_nibble : evidence.by_word);
    }
  }
  return evidence;
}

}  // namespace mneme
