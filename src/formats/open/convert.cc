#include "src/formats/open/convert.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/check.h"
#include "src/formats/delta_rows.h"
#include "src/formats/family.h"
#include "src/formats/gguf/gguf_metadata.h"
#include "src/formats/gguf/gguf_writer.h"
#include "src/formats/weight_names.h"
#include "src/ops/gemm/gemm.h"
#include "src/tensor/buffer.h"

namespace mneme {
namespace {

constexpr std::int64_t kChunkElements = std::int64_t{1} << 20;

struct Job {
  std::string name;
  std::vector<const CheckpointTensor*> from;  // several: the matrices of a stack
  DType to;
  bool reorder;                          // permute rows from halves to neighbours, or back
  ValueHeads heads = ValueHeads::kNone;  // what is put in the order of GGUF's value heads
};

// Source row of output row r: within a head, row p * D/2 + i of halves is row 2 i + p of neighbours.
std::int64_t source_row(std::int64_t r, std::int64_t head_dim, std::int64_t rotary_dim, RopePairs to) {
  const std::int64_t head = r / head_dim, at = r % head_dim, half = (rotary_dim == 0 ? head_dim : rotary_dim) / 2;
  if (at >= 2 * half) return r;
  return head * head_dim + (to == RopePairs::kNeighbours ? at % 2 * half + at / 2 : at % half * 2 + at / half);
}

// The type with blocks of 32 that replaces one with blocks of 256, as in llama.cpp's files.
DType narrower_type(DType type) {
  switch (type) {
    case DType::kQ2_K:
    case DType::kQ3_K:
      return DType::kQ4_0;
    case DType::kQ4_K:
      return DType::kQ5_0;
    case DType::kQ5_K:
      return DType::kQ5_1;
    case DType::kQ6_K:
      return DType::kQ8_0;
    default:
      return DType::kBF16;
  }
}

// `type`, or the one that rows of n values must take.
DType fitting(DType type, std::int64_t n) {
  if (n % dtype_info(type).block == 0) return type;
  const DType narrower = narrower_type(type);
  return n % dtype_info(narrower).block == 0 ? narrower : DType::kBF16;
}

class Converter {
 public:
  Converter(const Checkpoint& from, DType type) : from_(from), pairs_(gguf_rope_pairs(from.config().architecture)) {
    if (from.config().delta.n_k_heads > 0) order_ = tiled_order(from.config().delta);
    const bool reorder = from.config().rope.pairs != pairs_;
    for_each_weight(from.config(), [&](const WeightSpec& w) {
      std::vector<const CheckpointTensor*> parts;
      if (const CheckpointTensor* t = from.find(w.name)) parts.push_back(t);
      if (parts.empty())
        for (std::int64_t e = 0; e < w.n_experts; ++e) parts.push_back(from.find(w.expert(e).name));
      const bool exact = w.n_in == 0 || w.role == WeightRole::kExact;
      const DType to = exact ? DType::kF32 : fitting(type, w.n_in);
      if (!exact && to != type) ++(to == DType::kBF16 ? kept_ : narrower_);
      const bool tiles = family_of(from.config().architecture).tiled_in_gguf && !from.config().delta.tiled;
      jobs_.push_back({w.name, std::move(parts), to,
                       reorder && (w.role == WeightRole::kQuery || w.role == WeightRole::kKey),
                       tiles ? w.heads : ValueHeads::kNone});
    });
  }

  std::int64_t kept() const { return kept_; }
  std::int64_t narrower() const { return narrower_; }
  std::int64_t size() const { return jobs_.size(); }

  void declare(GgufWriter& writer) const {
    for (const Job& job : jobs_) {
      const ConstTensorView& v = job.from.front()->view;
      if (v.rank() == 1)
        writer.add_tensor(job.name, {v.dim(0)}, job.to);
      else if (v.rank() == 3)
        writer.add_tensor(job.name, {v.dim(0), v.dim(1), v.dim(2)}, job.to);
      else if (job.from.size() > 1)
        writer.add_tensor(job.name, {std::ssize(job.from), v.dim(0), v.dim(1)}, job.to);
      else
        writer.add_tensor(job.name, {v.dim(0), v.dim(1)}, job.to);
    }
  }

  void write(GgufWriter& writer, std::int64_t i) {
    for (const CheckpointTensor* part : jobs_[i].from) write_part(writer, *part, jobs_[i]);
  }

 private:
  void write_part(GgufWriter& writer, const CheckpointTensor& part, const Job& job) {
    const ConstTensorView& v = part.view;
    // A vector counts as one row, unless its elements are permuted.
    if (v.rank() == 1 && !job.reorder && job.heads == ValueHeads::kNone)
      return write_rows(writer, {v.data(), v.dtype(), {1, v.dim(0)}}, job);
    if (v.rank() == 1) return write_rows(writer, {v.data(), v.dtype(), {v.dim(0), 1}}, job);
    if (v.rank() == 3) return write_rows(writer, {v.data(), v.dtype(), {v.dim(0) * v.dim(1), v.dim(2)}}, job);
    if (job.heads != ValueHeads::kColumns) return write_rows(writer, v, job, part.columns);
    const std::vector<std::int32_t> columns = tiled_columns(part.columns, v.dim(1));
    write_rows(writer, v, job, columns);
  }

  void write_rows(GgufWriter& writer, const ConstTensorView& v, const Job& job,
                  std::span<const std::int32_t> columns = {}) {
    const ModelConfig& c = from_.config();
    const std::int64_t rows = v.dim(0), width = v.dim(1);
    const std::int64_t chunk = std::max<std::int64_t>(1, kChunkElements / width);
    const std::size_t bytes = row_bytes(job.to, width);
    floats_.reserve((std::min(chunk, rows) * width) * sizeof(float));
    out_.reserve(std::min(chunk, rows) * bytes);
    for (std::int64_t begin = 0; begin < rows; begin += chunk) {
      const std::int64_t n = std::min(chunk, rows - begin);
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t r = job.reorder ? source_row(begin + i, c.head_dim, c.rope.rotary_dim, pairs_)
                                           : tiled_row(begin + i, rows, job.heads);
        if (v.dtype() == job.to && columns.empty())
          std::copy_n(v.row(r), bytes, out_.data() + i * bytes);
        else
          dequantise_row(v, r, floats_.as<float>() + i * width);
        if (!columns.empty()) restore_order(columns, floats_.as<float>() + i * width);
      }
      if (v.dtype() != job.to || !columns.empty())
        quantise_rows(view_of(floats_.as<const float>(), {n, width}), {out_.data(), job.to, {n, width}});
      writer.write({out_.data(), n * bytes});
    }
  }

  // The row that is row r of the tiled model.
  std::int64_t tiled_row(std::int64_t r, std::int64_t n_rows, ValueHeads heads) const {
    if (heads == ValueHeads::kNone || heads == ValueHeads::kColumns) return r;
    const DeltaConfig& d = from_.config().delta;
    const std::int64_t first = heads == ValueHeads::kLastRows ? 2 * d.key_width() : 0;
    const std::int64_t width = (n_rows - first) / d.n_v_heads;
    return r < first ? r : first + order_[(r - first) / width] * width + (r - first) % width;
  }

  // The place of each stored column in the tiled model.
  std::vector<std::int32_t> tiled_columns(std::span<const std::int32_t> columns, std::int64_t n) const {
    const std::int64_t width = n / std::ssize(order_);
    std::vector<std::int32_t> places(n);
    for (std::int64_t i = 0; i < n; ++i) places[order_[i / width] * width + i % width] = static_cast<std::int32_t>(i);
    if (columns.empty()) return places;
    std::vector<std::int32_t> of_stored(n);
    for (std::int64_t j = 0; j < n; ++j) of_stored[j] = places[columns[j]];
    return of_stored;
  }

  // Values of a row whose columns are in another order, in the matrix's own.
  void restore_order(std::span<const std::int32_t> columns, float* row) {
    std::vector<float> stored(row, row + columns.size());
    for (std::size_t j = 0; j < columns.size(); ++j) row[columns[j]] = stored[j];
  }

  const Checkpoint& from_;
  RopePairs pairs_;
  std::vector<std::int64_t> order_;  // of value heads
  std::vector<Job> jobs_;
  std::int64_t kept_ = 0, narrower_ = 0;
  Buffer floats_, out_;
};

}  // namespace

ConvertResult convert_to_gguf(const Checkpoint& from, const std::filesystem::path& to, DType type,
                              const ProgressFn& progress) {
  MNEME_CHECK(can_quantise_to(type), "nothing is converted to {}", dtype_name(type));
  Converter converter(from, type);
  GgufWriter writer(to);
  put_config(writer, from.config(), type);
  for (const CarriedMetadata& m : from.carried_metadata()) writer.put_encoded(m.key, m.encoded);
  put_tokenizer(writer, from.tokenizer());
  const RopeConfig& rope = from.config().rope;
  const std::vector<float> factors = gguf_freq_factors(from.config());
  const std::pair<const char*, const std::vector<float>*> of_rope[] = {
      {"rope_freqs.weight", &factors},
      {"rope_factors_long.weight", &rope.long_factors},
      {"rope_factors_short.weight", &rope.short_factors}};
  for (const auto& [name, values] : of_rope)
    if (!values->empty()) writer.add_tensor(name, {std::ssize(*values)}, DType::kF32);
  converter.declare(writer);
  writer.begin_data();
  for (const auto& [name, values] : of_rope)
    if (!values->empty()) writer.write(std::as_bytes(std::span(*values)));
  for (std::int64_t i = 0; i < converter.size(); ++i) {
    if (progress) progress("convert, tensors", i, converter.size());
    converter.write(writer, i);
  }
  writer.finish();
  if (progress) progress("convert, tensors", converter.size(), converter.size());
  return {converter.size(), writer.bytes_written(), converter.kept(), converter.narrower(), narrower_type(type)};
}

}  // namespace mneme
