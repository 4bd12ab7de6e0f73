// Device state of all methods in use: one CudaRetrieval for plans that can share it (units of one kind, the same dense
// layers), so that sequences of one step may have any plans. State of plans that no sequence of a step has is kept as
// long as there is memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "src/kv/sequence_cache.h"
#include "src/model/cuda/retrieval/retrieval.h"

namespace mneme {

// What CudaRetrieval's constructor takes beside needs.
struct CudaRetrievalSetup {
  KvShape shape;
  std::int32_t n_heads = 0;
  KvTables pages;
  CudaRetrievalOptions options;
  // Free device memory, of which cache slots of pages may take half beyond what stays free for steps; null: they do not
  // grow. They shrink where other state finds no memory.
  std::int64_t (*free_bytes)() = nullptr;
  // Frees device memory that others can do without; returns whether there was any. Empty: there is none.
  std::function<bool()> release;
};

// Cache slots that a head gets beyond `needs`: up to twice as many more, as far as memory goes. Of what the shipped
// model selects, 60 to 70 % are in 1.25 selections of slots, 81 to 86 in 4, 83 to 86 in 8 (m13-hits).
std::int32_t more_slots(const CudaRetrieval::Needs& needs, const CudaRetrievalSetup& setup);

class CudaRetrievalSet {
 public:
  // ---- a step: which plans its sequences have
  void begin() { needs_.clear(); }
  // Returns a number for retrieval_of(), valid until the next begin().
  std::size_t add(const CudaRetrieval::Needs& needs);
  // Makes state for the added plans; true: some was allocated or freed, and earlier graphs must not be replayed. Enqueued
  // work of `stream` has ended then. Errors  kResource.
  bool prepare(const CudaRetrievalSetup& setup, const Stream& stream);
  CudaRetrieval& retrieval_of(std::size_t number) const { return *active_[number]; }
  // The states of this step, each once.
  std::span<CudaRetrieval* const> active() const { return active_; }

  std::span<const std::unique_ptr<CudaRetrieval>> all() const { return all_; }
  std::size_t bytes() const;

 private:
  void make(const CudaRetrieval::Needs& needs, const CudaRetrievalSetup& setup);
  // more: cache slots of a head beyond the needs.
  void allocate(const CudaRetrieval::Needs& needs, const CudaRetrievalSetup& setup, std::int32_t more);
  bool allocated(const CudaRetrieval::Needs& needs, const CudaRetrievalSetup& setup, std::int32_t more);
  void shrink(const CudaRetrievalSetup& setup);
  bool is_active(const CudaRetrieval& r) const;
  void free_unused();

  std::vector<std::unique_ptr<CudaRetrieval>> all_;
  std::vector<CudaRetrieval::Needs> needs_;  // of this step, combined
  std::vector<CudaRetrieval*> active_;       // by index in needs_
};

}  // namespace mneme
