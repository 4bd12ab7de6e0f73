#include "src/model/device_types.h"

#include <fmt/format.h>

#include "src/base/error.h"

namespace mneme {

void expect_device_types(const Model& model) {
  int layer = 0;
  for (const LayerWeights& w : model.layers()) {
    const auto expect = [layer](std::string_view name, const WeightMatrix& matrix) {
      const std::string tensor = fmt::format("blk.{}.{}.weight", layer, name);
      if (!matrix.columns().empty())
        fail(ErrorKind::kUnsupported,
             "--device cuda: tensor '{}' of an expert has its groups in another order (act-order), which the device "
             "does "
             "not multiply. Run with --device cpu, or write a file: mneme convert MODEL OUT.gguf --type q8_0",
             tensor);
    };
    for (std::size_t e = 0; e < w.experts.size(); ++e) {
      expect(fmt::format("ffn_gate.{}", e), w.experts[e].gate);
      expect(fmt::format("ffn_up.{}", e), w.experts[e].up);
      expect(fmt::format("ffn_down.{}", e), w.experts[e].down);
    }
    ++layer;
  }
}

}  // namespace mneme
