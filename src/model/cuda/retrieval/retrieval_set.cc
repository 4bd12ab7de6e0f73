#include "src/model/cuda/retrieval/retrieval_set.h"

#include <algorithm>

#include "src/base/error.h"

namespace mneme {

std::int32_t more_slots(const CudaRetrieval::Needs& needs, const CudaRetrievalSetup& setup) {
  constexpr std::int64_t kStaysFree = std::int64_t{4} << 30;  // for other methods' state, prompts, graphs
  constexpr std::int32_t kTimes = 2;
  const bool of_pages = any(needs.plans, asks::selects) && !needs.keys.of_tokens() && !needs.keys.by_layer;
  if (setup.free_bytes == nullptr || setup.options.pages_on_device || !of_pages) return 0;
  const std::int64_t layers = std::count(needs.dense.begin(), needs.dense.end(), false),
                     heads = needs.keys.by_query_head ? setup.n_heads : setup.shape.n_kv_heads,
                     one = static_cast<std::int64_t>(setup.shape.page_bytes()) * layers * heads *
                           setup.options.n_seq_slots,
                     room = (setup.free_bytes() - kStaysFree) / 2;
  if (one == 0 || room < one) return 0;
  const std::int64_t most = std::min(kTimes * needs.n_slots, kMaxKvSlots - needs.n_slots);
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(room / one, 0, std::max<std::int64_t>(most, 0)));
}

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

void CudaRetrievalSet::allocate(const CudaRetrieval::Needs& needs, const CudaRetrievalSetup& setup, std::int32_t more) {
  CudaRetrievalOptions options = setup.options;
  options.more_slots = more;
  all_.push_back(std::make_unique<CudaRetrieval>(setup.shape, setup.n_heads, needs, setup.pages, options));
}

bool CudaRetrievalSet::allocated(const CudaRetrieval::Needs& needs, const CudaRetrievalSetup& setup,
                                 std::int32_t more) {
  try {
    allocate(needs, setup, more);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kResource) throw;
    return false;
  }
  return true;
}

// State that has grown is made again without: all of it is filled from the pages.
void CudaRetrievalSet::shrink(const CudaRetrievalSetup& setup) {
  std::vector<CudaRetrieval::Needs> grown;
  std::vector<std::size_t> numbers;  // in active_
  for (std::size_t i = 0; i < active_.size(); ++i)
    if (active_[i] != nullptr && active_[i]->options().more_slots > 0) {
      grown.push_back(active_[i]->needs()), numbers.push_back(i);
      active_[i] = nullptr;
    }
  free_unused();
  for (std::size_t i = 0; i < grown.size(); ++i) {
    allocate(grown[i], setup, 0);
    active_[numbers[i]] = all_.back().get();
  }
}

void CudaRetrievalSet::make(const CudaRetrieval::Needs& needs, const CudaRetrievalSetup& setup) {
  if (allocated(needs, setup, more_slots(needs, setup))) return;
  free_unused();
  if (allocated(needs, setup, 0)) return;
  if (setup.release && setup.release() && allocated(needs, setup, 0)) return;
  shrink(setup);
  allocate(needs, setup, 0);
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
