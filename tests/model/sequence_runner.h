// A model with a page pool and a forward pass, for tests that feed tokens and look at logits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "src/base/size32.h"
#include "src/kv/page_pool.h"
#include "src/kv/sequence_cache.h"
#include "src/model/model.h"

namespace mneme {

struct SequenceRunner {
  const Model& model;
  PagePool pool;
  Forward forward;

  SequenceRunner(const Model& m, DType kv_dtype, const CpuContext& context, std::int64_t n_pages = 64)
      : model(m), pool(m.kv_shape(kv_dtype), blocks_of(m.kv_shape(kv_dtype), n_pages)), forward(m, context) {}

  // And room for four states.
  static std::int64_t blocks_of(const KvShape& shape, std::int64_t n_pages) {
    return n_pages * shape.blocks_per_page() + 4 * shape.state_blocks();
  }

  // Logits of every token, fed in chunks of at most `chunk` tokens; [tokens, vocab].
  std::vector<float> feed(SequenceCache& cache, std::span<const std::int32_t> tokens, std::size_t chunk) {
    std::vector<float> out;
    for (std::size_t at = 0; at < tokens.size(); at += chunk) {
      const std::span<const std::int32_t> piece = tokens.subspan(at, std::min(chunk, tokens.size() - at));
      const SequenceRows rows{.cache = &cache, .n_rows = size32(piece), .want_logits = true};
      cache.extend(rows.n_rows);
      append(forward.run_all_logits({.tokens = piece, .sequences = std::span(&rows, 1)}), out);
    }
    return out;
  }

  // Feeds tokens and gives the logits of the last one.
  std::vector<float> step(SequenceCache& cache, std::span<const std::int32_t> tokens) {
    const SequenceRows rows{.cache = &cache, .n_rows = size32(tokens), .want_logits = true};
    cache.extend(rows.n_rows);
    std::vector<float> out;
    append(forward.run({.tokens = tokens, .sequences = std::span(&rows, 1)}), out);
    return out;
  }

  static void append(const ConstTensorView& logits, std::vector<float>& out) {
    for (std::int64_t i = 0; i < logits.dim(0); ++i) {
      const float* row = logits.row_as<float>(i);
      out.insert(out.end(), row, row + logits.dim(1));
    }
  }
};

}  // namespace mneme
