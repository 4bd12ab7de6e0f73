#include "src/model/cuda/drops/device_drops.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "src/base/check.h"
#include "src/methods/drop_decider.h"
#include "src/selection/mass/drop_least.h"

namespace mneme {
namespace {

constexpr std::int32_t kFewTokens = 8;  // over the budget; the device drops them one after the other

std::int32_t stored_sinks(std::int32_t layer, std::int32_t head, const SequenceCache& cache, const Plan& plan) {
  return cache.rank_of(layer, head, std::min(plan.drop->sink, cache.length()));
}

// The slot of the first token that is no sink, stored or still to come.
std::int32_t first_slot_of(std::int32_t layer, std::int32_t head, const SequenceCache& cache, const Plan& plan) {
  const std::int32_t sink = plan.drop->sink;
  std::int32_t rank = stored_sinks(layer, head, cache, plan);
  if (cache.length() < sink) return cache.n_slots(layer, head) + sink - cache.length();
  for (const TokenRange& r : cache.stored_slots(layer, head)) {
    if (rank < r.end - r.begin) return r.begin + rank;
    rank -= r.end - r.begin;
  }
  return cache.n_slots(layer, head);
}

bool heads_alike(const SequenceCache& cache, const Plan& plan) {
  if (!cache.dropped()) return true;
  for (std::int32_t l = 0; l < cache.shape().n_layers; ++l) {
    if (!plan.compressed(l)) continue;
    const std::vector<TokenRange> first = cache.stored_slots(l, 0);
    for (std::int32_t m = 1; m < cache.shape().n_kv_heads; ++m)
      if (cache.stored_slots(l, m) != first) return false;
  }
  return true;
}

std::int32_t most_slots(const SequenceCache& cache) {
  std::int32_t n = 0;
  for (std::int32_t l = 0; l < cache.shape().n_layers; ++l)
    for (std::int32_t m = 0; m < cache.shape().n_kv_heads; ++m) n = std::max(n, cache.n_slots(l, m));
  return n;
}

// Each step keeps room for the next one's token.
DropTask rule_of(const Plan& plan) {
  DropTask rule;
  rule.adds = plan.observed_rows == Plan::kAllRows;
  rule.keep = std::numeric_limits<std::int32_t>::max();
  if (!DropDecider::each_step(plan)) return rule;
  rule.keep = plan.drop->budget - 1;
  rule.recent = std::max(0, plan.drop->recent - 1);
  rule.by_mass = plan.drop->rank == Rank::kMass;
  rule.one_a_layer = plan.drop->scope == DropScope::kLayer;
  return rule;
}

// Appends the ranks of the slots of `r` whose bit is set; `rank` is that of the first. Returns whether any bit is clear.
// Word by word: a sequence has some 500,000 slots in all heads, of which 8,000 are dropped between two calls.
bool append_kept(std::span<const std::uint32_t> masks, const TokenRange& r, std::int32_t rank,
                 std::vector<TokenRange>& kept) {
  const auto keep = [&](std::int32_t begin, std::int32_t n) {
    if (!kept.empty() && kept.back().end == begin) {
      kept.back().end += n;
    } else {
      kept.push_back({begin, begin + n});
    }
  };
  bool dropped = false;
  for (std::int32_t slot = r.begin; slot < r.end;) {
    const std::uint32_t bits = masks[static_cast<std::size_t>(slot / kPageTokens)] >> slot % kPageTokens;
    const std::int32_t left = std::min(kPageTokens - slot % kPageTokens, r.end - slot),
                       ones = std::min(std::countr_one(bits), left);
    if (ones > 0) keep(rank, ones);
    const std::int32_t zeros = ones == left ? 0 : std::min(std::countr_zero(bits >> ones), left - ones);
    dropped = dropped || zeros > 0;
    slot += ones + zeros, rank += ones + zeros;
  }
  return dropped;
}

// Appends the sums of the slots of `r`; those from `summed` on are 0 so far.
void append_sums(const TokenRange& r, std::int32_t summed, const float* sums, std::vector<float>& mass) {
  const std::int32_t end = std::clamp(summed, r.begin, r.end);
  mass.insert(mass.end(), sums + r.begin, sums + end);
  mass.insert(mass.end(), static_cast<std::size_t>(r.end - end), 0.0f);
}

}  // namespace

// What the device does for a sequence, and the host does not know of.
class CudaDrops::Sequence final : public LateDrops {
 public:
  Sequence(CudaDrops& owner, const Plan& plan) : owner_(&owner), rule_(rule_of(plan)) {
    owner.sequences_.push_back(this);
  }
  ~Sequence() override {
    if (owner_ != nullptr) std::erase(owner_->sequences_, this);
  }
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  bool any() const override { return n_late_ > 0; }
  bool continues(const SequenceCache& cache) const override {
    return revision_ == cache.revision() && rule_.length + 1 == cache.length() && n_late_ < kSteps;
  }
  std::int32_t attended(std::int32_t layer, std::int32_t kv_head) const override {
    return heads_[static_cast<std::size_t>(layer * owner_->shape_.n_kv_heads + kv_head)].n + 1;
  }
  void commit() override {
    if (!std::exchange(computed_, false)) return;
    ++rule_.length;
    ++n_late_;
    drops_next_ = true;
  }
  void take_back() override { computed_ = false; }
  void learn(MethodState& method, const SequenceCache& cache) override;

  CudaDrops* owner() const { return owner_; }
  void leave() { owner_ = nullptr; }
  bool adds() const { return rule_.adds; }
  std::int32_t mass_row() const { return rule_.mass_row; }
  void set_mass_row(std::int32_t row) { rule_.mass_row = row; }

  void attach(const SequenceCache& cache, const Plan& plan);
  // A step begins. Appends what must be dropped before.
  void begin(std::int32_t seq_slot, std::vector<DropTask>& drops);

 private:
  struct Head {
    std::int32_t sinks = 0, n = 0;  // tokens without the present step's
    bool compressed = false;
  };
  void take_drop(std::vector<DropTask>& drops);
  void learn_layer(std::int32_t layer, const std::byte* from, MethodState::Layer& state,
                   const SequenceCache& cache) const;
  std::size_t mask_words(const SequenceCache& cache) const;

  CudaDrops* owner_;
  DropTask rule_;  // its length: tokens of committed steps
  std::uint64_t revision_ = 0;
  std::int32_t n_late_ = 0;  // committed steps that the host does not know of
  bool computed_ = false;    // the present step has run, or runs
  bool drops_next_ = false;  // the last committed step's drop is still to be made
  std::vector<Head> heads_;  // [layer * KV heads + head]
};

// The state of the host becomes the device's; `cache` has the present step's token.
void CudaDrops::Sequence::attach(const SequenceCache& cache, const Plan& plan) {
  const std::int32_t n_kv = owner_->shape_.n_kv_heads;
  heads_.resize(static_cast<std::size_t>(owner_->n_heads()));
  for (std::int32_t l = 0; l < owner_->shape_.n_layers; ++l)
    for (std::int32_t m = 0; m < n_kv; ++m)
      heads_[static_cast<std::size_t>(l * n_kv + m)] = {
          .sinks = stored_sinks(l, m, cache, plan) + std::max(0, plan.drop->sink - cache.length()),
          .n = cache.n_stored(l, m) - 1,
          .compressed = plan.compressed(l)};
  rule_.length = cache.length() - 1;
  revision_ = cache.revision();
  n_late_ = 0;
  computed_ = drops_next_ = false;
}

void CudaDrops::Sequence::take_drop(std::vector<DropTask>& drops) {
  if (!std::exchange(drops_next_, false)) return;
  drops.push_back(rule_);
  for (Head& head : heads_)
    head.n = head.compressed ? kept_of(head.n + 1, head.sinks, rule_.recent, rule_.keep) : head.n + 1;
}

void CudaDrops::Sequence::begin(std::int32_t seq_slot, std::vector<DropTask>& drops) {
  rule_.seq_slot = seq_slot;
  take_drop(drops);
  computed_ = true;
}

std::size_t CudaDrops::Sequence::mask_words(const SequenceCache& cache) const {
  std::size_t n = 0;
  for (std::int32_t l = 0; l < owner_->shape_.n_layers; ++l)
    for (std::int32_t m = 0; m < owner_->shape_.n_kv_heads; ++m) n = std::max(n, cache.table(l, m).size());
  return n;
}

void CudaDrops::Sequence::learn(MethodState& method, const SequenceCache& cache) {
  MNEME_CHECK(owner_ != nullptr && owner_->tables_->holds(rule_.seq_slot, revision_),
              "drops of a sequence whose page tables are gone: settle() before a step without it");
  std::vector<DropTask> drops;
  take_drop(drops);
  owner_->launch(drops);
  const std::size_t words = mask_words(cache), n_heads = heads_.size(), mask_bytes = words * sizeof(std::uint32_t),
                    slots = rule_.adds ? std::min<std::size_t>(words * kPageTokens, owner_->mass_->stride()) : 0;
  const KvTables& tables = owner_->tables_->ragged_tables();
  const CudaDecodeMass& mass = *owner_->mass_;
  PinnedBuffer& to = owner_->learned_;
  if (to.size() < n_heads * (mask_bytes + slots * sizeof(float)))
    to = PinnedBuffer(n_heads * (mask_bytes + slots * sizeof(float)) * 5 / 4);
  copy_rows(to.data(), mask_bytes, tables.masks + rule_.seq_slot * tables.sequence_stride,
            static_cast<std::size_t>(tables.max_pages) * sizeof(std::uint32_t), mask_bytes, n_heads, *owner_->stream_);
  if (slots > 0)
    copy_rows(
        to.data() + n_heads * mask_bytes, slots * sizeof(float), mass.received() + rule_.mass_row * mass.row_floats(),
        static_cast<std::size_t>(mass.stride()) * sizeof(float), slots * sizeof(float), n_heads, *owner_->stream_);
  owner_->stream_->synchronize();
  for (std::size_t h = 0; h < n_heads; ++h)
    owner_->tables_->learn_masks(rule_.seq_slot, static_cast<std::int64_t>(h),
                                 std::span(to.as<std::uint32_t>() + h * words,
                                           cache
                                               .table(static_cast<std::int32_t>(h) / owner_->shape_.n_kv_heads,
                                                      static_cast<std::int32_t>(h) % owner_->shape_.n_kv_heads)
                                               .size()));
  owner_->tables_->learned(rule_.seq_slot);
  for (std::int32_t l = 0; l < owner_->shape_.n_layers; ++l)
    if (method.plan().compressed(l)) learn_layer(l, to.data(), method.layer(l), cache);
  n_late_ = 0;
  computed_ = false;
  revision_ = 0;  // the next step attaches it again
}

// Bits and sums of a layer's heads, by slot, as ranks to keep and mass by rank.
void CudaDrops::Sequence::learn_layer(std::int32_t layer, const std::byte* from, MethodState::Layer& state,
                                      const SequenceCache& cache) const {
  const auto n_kv = static_cast<std::size_t>(owner_->shape_.n_kv_heads), n_heads = heads_.size(),
             words = mask_words(cache), slots = std::min<std::size_t>(words * kPageTokens, owner_->mass_->stride());
  const auto* masks = reinterpret_cast<const std::uint32_t*>(from);
  const auto* sums = reinterpret_cast<const float*>(from + n_heads * words * sizeof(std::uint32_t));
  MethodState::Pending& pending = state.pending;
  pending.kept.assign(n_kv, {});
  if (rule_.adds) pending.mass.assign(n_kv, {});
  bool any = false;
  for (std::size_t m = 0; m < n_kv; ++m) {
    const auto head = static_cast<std::int32_t>(m);
    const std::size_t at = static_cast<std::size_t>(layer) * n_kv + m;
    // Tokens after the last committed step have no sums yet.
    const std::int32_t summed = cache.n_slots(layer, head) - std::max(0, cache.length() - rule_.length);
    const std::span<const std::uint32_t> of_head(masks + at * words, words);
    std::int32_t rank = 0;
    for (const TokenRange& r : cache.stored_slots(layer, head)) {
      if (rule_.adds) append_sums(r, summed, sums + at * slots, pending.mass[m]);
      any = append_kept(of_head, r, rank, pending.kept[m]) || any;
      rank += r.end - r.begin;
    }
  }
  if (!any) pending.kept.clear();
}

CudaDrops::~CudaDrops() {
  for (Sequence* s : sequences_) s->leave();
}

bool CudaDrops::takes(const MethodState& method, const SequenceCache& cache) {
  const Plan& plan = method.plan();
  if (plan.norm) return false;
  if (method.late().any()) return true;
  if (!DropDecider::each_step(plan)) return plan.observed_rows == Plan::kAllRows;
  if (plan.drop->smooth != 1 || plan.drop->rank == Rank::kStamp || plan.drop->share != ShareKind::kEven) return false;
  const DropTask rule = rule_of(plan);
  if (rule.one_a_layer && !heads_alike(cache, plan)) return false;
  for (std::int32_t l = 0; l < cache.shape().n_layers; ++l)
    for (std::int32_t m = 0; plan.compressed(l) && m < cache.shape().n_kv_heads; ++m) {
      const std::int32_t n = cache.n_stored(l, m);
      if (n - kept_of(n, stored_sinks(l, m, cache, plan), rule.recent, rule.keep) > kFewTokens) return false;
    }
  return true;
}

void CudaDrops::add(std::size_t span, const SequenceCache& cache, MethodState& method) {
  auto* sequence = dynamic_cast<Sequence*>(method.late().get());
  if (sequence == nullptr || sequence->owner() != this) {
    auto made = std::make_unique<Sequence>(*this, method.plan());
    sequence = made.get();
    method.late().set(std::move(made));
  }
  MNEME_CHECK(!sequence->any() || sequence->continues(cache), "a step of a sequence that has to settle() first");
  rows_.push_back({span, sequence, &cache, &method});
}

bool CudaDrops::sums() const {
  return std::any_of(rows_.begin(), rows_.end(), [](const Dropping& row) { return row.sequence->adds(); });
}

std::int32_t CudaDrops::n_kept_rows() const {
  const auto here = [&](const Sequence* s) {
    return std::any_of(rows_.begin(), rows_.end(), [&](const Dropping& row) { return row.sequence == s; });
  };
  return static_cast<std::int32_t>(
      std::count_if(sequences_.begin(), sequences_.end(), [&](const Sequence* s) { return s->any() && !here(s); }));
}

void CudaDrops::take_rows(std::span<std::int32_t> own_rows) {
  std::vector<bool> taken;
  const auto take = [&](std::int32_t row) {
    taken.resize(std::max(taken.size(), static_cast<std::size_t>(row) + 1));
    taken[static_cast<std::size_t>(row)] = true;
  };
  for (const Sequence* s : sequences_)
    if (s->any()) take(s->mass_row());
  const auto next_free = [&] {
    const auto row = static_cast<std::int32_t>(std::find(taken.begin(), taken.end(), false) - taken.begin());
    take(row);
    return row;
  };
  for (std::int32_t& row : own_rows) row = -1;
  for (const Dropping& row : rows_) {
    if (!row.sequence->any()) row.sequence->set_mass_row(next_free());
    own_rows[row.span] = row.sequence->mass_row();
  }
  for (std::int32_t& row : own_rows)
    if (row < 0) row = next_free();
}

// Slots from which tokens may be dropped, and sums so far, to the device. staging: n_heads() + row_floats() words.
void CudaDrops::attach(const Dropping& row, std::byte* staging) {
  const Plan& plan = row.method->plan();
  row.sequence->attach(*row.cache, plan);
  const auto n_heads = static_cast<std::size_t>(this->n_heads());
  auto* firsts = reinterpret_cast<std::int32_t*>(staging);
  auto* sums = reinterpret_cast<float*>(firsts + n_heads);
  const auto width = static_cast<std::size_t>(most_slots(*row.cache));
  for (std::size_t h = 0; h < n_heads; ++h) {
    const std::int32_t l = static_cast<std::int32_t>(h) / shape_.n_kv_heads,
                       m = static_cast<std::int32_t>(h) % shape_.n_kv_heads;
    firsts[h] = plan.compressed(l) ? first_slot_of(l, m, *row.cache, plan) : -1;
    if (!row.sequence->adds()) continue;
    float* to = sums + h * width;
    std::fill_n(to, width, 0.0f);
    const auto& mass = row.method->layer(l).mass;
    if (!plan.compressed(l) || mass.empty()) continue;
    const std::vector<float>& from = mass[static_cast<std::size_t>(m)];
    std::size_t rank = 0;
    for (const TokenRange& r : row.cache->stored_slots(l, m)) {
      const std::size_t n = std::min(static_cast<std::size_t>(r.end - r.begin), from.size() - rank);
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(rank), n, to + r.begin);
      rank += n;
    }
  }
  const std::int32_t mass_row = row.sequence->mass_row();
  copy_bytes(first_slots_.as<std::int32_t>() + std::int64_t{mass_row} * this->n_heads(), firsts,
             n_heads * sizeof(std::int32_t), *stream_);
  if (row.sequence->adds())
    copy_rows(mass_->received() + mass_row * mass_->row_floats(),
              static_cast<std::size_t>(mass_->stride()) * sizeof(float), sums, width * sizeof(float),
              width * sizeof(float), n_heads, *stream_);
}

void CudaDrops::launch(std::span<const DropTask> rows) {
  if (rows.empty()) return;
  const std::size_t bytes = rows.size_bytes();
  if (row_staging_.size() < bytes) row_staging_ = PinnedBuffer(2 * bytes);
  grow(device_rows_, row_staging_.size(), "drops of a step");
  std::copy(rows.begin(), rows.end(), row_staging_.as<DropTask>());
  copy_bytes(device_rows_.data(), row_staging_.data(), bytes, *stream_);
  drop_least_cuda({.rows = device_rows_.as<DropTask>(),
                   .given = mass_->given(),
                   .received = mass_->received(),
                   .first_slots = first_slots_.as<std::int32_t>(),
                   .masks = tables_->masks(),
                   .stride = mass_->stride(),
                   .n = static_cast<std::int32_t>(rows.size()),
                   .n_layers = shape_.n_layers},
                  tables_->ragged_tables(), {.stream = stream_->get()});
}

void CudaDrops::start(std::span<const std::int32_t> slots, CudaTables& tables, CudaDecodeMass& mass,
                      const Stream& stream) {
  tables_ = &tables, mass_ = &mass, stream_ = &stream;
  const std::size_t firsts = static_cast<std::size_t>(mass.n_rows() * n_heads()) * sizeof(std::int32_t);
  if (first_slots_.size() < firsts) {
    DeviceBuffer larger(firsts, "sinks of sequences that drop");
    if (first_slots_.size() > 0) copy_bytes(larger.data(), first_slots_.data(), first_slots_.size(), stream);
    stream.synchronize();
    first_slots_ = std::move(larger);
  }
  std::size_t staged = 0;
  const auto bytes_of = [&](const Dropping& row) {
    const std::size_t slots_of = row.sequence->adds() ? static_cast<std::size_t>(most_slots(*row.cache)) : 0;
    return static_cast<std::size_t>(n_heads()) * (sizeof(std::int32_t) + slots_of * sizeof(float));
  };
  for (const Dropping& row : rows_)
    if (!row.sequence->any()) staged += bytes_of(row);
  if (staging_.size() < staged) staging_ = PinnedBuffer(staged * 5 / 4);
  std::byte* at = staging_.data();
  std::vector<DropTask> drops;
  for (const Dropping& row : rows_) {
    if (!row.sequence->any()) attach(row, std::exchange(at, at + bytes_of(row)));
    tables.expect_drops(slots[row.span]);
    row.sequence->begin(slots[row.span], drops);
  }
  launch(drops);
}

}  // namespace mneme
