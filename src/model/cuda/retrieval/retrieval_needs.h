// What sequences must have in common to share a state on the device (CudaRetrieval), what it must have for each, and
// what else a state is made with.
#pragma once

#include <cstdint>
#include <vector>

#include "src/model/cuda/retrieval/plan_asks.h"
#include "src/offload/device_cache_cuda.h"
#include "src/ops/norm_rope/rope.h"

namespace mneme {

class StepObserver;

struct CudaRetrievalNeeds {
  struct Keys {
    // Tokens are attended one by one: they are selected alone or several together, by `entries` or without an index; or
    // they leave the window one by one.
    bool by_token = false;
    UnitEntries entries;             // without memory; kNone: none, or boxes of pages of 32
    std::int32_t select_tokens = 1;  // SelectionPlan::Units::select_tokens
    // A fused selection by entries: tokens by 1-bit keys (UnitIndexes::keys) or sketches (UnfusedSelect::token_scratch),
    // pages of 32 by sketches (UnfusedSelect::sketch_pages), or pages of another size by their boxes
    // (SelectPages::of_entries).
    bool fused_entries = false;
    bool by_layer = false;         // units are pages, selected per layer by their keys
    bool by_query_head = false;    // every query head selects for itself
    std::int32_t list_tokens = 0;  // nonzero: units are lists of at least this many tokens; 0: not lists
    bool none = false;             // no selection: compatible with any units, pages if alone
    bool of_tokens() const { return list_tokens > 0 || by_token; }
    bool operator==(const Keys&) const = default;
  };
  Keys keys;
  // Methods with two-part attention (docs/design/windows.md): all of a step's, or none.
  bool two_parts = false;
  std::int32_t ring_pages = 0;               // size of the ring of rotated keys, with pre-RoPE keys
  std::vector<bool> dense;                   // by layer
  std::int32_t n_slots = 0, max_listed = 0;  // in units
  std::vector<SelectionPlan> plans;          // that ask for different things (plan_asks.h)

  // Requires  goes_with(other), or this one is new.
  void add(const CudaRetrievalNeeds& other);
  bool goes_with(const CudaRetrievalNeeds& other) const {
    return dense == other.dense && (keys == other.keys || keys.none || other.keys.none) &&
           two_parts == other.two_parts && (ring_pages > 0) == (other.ring_pages > 0);
  }
  bool holds(const CudaRetrievalNeeds& other) const;
  // For a plan without a selection: requirements compatible with `others`.
  CudaRetrievalNeeds beside(const Keys& others) const;
};

// How plans are fitted to the device.
struct CudaFit {
  float spare = 0;  // cache slots beyond one selection, as a share of it
};

struct CudaRetrievalOptions {
  std::int32_t n_seq_slots = 1;  // sequences with state on the device
  std::int64_t max_context = 0;  // tokens per sequence
  CudaFit fit;
  std::int32_t more_slots = 0;       // cache slots of a head beyond what the needs say
  bool pages_on_device = false;      // else in mapped host memory
  const RopeTable* rope = nullptr;   // the model's, for methods that rotate keys themselves
  StepObserver* observer = nullptr;  // or null
};

}  // namespace mneme
