#include "src/model/cuda/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/check.h"
#include "src/cuda/device.h"
#include "src/model/cuda/retrieval/launches.h"

namespace mneme {
namespace {

// graph_kind(): sequences with full attention, those of which some dropped tokens, and those observed in order to drop;
// then sequences with a method that selects nothing, selects, or selects speculatively; then two-part attention without
// and with remapped queries. Times kKinds is added the number of the methods' state in retrievals_.all().
enum Kind : std::int32_t { kFull, kRagged, kObserved, kWindow, kSelect, kSpeculative, kTwoParts, kRemoteParts, kKinds };

// Whether a sequence's method attends less than all stored tokens.
bool attends_regions(const SequenceRows& s) {
  return s.method != nullptr && s.n_rows > 0 && s.method->plan().attend == Attend::kRegions;
}

// Whether the host runs that method; whether the device does.
bool of_host(const SequenceRows& s) {
  return attends_regions(s) && CudaHostAttention::takes(*s.method);
}
bool has_method(const SequenceRows& s) {
  return attends_regions(s) && !of_host(s);
}

bool reads_in_windows(const SequenceRows& s) {
  return has_method(s) && s.phase == SequencePhase::kPrefill && s.method->plan().window.has_value();
}

}  // namespace

std::int64_t CudaAttention::free_device_bytes() {
  return static_cast<std::int64_t>(device_info(0).free_bytes);
}

CudaAttention::CudaAttention(const Model& model, const CudaForwardOptions& options) : model_(model), options_(options) {
  const ModelConfig& c = model.config();
  expect_attention_shape_cuda(static_cast<std::int32_t>(c.head_dim), static_cast<std::int32_t>(c.group()));
  if (is_eight_bit(options.kv_dtype)) expect_eight_bit_cuda(static_cast<std::int32_t>(c.head_dim));
  scale_ = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
  q_width_ = static_cast<std::int32_t>(c.n_heads * c.head_dim);
  qkv_width_ = static_cast<std::int32_t>((c.n_heads + 2 * c.n_kv_heads) * c.head_dim);
}

std::int64_t CudaAttention::reserved_device_bytes(const KvShape& shape) const {
  const std::int64_t tables = options_.max_sequences * shape.blocks_per_page() * pages_of(options_.max_context) * 4;
  const std::int64_t wide = CudaWideLayer::bytes(shape, options_.max_context);
  const bool contiguous = host_pages() || wide > 0;
  return tables + wide + (host_pages() ? CudaStaging::bytes(shape, options_.max_context) : 0) +
         PrefillAttention::bytes(shape.n_kv_heads, shape.head_dim, options_.max_context, contiguous);
}

void CudaAttention::prepare(const KvShape& shape, const CudaBlocks& blocks) {
  shape_ = shape;
  tables_.emplace(shape, blocks.base(), std::max(options_.max_sequences, 1), options_.max_context);
  if (is_eight_bit(shape.dtype)) wide_.emplace(shape, options_.max_context);
  if (host_pages()) staging_.emplace(shape, options_.max_context);
  prefill_.prepare(tables_->tables(), options_.max_context, host_pages() || wide_);
  streams_.make();
  reads_pages_ = blocks.host_reads();
  mass_observer_.emplace(shape, static_cast<std::int32_t>(model_.config().n_heads), scale_);
  audit_.emplace(shape, static_cast<std::int32_t>(model_.config().n_heads), scale_, options_.audit_every);
}

std::size_t CudaAttention::bytes() const {
  return tables_->bytes() + (staging_ ? staging_->bytes() : 0) + (wide_ ? wide_->bytes() : 0) + retrievals_.bytes() +
         (windows_ ? windows_->bytes() : 0) + mass_observer_->bytes() + audit_->bytes();
}

bool CudaAttention::in_graph() const {
  return !audit_->any();
}

// Memory for the methods of a step. of_sequences: by sequence, its method's number in retrievals_.
void CudaAttention::take_methods(std::span<const SequenceRows> sequences, std::vector<std::size_t>& of_sequences,
                                 const Stream& stream) {
  retrievals_.begin();
  of_sequences.assign(sequences.size(), 0);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const SequenceRows& s = sequences[i];
    if (has_method(s))
      of_sequences[i] = retrievals_.add(
          CudaRetrieval::needs_of(*s.method, s.cache->length(), s.phase == SequencePhase::kDecode, fit()));
  }
  const CudaRetrievalSetup setup{.shape = shape_,
                                 .n_heads = static_cast<std::int32_t>(model_.config().n_heads),
                                 .pages = tables_->tables(),
                                 .options = {.n_seq_slots = std::max(options_.max_sequences, 1),
                                             .max_context = options_.max_context,
                                             .fit = fit(),
                                             .pages_on_device = !host_pages(),
                                             .rope = &model_.rope(),
                                             .observer = observer_},
                                 .free_bytes = options_.grow_slots ? &free_device_bytes : nullptr,
                                 .release = [this] { return staging_ && staging_->release(); }};
  if (!retrievals_.prepare(setup, stream)) return;
  ++generation_;
  const bool parts = std::any_of(retrievals_.active().begin(), retrievals_.active().end(),
                                 [](const CudaRetrieval* r) { return r->two_parts(); });
  if (!parts || parts_.out[0].size() > 0) return;
  const auto rows = static_cast<std::size_t>((std::max(options_.max_sequences, 1) + 7) / 8 * 8);
  for (DeviceBuffer& b : parts_.out)
    b = DeviceBuffer(rows * static_cast<std::size_t>(q_width_) * 2, "parts of attention");
  for (DeviceBuffer& b : parts_.lse)
    b = DeviceBuffer(rows * static_cast<std::size_t>(model_.config().n_heads) * 4, "parts of attention");
}

void CudaAttention::add_span(const SequenceRows& s, std::int32_t first_row, CudaRetrieval* retrieval) {
  MNEME_CHECK(s.cache->length() <= options_.max_context, "a sequence of {} tokens, the context is {}",
              s.cache->length(), options_.max_context);
  MNEME_CHECK(!has_method(s) || !s.cache->dropped(), "a method that selects, and tokens that were dropped");
  const bool one_decodes = s.phase == SequencePhase::kDecode && s.n_rows == 1, decodes = has_method(s) && one_decodes;
  const bool by_host = of_host(s) && CudaHostAttention::attends(s);
  if (of_host(s)) host_->add(s, first_row);
  const std::int32_t prompt = reads_in_windows(s) ? add_prompt(s) : -1;
  const bool observed = s.method != nullptr && !by_host && s.method->plan().observed_rows != 0 &&
                        mass_observer_->add({.span = step_.spans.size(),
                                             .cache = s.cache,
                                             .method = s.method,
                                             .n_rows = s.n_rows,
                                             .prefill_left = s.prefill_left,
                                             .decodes = one_decodes});
  const bool single = s.n_rows == 1 && prompt < 0 && (one_decodes || !observed);
  step_.has_remapped = step_.has_remapped || (has_method(s) && s.method->plan().remote_position);
  step_.ragged = step_.ragged || s.cache->dropped() || (observed && one_decodes);  // which drops during the step
  if (!single && !by_host) step_.chunks.push_back(step_.spans.size());
  if (!decodes && !by_host && s.method != nullptr && one_decodes)
    step_.full_rows.push_back({.cache = s.cache, .method = s.method});
  step_.spans.push_back({.first_row = first_row,
                         .n_rows = s.n_rows,
                         .first_position = s.cache->length() - s.n_rows,
                         .slot = 0,
                         .prefill_left = s.prefill_left,
                         .cache = s.cache,
                         .method = has_method(s) ? s.method : nullptr,
                         .retrieval = retrieval,
                         .decodes = decodes,
                         .observed = observed && one_decodes,
                         .single = single,
                         .by_host = by_host,
                         .prompt = prompt});
  step_.caches.push_back(s.cache);
}

void CudaAttention::fill_rows(const Span& s, const CudaRetrieval::DecodeStep& method, const StepArrays& host) const {
  const std::int32_t remote = s.method != nullptr ? s.method->plan().remote_position.value_or(-1) : -1;
  for (std::int32_t j = 0; j < s.n_rows; ++j) {
    const std::int32_t r = s.first_row + j;
    host.positions[r] = s.first_position + j;
    host.slots[r] = s.slot;
    host.lengths[r] = s.first_position + j + 1;
    host.seq_slots[r] = s.decodes ? s.slot : -1;
    host.reset[r] = method.reset;
    host.attended[r] = s.observed ? s.cache->length() : method.attended_tokens;
    host.remote_positions[r] = remote >= 0 ? remote : s.first_position + j;
    host.local_from[r] = method.parts.local_from;
    host.local_to[r] = method.parts.local_to;
    host.remote_to[r] = method.parts.remote_to;
    host.local_from_dense[r] = method.parts.local_from_dense;
    host.remote_to_dense[r] = method.parts.remote_to_dense;
    host.tickets[r] = step_.ticket;
  }
}

// What the device dropped becomes known to sequences that do anything but to go on, and to the others now and then.
void CudaAttention::settle(std::span<const SequenceRows> sequences) {
  for (const SequenceRows& s : sequences) {
    if (s.method == nullptr || s.n_rows == 0 || !s.method->late().any()) continue;
    const bool decodes = s.phase == SequencePhase::kDecode && s.n_rows == 1;
    if (!decodes || !s.method->late().get()->continues(*s.cache)) s.method->settle(*s.cache);
  }
}

// Prepares what every sequence's rows run and writes their arrays; then sends what the step needs to the device.
void CudaAttention::prepare_rows(const StepArrays& host, const Stream& stream) {
  for (CudaRetrieval* r : retrievals_.active()) r->begin_rows();
  for (std::size_t i = 0; i < step_.spans.size(); ++i) {
    Span& s = step_.spans[i];
    s.slot = step_.slots[i];
    CudaRetrieval::DecodeStep method{
        .cache = s.cache, .method = s.method, .seq_slot = s.slot, .number = static_cast<std::int32_t>(i)};
    if (s.decodes) {
      s.retrieval->prepare(method, tables_->tables(), stream);
      step_.method_rows[number_of(*s.retrieval)].push_back(method);
      // The audit's memory is of one shape: of a step's rows those with the first one's state.
      if (!audit_->any()) step_.audited = s.retrieval;
      if (step_.audited == s.retrieval) audit_->add({.method = method, .row = s.first_row});
    } else if (s.prompt >= 0) {
      s.retrieval->prepare_prompt(*s.cache, s.slot, s.n_rows, tables_->tables(), stream);
    }
    fill_rows(s, method, host);
  }
  for (std::size_t r = 0; r < step_.method_rows.size(); ++r)
    if (!step_.method_rows[r].empty()) retrievals_.retrieval_of(r).send_rows(stream);
  if (audit_->any()) audit_->prepare(*step_.audited);
  if (windows_) windows_->send(stream);
  if (host_ && host_->any()) host_->start();
}

bool CudaAttention::begin(std::span<const SequenceRows> sequences, const StepArrays& host, const Stream& stream) {
  settle(sequences);
  step_.spans.clear();
  step_.chunks.clear();
  step_.caches.clear();
  step_.full_rows.clear();
  mass_observer_->clear();
  audit_->clear();
  step_.has_remapped = step_.ragged = false;
  step_.ticket = step_.ticket % std::numeric_limits<std::int32_t>::max() + 1;
  std::vector<std::size_t> of_sequences;
  take_methods(sequences, of_sequences, stream);
  step_.method_rows.assign(retrievals_.active().size(), {});
  if (windows_) windows_->begin();
  if (host_) host_->begin();
  if (!host_ && std::any_of(sequences.begin(), sequences.end(), of_host))
    host_.emplace(model_, CudaHostAttention::Options{.max_sequences = std::max(options_.max_sequences, 1),
                                                     .max_context = options_.max_context,
                                                     .reads_pages = reads_pages_,
                                                     .audit_every = options_.audit_every});
  std::int32_t row = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const SequenceRows& s = sequences[i];
    if (s.n_rows > 0) add_span(s, row, has_method(s) ? &retrievals_.retrieval_of(of_sequences[i]) : nullptr);
    row += s.n_rows;
  }
  const auto n_spans = static_cast<std::int32_t>(step_.spans.size());
  MNEME_CHECK(n_spans <= options_.max_sequences, "{} sequences of at most {}", n_spans, options_.max_sequences);
  constexpr std::int32_t kPadded = 8;  // a graph may have padding rows
  mass_observer_->prepare((n_spans + kPadded - 1) / kPadded * kPadded, stream);
  step_.slots.resize(step_.spans.size());
  if (step_.ragged) tables_->take_masks(stream);
  tables_->assign_slots(step_.caches, stream, step_.slots);
  mass_observer_->start(step_.slots, *tables_, stream);
  select_kept_prompt();
  prepare_rows(host, stream);
  step_.kind = kind_of_step();
  const auto alike = [&](const Span& s) {
    return !s.by_host && s.decodes == step_.spans.front().decodes && s.retrieval == step_.spans.front().retrieval;
  };
  return step_.chunks.empty() && std::all_of(step_.spans.begin(), step_.spans.end(), alike);
}

std::size_t CudaAttention::number_of(const CudaRetrieval& retrieval) const {
  const auto active = retrievals_.active();
  return static_cast<std::size_t>(std::find(active.begin(), active.end(), &retrieval) - active.begin());
}

// The kind of a step whose rows are alike; for others it does not matter.
std::int32_t CudaAttention::kind_of_step() const {
  if (step_.spans.empty() || !step_.spans.front().decodes)
    return mass_observer_->decodes() ? kObserved : step_.ragged ? kRagged : kFull;
  const CudaRetrieval& r = *step_.spans.front().retrieval;
  const std::int32_t kind = r.two_parts()             ? (step_.has_remapped ? kRemoteParts : kTwoParts)
                            : !r.any(asks::selects)   ? kWindow
                            : r.any(asks::speculates) ? kSpeculative
                                                      : kSelect;
  const auto all = retrievals_.all();
  const auto number =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.get() == &r; }) - all.begin();
  return kind + kKinds * static_cast<std::int32_t>(number);
}

std::int32_t CudaAttention::add_prompt(const SequenceRows& s) {
  const Plan& plan = s.method->plan();
  MNEME_CHECK(s.cache->key_basis() == plan.key_basis, "the method '{}' was not there when the sequence began",
              plan.name());
  if (!windows_)
    windows_.emplace(wide_shape(shape_), static_cast<std::int32_t>(model_.config().n_heads), model_.rope(),
                     options_.max_rows, options_.max_sequences, options_.max_context);
  return windows_->add(*s.cache, *s.method, s.n_rows);
}

QkvRows CudaAttention::qkv_rows(std::int32_t first, std::int32_t n, const StepArrays& rows, const Memory& m) const {
  const std::int64_t width = std::int64_t{first} * qkv_width_ * (m.qkv_bf16 ? 2 : 4);
  return {
      .qkv = static_cast<const std::byte*>(m.qkv) + width,
      .qkv_bf16 = m.qkv_bf16,
      .bias = m.bias,
      .q_norm = m.q_norm,
      .k_norm = m.k_norm,
      .norm_behind = m.norm_behind,
      .norm_eps = static_cast<float>(model_.config().rms_eps),
      .angles = m.angles + std::int64_t{first} * model_.config().head_dim,
      .neighbours = model_.rope().pairs == RopePairs::kNeighbours,
      .query_scale = m.query_scale,
      .temperature = static_cast<float>(model_.config().temperature),
      .temperature_context = std::max(1, static_cast<std::int32_t>(model_.config().temperature_context)),
      .positions = rows.positions + first,
      .slots = rows.slots + first,
      .n = n,
      .n_heads = static_cast<std::int32_t>(model_.config().n_heads),
      .store = {},
      .remote_angles = step_.has_remapped ? m.remote_angles + std::int64_t{first} * model_.config().head_dim : nullptr,
      .remote_q = m.remote_q + std::int64_t{first} * q_width_ * 2,
      .key_scale = static_cast<float>(model_.rope().scale),
      .local = {}};
}

void CudaAttention::layer_of_graph(std::int32_t layer, std::int32_t n, const StepArrays& rows, const Memory& m,
                                   const CudaContext& context, const Stream& stream) {
  single_rows(layer, {.span = 0, .first = 0, .n = n, .retrieval = retrieval_of_graph()}, rows, m, context, stream);
  m.lap(StepPhase::kAttention, stream);
}

void CudaAttention::layer_of_spans(std::int32_t layer, const StepArrays& rows, const Memory& m,
                                   const CudaContext& context, const Stream& stream) {
  if (host_ && host_->any()) host_rows(layer, rows, m, context, stream);
  for (std::size_t i = 0; i < step_.spans.size();) {
    const Span& s = step_.spans[i];
    if (s.by_host) {
      ++i;
      continue;
    }
    if (!s.single) {
      host_pages() ? chunk_in_host_pages(layer, i, rows, m, context, stream)
                   : chunk(layer, i, rows, m, context, stream);
      ++i;
      continue;
    }
    std::size_t stop = i;
    const auto alike = [&](const Span& other) {
      return other.single && !other.by_host && other.decodes == s.decodes &&
             (!s.decodes || other.retrieval == s.retrieval);
    };
    while (stop < step_.spans.size() && alike(step_.spans[stop])) ++stop;
    single_rows(layer,
                {.span = static_cast<std::int32_t>(i),
                 .first = s.first_row,
                 .n = static_cast<std::int32_t>(stop - i),
                 .retrieval = s.decodes ? s.retrieval : nullptr},
                rows, m, context, stream);
    i = stop;
  }
}

void CudaAttention::finish_graph(std::int32_t n, const StepArrays& rows, const Stream& stream) {
  if (CudaRetrieval* r = retrieval_of_graph()) finish({.span = 0, .first = 0, .n = n, .retrieval = r}, rows, stream);
}

void CudaAttention::finish_spans(const StepArrays& rows, const Stream& stream) {
  for (const Span& s : step_.spans)
    if (s.decodes) finish({.span = 0, .first = s.first_row, .n = 1, .retrieval = s.retrieval}, rows, stream);
}

void CudaAttention::join(const Stream& stream) {
  if (!streams_.side_busy) return;
  if (!step_.chunks.empty() && staging_) staging_->join(stream);
  streams_.join(stream);
}

void CudaAttention::observe(StepObserver* observer) {
  ++generation_;
  observer_ = observer;
  for (const auto& r : retrievals_.all()) r->observe(observer);
}

void CudaAttention::fetch_counts(const Stream& stream) {
  for (std::size_t r = 0; r < step_.method_rows.size(); ++r)
    if (!step_.method_rows[r].empty()) retrievals_.retrieval_of(r).fetch_counts(stream);
  if (windows_) windows_->fetch(stream);
  mass_observer_->fetch(stream);
}

void CudaAttention::count_stored(const CudaRetrieval::DecodeStep& row) const {
  for (std::int32_t l = 0; l < shape_.n_layers; ++l) {
    LayerStats& s = row.method->stats().layers[static_cast<std::size_t>(l)];
    ++s.steps;
    const LateDrops* late = row.method->late().get();
    const std::int32_t window = row.method->plan().shape.window_of(l);
    for (std::int32_t m = 0; m < shape_.n_kv_heads; ++m) {
      const std::int32_t kept = late != nullptr && late->any() ? late->attended(l, m) : row.cache->n_stored(l, m);
      s.attended_tokens += window > 0 ? std::min(kept, window) : kept;
    }
    s.attended_heads += shape_.n_kv_heads;
    const bool sparse = !row.method->plan().dense_layer(l) && row.cache->length() > row.method->rules(l).budget;
    s.sparse_steps += sparse ? 1 : 0;
  }
  row.method->count_decode_step();
}

void CudaAttention::count(const Stream& stream) {
  if (audit_->any()) audit_->count(tables_->tables(), *step_.audited, stream);
  for (std::size_t r = 0; r < step_.method_rows.size(); ++r)
    if (!step_.method_rows[r].empty()) retrievals_.retrieval_of(r).count(step_.method_rows[r]);
  if (windows_) windows_->learn();
  if (host_ && host_->any()) host_->end();
  for (const CudaRetrieval::DecodeStep& row : step_.full_rows) count_stored(row);
  mass_observer_->decide();
}

}  // namespace mneme
