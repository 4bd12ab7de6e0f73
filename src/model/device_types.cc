#include "src/model/device_types.h"

#include <fmt/format.h>

#include "src/base/error.h"

namespace mneme {

void expect_device_type(std::string_view tensor, DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
      return;
    default:
      break;
  }
  fail(ErrorKind::kUnsupported,
       "--device cuda: tensor '{}' has type {}, which the device does not multiply yet; expected f32, f16, bf16, q8_0, "
       "q4_0 or q4_1. Run with --device cpu, or write such a file: mneme convert MODEL OUT.gguf --type q8_0",
       tensor, dtype_name(type));
}

void expect_device_types(const Model& model) {
  expect_device_type("token_embd.weight", model.embedding().dtype());
  int layer = 0;
  for (const LayerWeights& w : model.layers()) {
    const auto expect = [layer](std::string_view name, const WeightMatrix& matrix) {
      const std::string tensor = fmt::format("blk.{}.{}.weight", layer, name);
      expect_device_type(tensor, matrix.view().dtype());
      if (!matrix.columns().empty())
        fail(ErrorKind::kUnsupported,
             "--device cuda: tensor '{}' has its groups in another order (act-order), which the device does not "
             "multiply yet. Run with --device cpu, or write a file: mneme convert MODEL OUT.gguf --type q8_0",
             tensor);
    };
    expect("attn_q", w.q);
    expect("attn_k", w.k);
    expect("attn_v", w.v);
    expect("attn_output", w.o);
    for (std::size_t e = 0; e < w.experts.size(); ++e) {
      expect(fmt::format("ffn_gate.{}", e), w.experts[e].gate);
      expect(fmt::format("ffn_up.{}", e), w.experts[e].up);
      expect(fmt::format("ffn_down.{}", e), w.experts[e].down);
    }
    if (w.experts.empty()) {
      expect("ffn_gate", w.gate);
      expect("ffn_up", w.up);
      expect("ffn_down", w.down);
    }
    ++layer;
  }
  expect_device_type("output.weight", model.head().view().dtype());
}

}  // namespace mneme
