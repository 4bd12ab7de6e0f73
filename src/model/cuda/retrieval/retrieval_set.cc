#include "src/model/cuda/retrieval/retrieval_set.h"

#include <algorithm>

#include "src/base/error.h"

namespace mneme {

std::size_t CudaRetrievalSet::add(const CudaRetrieval::Needs& needs) {
  const auto same = std::find_if(needs_.begin(), needs_.end(), [&](const auto& n) { return n.goes_with(needs); });
  if (same != needs_.end()) {
    same->add(needs);
    return static_cast<std::size_t>(same - needs_.begin());
  }
  needs_.push_back(needs);
  return needs_.size() - 1;
}

bool CudaRetrievalSet::is_active(const CudaRetrieval& r) const {
  return std::find(active_.begin(), active_.end(), &r) != active_.end();
}

void CudaRetrievalSet::free_unused() {
  std::erase_if(all_, [&](const auto& r) { return !is_active(*r); });
}

void CudaRetrievalSet::make(CudaRetrieval::Needs needs, const CudaRetrievalSetup& setup) {
  const auto allocate = [&] {
    all_.push_back(std::make_unique<CudaRetrieval>(setup.shape, setup.n_heads, needs, setup.pages, setup.options));
  };
  try {
    allocate();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kResource) throw;
    free_unused();
    allocate();
  }
}

bool CudaRetrievalSet::prepare(const CudaRetrievalSetup& setup, const Stream& stream) {
  active_.assign(needs_.size(), nullptr);
  bool changed = false;
  for (std::size_t i = 0; i < needs_.size(); ++i) {
    auto found = std::find_if(all_.begin(), all_.end(),
                              [&](const auto& r) { return !is_active(*r) && r->needs().holds(needs_[i]); });
    if (found != all_.end()) {
      active_[i] = found->get();
      continue;
    }
    if (!changed) stream.synchronize();
    changed = true;
    // Including earlier requirements, so that alternating methods do not reallocate alternately.
    found = std::find_if(all_.begin(), all_.end(),
                         [&](const auto& r) { return !is_active(*r) && r->needs().goes_with(needs_[i]); });
    if (found != all_.end()) {
      needs_[i].add((*found)->needs());
      all_.erase(found);
    }
    make(needs_[i], setup);
    active_[i] = all_.back().get();
  }
  return changed;
}

std::size_t CudaRetrievalSet::bytes() const {
  std::size_t n = 0;
  for (const auto& r : all_) n += r->bytes();
  return n;
}

}  // namespace mneme
