#include "src/text/tokenizer/merge_table.h"

#include <algorithm>
#include <array>
#include <bit>
#include <queue>
#include <tuple>

#include "src/base/check.h"

namespace mneme {
namespace {

// Up to this length a scan for the lowest rank beats a heap: an English word is 2 to 15 symbols.
constexpr std::size_t kShort = 32;
constexpr std::uint32_t kNoNode = 0xFFFFFFFF;

std::uint64_t key_of(Symbol left, Symbol right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
}

struct Candidate {
  std::uint32_t rank, at;  // at: node of the left symbol
  Symbol left, right, result;
};

struct Later {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return std::tie(a.rank, a.at) > std::tie(b.rank, b.at);
  }
};

struct Node {
  Symbol symbol;
  std::uint32_t previous, next;
};

}  // namespace

MergeTable::MergeTable(std::size_t expected) {
  const std::size_t capacity = std::bit_ceil(std::max<std::size_t>(16, 2 * expected));
  slots_.resize(capacity);
  shift_ = 64 - std::countr_zero(capacity);
}

std::size_t MergeTable::slot_of(std::uint64_t key) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = (key * 0x9E3779B97F4A7C15ull) >> shift_;
  while (slots_[at].merge.rank != kNever && slots_[at].key != key) at = (at + 1) & mask;
  return at;
}

void MergeTable::grow() {
  std::vector<Slot> old(2 * slots_.size());
  old.swap(slots_);
  --shift_;
  for (const Slot& slot : old) {
    if (slot.merge.rank != kNever) slots_[slot_of(slot.key)] = slot;
  }
}

void MergeTable::add(Symbol left, Symbol right, Merge merge) {
  MNEME_CHECK(merge.rank != kNever, "rank {} is reserved", merge.rank);
  if (2 * (size_ + 1) > slots_.size()) grow();
  const std::uint64_t key = key_of(left, right);
  Slot& slot = slots_[slot_of(key)];
  if (slot.merge.rank == kNever) ++size_;
  if (merge.rank < slot.merge.rank) slot = {key, merge};
}

MergeTable::Merge MergeTable::find(Symbol left, Symbol right) const {
  return slots_[slot_of(key_of(left, right))].merge;
}

void MergeTable::reduce(std::vector<Symbol>& symbols) const {
  if (symbols.size() <= kShort) {
    reduce_short(symbols);
  } else {
    reduce_long(symbols);
  }
}

void MergeTable::reduce_short(std::vector<Symbol>& symbols) const {
  std::size_t n = symbols.size();
  if (n < 2) return;
  std::array<Merge, kShort> merges;  // merges[i]: of symbols i and i + 1
  for (std::size_t i = 0; i + 1 < n; ++i) merges[i] = find(symbols[i], symbols[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == kNever) break;
    symbols[best] = merges[best].result;
    for (std::size_t i = best + 1; i + 1 < n; ++i) {
      symbols[i] = symbols[i + 1];
      merges[i] = merges[i + 1];
    }
    --n;
    if (best > 0) merges[best - 1] = find(symbols[best - 1], symbols[best]);
    if (best + 1 < n) merges[best] = find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(n);
}

void MergeTable::reduce_long(std::vector<Symbol>& symbols) const {
  MNEME_CHECK(symbols.size() < kNoNode, "a piece of {} symbols", symbols.size());
  const auto n = static_cast<std::uint32_t>(symbols.size());
  std::vector<Node> nodes(n);
  for (std::uint32_t i = 0; i < n; ++i) nodes[i] = {symbols[i], i == 0 ? kNoNode : i - 1, i + 1 == n ? kNoNode : i + 1};

  std::vector<Candidate> storage;
  storage.reserve(n);
  std::priority_queue<Candidate, std::vector<Candidate>, Later> queue(Later{}, std::move(storage));
  auto consider = [&](std::uint32_t at) {
    const Symbol left = nodes[at].symbol, right = nodes[nodes[at].next].symbol;
    const Merge merge = find(left, right);
    if (merge.rank != kNever) queue.push({merge.rank, at, left, right, merge.result});
  };
  for (std::uint32_t i = 0; i + 1 < n; ++i) consider(i);

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Node& node = nodes[best.at];
    // A merged node has next == itself; a candidate is stale when either symbol has changed since.
    if (node.next == best.at || node.next == kNoNode) continue;
    if (node.symbol != best.left || nodes[node.next].symbol != best.right) continue;
    const std::uint32_t gone = node.next;
    node.symbol = best.result;
    node.next = nodes[gone].next;
    nodes[gone].next = gone;
    if (node.next != kNoNode) {
      nodes[node.next].previous = best.at;
      consider(best.at);
    }
    if (node.previous != kNoNode) consider(node.previous);
  }

  symbols.clear();
  for (std::uint32_t i = 0; i != kNoNode; i = nodes[i].next) symbols.push_back(nodes[i].symbol);
}

}  // namespace mneme
