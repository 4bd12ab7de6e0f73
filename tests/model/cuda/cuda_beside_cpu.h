// Runs a model on the device and on the CPU with the same inputs.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "src/model/cuda/forward.h"
#include "tests/model/cuda/cuda_models.h"
#include "tests/model/sequence_runner.h"

namespace mneme {

// One sequence on both.
struct Pair {
  SequenceCache device, host;
  MethodState on_device, on_host;

  Pair fork() const { return {device.fork(), host.fork(), on_device, on_host}; }
};

struct Both {
  CudaForward forward;
  std::unique_ptr<PagePool> pool;
  SequenceRunner host;
  std::vector<double> errors;  // of the last step's pieces, one by one

  // audit: every so many steps of a sequence, here and there.
  Both(const Model& m, DType kv_dtype, KvStore store, const CpuContext& cpu, std::int32_t audit = 0)
      : Both(m, kv_dtype, store, cpu, audit, Stream::make()) {}
  Both(const Model& m, DType kv_dtype, KvStore store, const CpuContext& cpu, std::int32_t audit, Stream stream)
      : forward(m, CudaWeights::load(m, stream), Stream::make(),
                {.max_rows = 512,
                 .max_sequences = 4,
                 .max_context = m.max_context(),
                 .store = store,
                 .kv_dtype = kv_dtype,
                 .audit_every = audit}),
        pool(forward.make_pool(m.kv_shape(kv_dtype), 200 * m.kv_shape(kv_dtype).blocks_per_page())),
        host(m, kv_dtype, cpu, 200) {
    host.forward.set_audit(audit);
  }

  Pair start(const std::shared_ptr<const Plan>& plan) {
    Pair p{SequenceCache(*pool), SequenceCache(host.pool), MethodState(plan), MethodState(plan)};
    p.device.set_key_basis(plan->key_basis), p.host.set_key_basis(plan->key_basis);
    return p;
  }
  // The next n rows of each of some sequences, whose tokens are those of `all`; logits of the last of each.
  struct Piece {
    Pair* pair;
    std::int32_t n;
    SequencePhase phase = SequencePhase::kPrefill;
    std::int32_t left = 0;  // SequenceRows::prefill_left
  };
  double step(std::span<const std::int32_t> all, const std::vector<Piece>& pieces) {
    std::vector<SequenceRows> here, there;
    std::vector<std::int32_t> tokens;
    for (const Piece& p : pieces) {
      const auto piece = all.subspan(static_cast<std::size_t>(p.pair->host.length()), static_cast<std::size_t>(p.n));
      tokens.insert(tokens.end(), piece.begin(), piece.end());
      SequenceRows rows{.cache = &p.pair->host, .n_rows = p.n, .want_logits = true, .method = &p.pair->on_host};
      rows.phase = p.phase, rows.prefill_left = p.left;
      rows.cache->extend(p.n);
      here.push_back(rows);
      rows.cache = &p.pair->device, rows.method = &p.pair->on_device;
      rows.cache->extend(p.n);
      there.push_back(rows);
    }
    std::vector<float> got, want;
    SequenceRunner::append(forward.run({.tokens = tokens, .sequences = there}), got);
    SequenceRunner::append(host.forward.run({.tokens = tokens, .sequences = here}), want);
    EXPECT_EQ(got.size(), want.size());
    errors.clear();
    const std::size_t vocab = want.size() / pieces.size();
    for (std::size_t i = 0; i < pieces.size(); ++i)
      errors.push_back(
          relative_error(std::span(got).subspan(i * vocab, vocab), std::span(want).subspan(i * vocab, vocab)));
    return relative_error(got, want);
  }
};

}  // namespace mneme
