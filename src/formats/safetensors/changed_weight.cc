#include "src/formats/safetensors/changed_weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/base/error.h"
#include "src/formats/delta_rows.h"

namespace mneme {
namespace {

// [n_out], or [n_out, n_in]; with a dimension of 1 where the file has one more than the weight.
void expect_values(const WeightSpec& w, const SafetensorsTensor& t, std::string_view file) {
  std::vector<std::int64_t> dims(t.dims.begin(), t.dims.begin() + t.rank);
  if (w.change == WeightChange::kSqueeze) {
    const auto one = std::ranges::find(dims, std::int64_t{1});
    if (one != dims.end() && dims.size() > 1) dims.erase(one);
  }
  const std::vector<std::int64_t> expected =
      w.n_in == 0 ? std::vector<std::int64_t>{w.n_out} : std::vector<std::int64_t>{w.n_out, w.n_in};
  if (dims != expected || !float_dtype(t.type))
    fail(ErrorKind::kFormat, "{}: tensor '{}': expected BF16, F16 or F32 {}, found {}", file, t.name,
         w.n_in == 0 ? fmt::format("[{}]", w.n_out) : fmt::format("[{}, {}]", w.n_out, w.n_in), t.shape());
}

const SafetensorsTensor& required(FindTensor find, const std::string& name, std::string_view file) {
  const SafetensorsTensor* t = find(name);
  if (t == nullptr) fail(ErrorKind::kFormat, "{}: tensor '{}' is missing", file, name);
  return *t;
}

}  // namespace

ChangedWeight change_weight(const WeightSpec& w, const SafetensorsTensor& t, std::string_view file) {
  expect_values(w, t, file);
  if (w.change == WeightChange::kSqueeze)
    return {.values = {},
            .view = w.n_in == 0 ? ConstTensorView(t.data.data(), *float_dtype(t.type), {w.n_out})
                                : ConstTensorView(t.data.data(), *float_dtype(t.type), {w.n_out, w.n_in})};
  ChangedWeight out{.values = Buffer(w.n_out * sizeof(float)), .view = {}};
  auto* values = out.values.as<float>();
  for (std::int64_t i = 0; i < w.n_out; ++i) {
    const float v = float_at(t, i);
    values[i] = w.change == WeightChange::kAddOne ? 1.0f + v : -std::exp(v);
  }
  out.view = ConstTensorView(out.values.data(), DType::kF32, {w.n_out});
  return out;
}

RepackedMatrix gather_rows(const QuantConfig& quantisation, const DeltaConfig& delta, const WeightSpec& w,
                           FindTensor find, std::string_view file, ThreadPool& pool) {
  const WeightSpec whole{
      .name = w.name, .hf_name = w.hf_name, .n_out = delta.channels() + delta.value_width(), .n_in = w.n_in};
  std::optional<RepackedMatrix> repacked = repack_quantised(quantisation, whole, find, file, pool);
  const std::byte* rows = nullptr;
  RepackedMatrix out;
  if (repacked) {
    out.dtype = repacked->dtype;
    out.columns = std::move(repacked->columns);
    rows = repacked->blocks.data();
  } else {
    const SafetensorsTensor& t = required(find, w.hf_name, file);
    expect_values(whole, t, file);
    out.dtype = *float_dtype(t.type);
    rows = t.data.data();
  }
  const DeltaRows by_key_head = rows_by_key_head(delta);
  const std::vector<std::int64_t>& from = w.fused == FusedSplit::kQkv ? by_key_head.qkv : by_key_head.z;
  const std::size_t bytes = row_bytes(out.dtype, w.n_in);
  out.blocks = Buffer(from.size() * bytes);
  for (std::size_t i = 0; i < from.size(); ++i)
    std::copy_n(rows + static_cast<std::size_t>(from[i]) * bytes, bytes, out.blocks.data() + i * bytes);
  return out;
}

void add_expert_views(const WeightSpec& w, FindTensor find, std::string_view file, std::vector<CheckpointTensor>& to) {
  const SafetensorsTensor& t = required(find, w.hf_name, file);
  const std::int64_t stored = w.fused == FusedSplit::kAllOutputs ? w.n_out : 2 * w.n_out;
  const bool fits =
      float_dtype(t.type) && t.rank == 3 && t.dims[0] == w.n_experts && t.dims[1] == stored && t.dims[2] == w.n_in;
  if (!fits)
    fail(ErrorKind::kFormat, "{}: tensor '{}': expected BF16, F16 or F32 [{}, {}, {}], found {}", file, t.name,
         w.n_experts, stored, w.n_in, t.shape());
  const std::size_t bytes = row_bytes(*float_dtype(t.type), w.n_in);
  const std::int64_t first = w.fused == FusedSplit::kSecondOutputs ? w.n_out : 0;
  for (std::int64_t e = 0; e < w.n_experts; ++e)
    to.push_back({w.expert(e).name, ConstTensorView(t.data.data() + (e * stored + first) * bytes, *float_dtype(t.type),
                                                    {w.n_out, w.n_in})});
}

}  // namespace mneme
