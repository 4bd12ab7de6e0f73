// What DecodeAttention does for one selection head of one row in one step. Included by its own files alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/methods/decode_attention.h"

namespace mneme {

// One (row, selection head): a KV head, or a query head with per_query_head.
struct DecodeAttention::Item {
  const DecodeRow* row = nullptr;
  const float* remote_q = nullptr;  // of the row, for the remote part; null: the row's own
  std::int32_t head = 0;            // selection head
  std::int32_t kv_head = 0;
  bool everything = true;
  bool per_query_head = false;
  bool select_now = false;          // with this step's query, for this step
  bool select_speculative = false;  // with this step's query, for the next step
  bool asks_mass = false;           // attends this step's selection where the missing mass is above eps
  Region region;                    // of this step
  std::int64_t new_units = 0;       // of this step's selection, not in the previous step's
  std::int64_t index_bytes = 0;
  // Runs of the attended set: the remote part, seen by remote_q, then the local part.
  std::vector<KvRun>* runs = nullptr;
  std::size_t first_local = 0;
  std::int64_t n_tokens = 0;
  std::span<const float> shared;  // select=layer: scores of all KV heads together

  bool selects() const { return !everything && row->method->plan().selects(); }

  std::int32_t length() const { return row->length(); }
};

}  // namespace mneme
